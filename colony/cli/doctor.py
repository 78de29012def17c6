"""`doctor`: try all that a tree needs, and say what is missing."""

import asyncio
import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from colony.cli.failures import NOT_AS_HOPED
from colony.cli.options import ROOT, asks_colony, formatted, reaches_rq
from colony.cli.roles import import_from

if TYPE_CHECKING:
    from colony.config import Config
    from colony.doctor import Diagnosis, State

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command()
@click.argument("root", type=ROOT)
@formatted
@reaches_rq
@asks_colony
def doctor(config: "Config", root: Path, output: str) -> None:
    """Try the server, each model and each tool of a tree; a line for each.

    A model is asked for one token. Ends with 1 where something failed.
    """
    from colony.cli.screen import write_json
    from colony.doctor import Diagnosis, examine
    from colony.topology.load import load
    from colony.topology.substitution import variables

    import_from(root)
    loaded = load(root, environment=os.environ)
    environment = variables(root, os.environ)

    found: list[Diagnosis] = []

    def tell(diagnosis: Diagnosis) -> None:
        found.append(diagnosis)
        if output == "text":
            _write(diagnosis)

    async def run(url: str, name: str | None, rq_url: str | None) -> None:
        async for diagnosis in examine(
            loaded, url, name, root=root, environment=environment, rq_url=rq_url
        ):
            tell(diagnosis)

    with ExitStack() as stack:
        running = _running(config)
        if running is None:
            tell(Diagnosis("ok", "server", _none_runs(config)))
            asyncio.run(run(_own_server(stack), None, config.rq))
        else:
            asyncio.run(run(running, config.name, config.rq or running))
    states = Counter(diagnosis.state for diagnosis in found)
    if output == "json":
        write_json([{**diagnosis.to_json()} for diagnosis in found])
    else:
        click.echo(", ".join(_counted(state, states[state]) for state in sorted(states)))
    raise click.exceptions.Exit(NOT_AS_HOPED if states["failed"] else 0)


def _running(config: "Config") -> str | None:
    """The server that is named, or runs for `colony up`."""
    from colony.errors import ServerMissing
    from colony.servers import server_of

    try:
        return server_of(config)
    except ServerMissing:
        return None


def _own_server(stack: ExitStack) -> str:
    """A server just for this command."""
    from tempfile import TemporaryDirectory

    from colony.embedded import EmbeddedServer

    home = Path(stack.enter_context(TemporaryDirectory(prefix="colony-doctor-")))
    return stack.enter_context(EmbeddedServer.start(home)).url


def _none_runs(config: "Config") -> str:
    return f"no server runs for the colony {config.name!r}: what follows is tried on one of its own"


def _counted(state: "State", count: int) -> str:
    from colony.cli.screen import counted

    return counted(count, state) if state == "warning" else f"{count} {state}"


def _write(diagnosis: "Diagnosis") -> None:
    state = click.style(f"{diagnosis.state:8}", fg=_COLOURS[diagnosis.state])
    click.echo(f"{state}{diagnosis.what}: {diagnosis.found}")
