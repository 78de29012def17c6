"""Commands that run one role: `router`, `worker`, `api`."""

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from colony.cli.options import ROOT, reaches_rq, runs_colony, serves_grpc

if TYPE_CHECKING:
    from colony.config import Config
    from colony.serving import Service

LEAVE_S: Final = 5.0


@click.command()
@runs_colony
def router(config: "Config") -> None:
    """Run a router with its keeper, until SIGTERM; it drains first."""
    from colony.keys import Keys
    from colony.roles import Router
    from colony.servers import server_of
    from colony.up import pace_of

    serve(Router(server_of(config), Keys(config.name), pace_of(config)))


@click.command()
@click.option(
    "--cells", "patterns", multiple=True, metavar="GLOB", help="Host only these; repeatable."
)
@click.option(
    "--root",
    type=ROOT,
    help="The tree on this host: its folders, its .env and its Python modules are used.",
)
@click.option("--with-parent", is_flag=True, hidden=True, help="End when standard input does.")
@reaches_rq
@runs_colony
def worker(
    config: "Config", patterns: tuple[str, ...], root: Path | None, with_parent: bool
) -> None:
    """Run a worker that hosts cells, until SIGTERM; it drains first."""
    from colony.keys import Keys
    from colony.roles import Worker
    from colony.servers import server_of
    from colony.topology.substitution import variables
    from colony.up import pace_of

    if root is not None:
        import_from(root)
    service = Worker(
        server_of(config),
        Keys(config.name),
        pace_of(config),
        patterns=patterns or ("*",),
        environment=variables(root, os.environ) if root else None,
        root=root,
        rq_url=config.rq,
    )
    serve(service, Lifeline(service)) if with_parent else serve(service)


@click.command()
@click.option("--listen", "--api", "api_address", metavar="HOST:PORT", help="Where to listen.")
@serves_grpc
@runs_colony
def api(config: "Config") -> None:
    """Run the HTTP interface, until SIGTERM.

    An address that other hosts can reach needs COLONY_API_TOKEN, or COLONY_API_TOKENS_FILE.
    """
    from colony.api.server import Server
    from colony.servers import server_of
    from colony.up import rpc_servers

    host, port = config.address
    url, principals = server_of(config), config.principals
    http = Server(url, config.name, host=host, port=port, principals=principals)
    serve(http, *rpc_servers(config, url, host))


def import_from(root: Path) -> None:
    """Let handlers be found in the modules that lie beside a tree's `main/`."""
    sys.path.insert(0, str(root.resolve()))


class Lifeline:
    """Stops a service when standard input ends, because whoever held it is gone."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._stopping = asyncio.Event()

    async def serve(self) -> None:
        """Returns when standard input has ended or this was stopped."""
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._read)
        await self._stopping.wait()
        loop.remove_reader(sys.stdin.fileno())

    def stop(self) -> None:
        """Look no longer."""
        self._stopping.set()

    def _read(self) -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            self.stop()
            self._service.stop()


def serve(*services: "Service") -> None:
    """Run services until a signal asks for their end."""
    from colony.log import get_logger
    from colony.serving import serve_until_stopped

    async def run() -> None:
        status = 1
        try:
            await serve_until_stopped(services)
            get_logger("colony.serving").info("stopped")
            status = 0
        finally:
            _leave_within(LEAVE_S, status)

    asyncio.run(run())


def _leave_within(seconds: float, status: int) -> None:
    # Python waits for every thread before it ends, and a wedged handler's never does.
    leaving = threading.Timer(seconds, os._exit, (status,))
    leaving.daemon = True
    leaving.start()
