"""`up`: validate a tree, apply it and run every role."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from colony.cli.options import ROOT, formatted, reaches_rq, runs_colony, serves_grpc
from colony.cli.roles import import_from
from colony.cli.tree import publishable, sinks

if TYPE_CHECKING:
    from pydantic import JsonValue

    from colony.access.status import Status
    from colony.config import Config


@click.command()
@click.argument("root", type=ROOT)
@click.option("--api", "api_address", metavar="HOST:PORT", help="Where HTTP is served.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Job processes, where a cell runs as a job.",
)
@serves_grpc
@sinks
@formatted
@reaches_rq
@runs_colony
def up(
    config: "Config", root: Path, workers: int, jobs: int, sinks: tuple[str, ...], output: str
) -> None:
    """Validate a tree, apply it and run every role, until Ctrl-C.

    Without --redis, a server of its own is started, whose data stays in --data.
    """
    from colony.log import get_logger
    from colony.topology.substitution import variables
    from colony.up import Plan, run, server_for

    import_from(root)
    plan = Plan(
        spec=publishable(root, sinks, hosted=True),
        root=root,
        environment=variables(root, os.environ),
        address=config.address,
        more_workers=workers - 1,
        job_processes=jobs,
    )

    def ready(status: "Status", address: str | None) -> None:
        _tell(status, address, output)

    with server_for(config) as server:
        url = server.url if server else config.redis
        assert url is not None, "there is a server, or the settings name one"
        asyncio.run(run(config, url, plan, server=server, ready=ready))
    get_logger("colony.serving").info("stopped")


def _tell(status: "Status", address: str | None, output: str) -> None:
    from colony.cli.screen import bad, counted, heading, write_json_line

    if output == "json":
        told: dict[str, JsonValue] = {
            "name": status.name,
            "version": status.version,
            "api": address,
            "problems": [*status.problems],
        }
        write_json_line(told)
        return
    cells = counted(len(status.cells), "cell")
    click.echo(f"{heading(status.name)} is up: {cells}, version {status.version}, {address}")
    for problem in status.problems:
        click.echo(bad(problem), err=True)
    click.echo("Ctrl-C ends it.")
