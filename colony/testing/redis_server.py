"""A private Redis for tests, and everything a test may do to it.

It is a real server with its append-only file on, under the supervision that `colony up` uses: it
cannot outlive the test process.
"""

import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from colony.embedded import EmbeddedServer, Fsync


class RedisServer:
    """A server with a data directory of its own, which goes when the context is left."""

    def __init__(self, server: EmbeddedServer, binary: Path, fsync: Fsync, socket: bool) -> None:
        self._server = server
        self._binary = binary
        self._fsync: Fsync = fsync
        self._socket = socket

    @classmethod
    def start(cls, binary: Path, *, fsync: Fsync = "everysec", socket: bool = True) -> Self:
        """An empty server that answers, on a socket or on a free loopback port."""
        # Not where tests usually keep files: those paths are too long for a socket.
        data = Path(tempfile.mkdtemp(prefix="colony-"))
        server = EmbeddedServer.start(data, binary=binary, fsync=fsync, socket=socket)
        return cls(server, binary, fsync, socket)

    @property
    def url(self) -> str:
        """Where it is reached; after a restart the same on a socket, another on a port."""
        return self._server.url

    @property
    def pid(self) -> int:
        """The process of the server itself, not of its supervisor."""
        return self._server.pid

    @property
    def data(self) -> Path:
        """The directory with its append-only file and its log."""
        return self._server.data

    def flush(self) -> None:
        """Remove every key, in every database."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def kill(self) -> None:
        """Kill it as `kill -9` does; it is gone when this returns.

        Only with fsync `always` is every answered write on disk then: with `everysec` Redis holds
        writes back in memory while a sync is under way.
        """
        if self._server.running:
            os.kill(self.pid, signal.SIGKILL)
        self._server.wait()

    def halt(self) -> None:
        """Stop it cleanly and keep what it holds for `restart`."""
        if self._server.running:
            self.resume()
        self._server.stop()

    def restart(self) -> None:
        """Start it again on what it left behind; one that still runs is stopped cleanly first."""
        self.halt()
        self._server = EmbeddedServer.start(
            self.data, binary=self._binary, fsync=self._fsync, socket=self._socket
        )

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing is answered until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def cut_aof(self, count: int) -> None:
        """Take the last `count` bytes off the append-only file of a server that is not running."""
        if self._server.running:
            raise RuntimeError("a running server would write over the cut")
        os.truncate(self.aof, self.aof.stat().st_size - count)

    @property
    def aof(self) -> Path:
        """The part of the append-only file that is being written."""
        parts = (self.data / "appendonlydir").glob("*.incr.aof")
        return max(parts, key=lambda part: int(part.name.split(".")[-3]))

    def stop(self) -> None:
        """Stop it and remove everything it left. A repeat changes nothing."""
        self.halt()
        shutil.rmtree(self.data, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
