"""Up: a whole colony from one command: a server, a tree, and every role.

Router, worker and HTTP interface share one event loop; further workers get a process each. All of
it ends together.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from colony.access import Access
from colony.access.status import Status
from colony.api.server import Server
from colony.config import Config
from colony.embedded import EmbeddedServer
from colony.errors import ServerUnavailable
from colony.keys import Keys
from colony.link import check_server
from colony.pace import Pace
from colony.roles import Router, Worker
from colony.serving import Service, serve_until_stopped
from colony.topology.model import TopologySpec
from colony.worker_processes import WorkerProcesses

CHECK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to run: a tree and where it lies, and how many workers beside the one in here.

    `address` is None where no HTTP interface is wanted. Where a cell runs as a job, `job_processes`
    take the jobs.
    """

    spec: TopologySpec
    root: Path
    environment: Mapping[str, str]
    address: tuple[str, int] | None = None
    more_workers: int = 0
    job_processes: int = 1


def server_for(config: Config) -> AbstractContextManager[EmbeddedServer | None]:
    """The embedded server, running inside the context; none where the settings name a server."""
    return EmbeddedServer.start(config.home) if config.redis is None else nullcontext()


async def run(
    config: Config,
    url: str,
    plan: Plan,
    *,
    server: EmbeddedServer | None,
    ready: Callable[[Status, str | None], None],
) -> None:
    """Apply the tree and serve until SIGINT or SIGTERM; fails when `server` ends before.

    `ready` is called once, with the status as soon as messages are handled or it is known why some
    will not be, and with the address of the HTTP interface.
    """
    async with Access(url, config.name) as access:
        await check_server(access.link)
        await access.publication.publish(plan.spec)
    keys, pace = Keys(config.name), pace_of(config)
    worker = Worker(url, keys, pace, environment=plan.environment, root=plan.root, rq_url=config.rq)
    services: list[Service] = [Router(url, keys, pace), worker]
    address = None
    if plan.address is not None:
        host, port = plan.address
        http = Server(url, config.name, host=host, port=port, principals=config.principals)
        address = http.address
        services += [http, *rpc_servers(config, url, host)]
    if plan.more_workers:
        services.append(WorkerProcesses(config, url, plan.root, plan.more_workers))
    if any(cell.cell.isolation == "job" for cell in plan.spec.cells):
        count = plan.job_processes
        services.append(WorkerProcesses(config, url, plan.root, count, role="jobs"))
    if server is not None:
        services.append(Watch(server))
    services.append(Readiness(url, config.name, lambda status: ready(status, address)))
    await serve_until_stopped(services)


def rpc_servers(config: Config, url: str, host: str) -> list[Service]:
    """The gRPC interface, where a port is set for it: what it needs is loaded only then."""
    if config.grpc_port is None:
        return []
    from colony.rpc.server import RpcServer

    return [
        RpcServer(url, config.name, host=host, port=config.grpc_port, principals=config.principals)
    ]


def pace_of(config: Config) -> Pace:
    """The times of a consumer as the settings have them."""
    return Pace.of(claim_idle_s=config.claim_idle_s, drain_s=config.drain_s)


class Readiness:
    """Waits until a colony can work, or until it is known why it cannot, and tells once."""

    def __init__(self, url: str, name: str, tell: Callable[[Status], None]) -> None:
        self._access = Access(url, name)
        self._tell = tell
        self._stopping = asyncio.Event()

    async def serve(self) -> None:
        """It was told when this returns, unless it was stopped before."""
        async with self._access:
            while not self._stopping.is_set():
                status = await self._status()
                if status and (
                    not status.problems or status.server or any(c.failures for c in status.cells)
                ):
                    self._tell(status)
                    return
                await asyncio.sleep(CHECK_S)

    def stop(self) -> None:
        """Wait no longer."""
        self._stopping.set()

    async def _status(self) -> Status | None:
        try:
            return await self._access.status()
        except ServerUnavailable:
            return None


class Watch:
    """Fails when the embedded server ends, because nothing can go on without it."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._stopping = asyncio.Event()

    async def serve(self) -> None:
        """Raises ServerUnavailable when the server has ended; returns when it was stopped."""
        while not self._stopping.is_set():
            if not self._server.running:
                raise ServerUnavailable(detail=f"the embedded server in {self._server.data} ended")
            await asyncio.sleep(CHECK_S)

    def stop(self) -> None:
        """Watch no longer."""
        self._stopping.set()
