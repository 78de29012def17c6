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
    from colony.doctor import Diagnosis

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
    from colony.doctor import examine
    from colony.topology.load import load
    from colony.topology.substitution import variables

    import_from(root)
    loaded = load(root, environment=os.environ)
    environment = variables(root, os.environ)

    async def run(url: str) -> list["Diagnosis"]:
        found = []
        async for diagnosis in examine(
            loaded,
            url,
            config.name,
            root=root,
            environment=environment,
            rq_url=config.rq or url,
        ):
            found.append(diagnosis)
            if output == "text":
                _write(diagnosis)
        return found

    with ExitStack() as stack:
        found = asyncio.run(run(_server(config, stack)))
    states = Counter(diagnosis.state for diagnosis in found)
    if output == "json":
        write_json([{**diagnosis.to_json()} for diagnosis in found])
    else:
        click.echo(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    raise click.exceptions.Exit(NOT_AS_HOPED if states["failed"] else 0)


def _server(config: "Config", stack: ExitStack) -> str:
    """The server that is named or runs for `colony up`, else one just for this command."""
    from tempfile import TemporaryDirectory

    from colony.cli.options import server_of
    from colony.embedded import EmbeddedServer
    from colony.errors import ServerMissing

    try:
        return server_of(config)
    except ServerMissing:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="colony-doctor-")))
        return stack.enter_context(EmbeddedServer.start(home)).url


def _write(diagnosis: "Diagnosis") -> None:
    state = click.style(f"{diagnosis.state:8}", fg=_COLOURS[diagnosis.state])
    click.echo(f"{state}{diagnosis.what}: {diagnosis.found}")
