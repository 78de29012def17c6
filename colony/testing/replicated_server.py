"""A primary, its replicas and the sentinels that watch them, and everything a test may do to them.

Each is a real process on a loopback port, and none outlives the test process. Who leads changes as
it does anywhere: the sentinels find out, agree and promote.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from colony.testing.claims import block_until

SERVICE: Final = "main"
PATIENCE_S: Final = 30.0

# The shell holds the lifeline: when its standard input ends, because its owner is gone or wants it,
# so does the server, a frozen one too.
_ON_A_LIFELINE: Final = '"$@" >/dev/null 2>&1 </dev/null & echo $!; read -r _; kill -9 $!'


class Node:
    """One server process on a port of its own; what it holds stays when it is killed."""

    def __init__(self, command: list[str], folder: Path, port: int, password: str) -> None:
        self.port = port
        self.pid = 0
        self._command = command
        self._folder = folder
        self._password = password
        self._shell: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is reached, whoever leads."""
        return f"redis://:{self._password}@127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether it was started and not killed since."""
        return self._shell is not None

    def start(self) -> None:
        """It answers when this returns, as what it was when it ended."""
        self._shell = subprocess.Popen(
            ["sh", "-c", _ON_A_LIFELINE, "sh", *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._folder,
        )
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())
        _await(self.answers, f"the server on port {self.port} answers")

    def kill(self) -> None:
        """Kill it as `kill -9` does, frozen or not; it is gone when this returns."""
        if self._shell is not None:
            self._shell.communicate()
            self._shell = None

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing is answered until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def ask(self, *command: str | int) -> Any:
        """The answer of one command."""
        client = redis.Redis(
            host="127.0.0.1",
            port=self.port,
            password=self._password,
            socket_timeout=PATIENCE_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            protocol=2,
        )
        with client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def answers(self) -> bool:
        """Whether it answers, having loaded what it has."""
        with suppress(redis.ConnectionError, redis.TimeoutError):
            return bool(self.ask("PING"))
        return False

    def clients(self) -> list[str]:
        """Who is connected, but for sentinels and whoever asks."""
        found: str = self.ask("CLIENT", "LIST", "TYPE", "NORMAL")
        ours = (" cmd=client|list ", " name=sentinel-")
        return [line for line in found.splitlines() if not any(mark in line for mark in ours)]

    @property
    def leads(self) -> bool:
        """Whether it takes writes, by its own word."""
        return self._replication()["role"] == "master"

    @property
    def follows(self) -> bool:
        """Whether it follows another server and is in touch with it."""
        return self._replication().get("master_link_status") == "up"

    def _replication(self) -> dict[str, str]:
        found: dict[str, str] = self.ask("INFO", "replication")
        return found


class ReplicatedServer:
    """Servers, one of which leads, and three sentinels; all of it goes with the context."""

    def __init__(
        self, binary: Path, *, replicas: int, down_after_ms: int, failover_timeout_ms: int
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="colony-"))
        self._password, self._sentinel_password = secrets.token_hex(16), secrets.token_hex(16)
        ports = _free_ports(1 + replicas + 3)
        servers, sentinels = ports[:-3], ports[-3:]
        self.nodes = [self._server(binary, n, servers) for n in range(len(servers))]
        watched = self._watched(servers, down_after_ms, failover_timeout_ms)
        self.sentinels = [self._sentinel(binary, n, sentinels, watched) for n in range(3)]

    @classmethod
    def start(
        cls,
        binary: Path,
        *,
        replicas: int = 1,
        down_after_ms: int = 500,
        failover_timeout_ms: int = 3_000,
    ) -> Self:
        """Empty servers, of which all follow the first, watched by sentinels."""
        started = cls(
            binary,
            replicas=replicas,
            down_after_ms=down_after_ms,
            failover_timeout_ms=failover_timeout_ms,
        )
        try:
            for node in (*started.nodes, *started.sentinels):
                node.start()
            started.await_whole()
        except BaseException:
            started.stop()
            raise
        return started

    @property
    def url(self) -> str:
        """The address of the service, as the sentinels tell it."""
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        login = f":{self._password}@"
        own = f"sentinel_password={self._sentinel_password}"
        return f"redis+sentinel://{login}{places}/{SERVICE}?{own}"

    @property
    def primary(self) -> Node:
        """Who leads, by the word of most sentinels."""
        told = [self._told(sentinel) for sentinel in self.sentinels if sentinel.running]
        port = max(set(told), key=told.count)
        return next(node for node in self.nodes if node.port == port)

    @property
    def replica(self) -> Node:
        """Who leads next: of those that do not lead, the one that sentinels prefer."""
        return self.replicas[0]

    @property
    def replicas(self) -> list[Node]:
        """Who does not lead, in the order in which sentinels prefer them."""
        primary = self.primary
        return [node for node in self.nodes if node is not primary]

    @property
    def failing_over(self) -> bool:
        """Whether a sentinel has a failover under way that is not over yet."""
        return any("failover_in_progress" in self._state(each)["flags"] for each in self.sentinels)

    def await_leader(self, node: Node) -> None:
        """Return when `node` leads and every sentinel says so."""

        def leads() -> bool:
            everywhere = all(self._told(sentinel) == node.port for sentinel in self.sentinels)
            return everywhere and node.leads

        _await(leads, f"the server on port {node.port} leads")

    def await_whole(self) -> None:
        """Return when all servers run, all follow one of them, and all sentinels know all."""

        _await(lambda: all(node.follows for node in self.replicas), "the replicas follow")
        _await(lambda: all(map(self._watches, self.sentinels)), "the sentinels know each other")

    def fail_over(self) -> None:
        """Have a sentinel let the replica lead; the others learn of it a moment later."""
        sentinel, new = self.sentinels[0], self.replica

        def leads() -> bool:
            if self._told(sentinel) == new.port:
                return True
            # Refused while one is under way, or while it takes the replica for no good one: it
            # looks at it every ten seconds. One that was begun may be given up.
            with suppress(redis.ResponseError):
                sentinel.ask("SENTINEL", "FAILOVER", SERVICE)
            return False

        _await(leads, "a sentinel lets the replica lead")

    def part(self) -> None:
        """Cut the replicas off: what is written from now on reaches none of them until `join`."""
        for node in self.replicas:
            self.hold_up(node)
        self.primary.ask("CLIENT", "KILL", "TYPE", "replica")

    def hold_up(self, node: Node) -> None:
        """Let `node` follow nobody but whom it follows until `join`; a failover waits for it."""
        node.ask("CONFIG", "SET", "masterauth", "parted")

    def join(self) -> None:
        """Let every server that runs follow again."""
        for node in self.nodes:
            if node.running:
                node.ask("CONFIG", "SET", "masterauth", self._password)

    def stop(self) -> None:
        """Kill everything and remove what it left. A repeat changes nothing."""
        for node in (*self.sentinels, *self.nodes):
            node.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _told(self, sentinel: Node) -> int:
        return int(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def _watches(self, sentinel: Node) -> bool:
        replicas = str(len(self.nodes) - 1)
        wanted = {"flags": "master", "num-slaves": replicas, "num-other-sentinels": "2"}
        return wanted.items() <= self._state(sentinel).items()

    @staticmethod
    def _state(sentinel: Node) -> dict[str, str]:
        told = sentinel.ask("SENTINEL", "MASTER", SERVICE)
        return dict(zip(told[::2], told[1::2], strict=True))

    def _server(self, binary: Path, number: int, ports: list[int]) -> Node:
        port = ports[number]
        follow = f"replicaof 127.0.0.1 {ports[0]}\n" if number else ""
        config = (
            f"port {port}\nbind 127.0.0.1\nrequirepass {self._password}\n"
            f'masterauth {self._password}\nappendonly yes\nsave ""\nrepl-diskless-sync-delay 0\n'
            f"repl-timeout 5\nrepl-ping-replica-period 1\n"
            f"replica-priority {100 + number}\n{follow}"
        )
        return self._node(binary, port, config, self._password)

    def _watched(self, servers: list[int], down_after_ms: int, failover_timeout_ms: int) -> str:
        replicas = "".join(
            f"sentinel known-replica {SERVICE} 127.0.0.1 {port}\n" for port in servers[1:]
        )
        return (
            f"sentinel monitor {SERVICE} 127.0.0.1 {servers[0]} 2\n"
            f"sentinel auth-pass {SERVICE} {self._password}\n"
            f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}\n"
            f"sentinel failover-timeout {SERVICE} {failover_timeout_ms}\n{replicas}"
        )

    def _sentinel(self, binary: Path, number: int, ports: list[int], watched: str) -> Node:
        # They are told of each other: to find out for themselves takes them seconds.
        others = "".join(
            f"sentinel known-sentinel {SERVICE} 127.0.0.1 {port} {_name(n)}\n"
            for n, port in enumerate(ports)
            if n != number
        )
        config = (
            f"port {ports[number]}\nbind 127.0.0.1\nrequirepass {self._sentinel_password}\n"
            f"sentinel sentinel-pass {self._sentinel_password}\nsentinel myid {_name(number)}\n"
            f"{watched}{others}"
        )
        return self._node(binary, ports[number], config, self._sentinel_password, "--sentinel")

    def _node(self, binary: Path, port: int, config: str, password: str, *options: str) -> Node:
        folder = self._folder / str(port)
        folder.mkdir()
        # A file, because the servers themselves write down what becomes of them.
        file = folder / "redis.conf"
        file.write_text(f"{config}logfile server.log\n")
        return Node([str(binary), str(file), *options], folder, port, password)


def _name(number: int) -> str:
    return f"{number + 1:040x}"


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _await(claim: Callable[[], bool], what: str) -> None:
    def known_to_hold() -> bool:
        with suppress(redis.ConnectionError, redis.TimeoutError):
            return claim()
        return False

    block_until(known_to_hold, what, patience_s=PATIENCE_S)
