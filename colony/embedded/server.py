"""A supervised server: how it is started, reached and stopped.

It listens on a socket that only its user may open, or on a loopback port with a password, and
never beyond this host. It ends with the process that started it, however that one ends. Every
write goes to an append-only file in the data directory, which one server at a time may use.

After an unclean start that file is rewritten before anybody works: Redis 7.0 leaves the first half
of a torn transaction in it, and would apply that half at the start after this one.
"""

import json
import os
import secrets
import socket as sockets
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from colony.embedded.binary import find_binary
from colony.embedded.watchdog import Answer, Order
from colony.errors import ConfigError, ServerUnfit

Fsync = Literal["always", "everysec", "no"]

WATCHDOG = Path(__file__).with_name("watchdog.py")
SOCKET_FILE = "redis.sock"
LOG_FILE = "server.log"
URL_FILE = "url"
PROGRAM_FILE = "program"
# The kernel allows 108 bytes on Linux and 104 on macOS, the final zero included.
LONGEST_SOCKET_PATH = 103
START_PATIENCE_S = 30.0
POLL_S = 0.005


class EmbeddedServer:
    """A running server. Leaving its context stops it with everything it held on disk."""

    def __init__(self, data: Path, url: str, watchdog: subprocess.Popen[bytes], pid: int) -> None:
        self.data = data
        self.url = url
        self.pid = pid
        self._watchdog = watchdog

    @classmethod
    def start(
        cls,
        data: Path,
        *,
        binary: Path | None = None,
        fsync: Fsync = "everysec",
        socket: bool = True,
    ) -> Self:
        """A server that answers and holds what `data` holds; the directory is made if missing.

        With `socket` it listens on a socket in `data`, unless that path is too long for one; else
        on a free loopback port. Blocks until it is ready. Raises ServerUnfit where it does not come
        up, or where `data` is in use; ConfigError where it cannot be written to.
        """
        data = data.absolute()
        try:
            program = binary or find_binary(os.environ, accustomed=_program_of(data))
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            url, listen = _address(data / SOCKET_FILE if socket else None)
            watchdog = _launch(data)
        except OSError as error:
            raise _unusable(data, error) from None
        try:
            answer = _order(watchdog, program, listen + _durability(fsync), data)
            with _connect(url) as client:
                _await_ready(client, watchdog, data)
                if answer["unclean"]:
                    _rewrite_log(client)
        except BaseException:
            _release(watchdog)
            raise
        _publish(data / URL_FILE, url)
        (data / PROGRAM_FILE).write_text(str(program.absolute()), "utf-8")
        return cls(data, url, watchdog, answer["pid"])

    @property
    def running(self) -> bool:
        """Whether the server has not ended, by itself or otherwise."""
        return self._watchdog.poll() is None

    def stop(self) -> None:
        """End the server cleanly; it is gone when this returns. A repeat changes nothing."""
        if self.running and self._watchdog.stdin:
            (self.data / URL_FILE).unlink(missing_ok=True)
            with suppress(BrokenPipeError):
                self._watchdog.stdin.write(b"stop\n")
        self.wait()

    def wait(self) -> None:
        """Wait until the server is gone and its directory is free for another."""
        self._watchdog.wait()
        _release(self._watchdog)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def url_in(data: Path) -> str | None:
    """Where the server that uses `data` is reached; None where none was started, or it was stopped.

    A server that was killed leaves its last address behind: nobody answers there. Raises
    ConfigError where `data` cannot be read.
    """
    try:
        return (data / URL_FILE).read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(data, error) from None


def _program_of(data: Path) -> Path | None:
    try:
        return Path((data / PROGRAM_FILE).read_text("utf-8"))
    except FileNotFoundError:
        return None


def _unusable(data: Path, error: OSError) -> ConfigError:
    return ConfigError(
        detail=f"the data directory {data} cannot be used: {error.strerror}; "
        "name another with --data or COLONY_DATA"
    )


def _address(path: Path | None) -> tuple[str, str]:
    """The URL to reach the server at, and the configuration that makes it listen there."""
    if path and len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        listen = f"port 0\nunixsocket {path.name}\nunixsocketperm 700\n"
        return f"unix://{quote(str(path))}", listen
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Any user of this host can connect to a loopback port.
    password = secrets.token_hex(16)
    listen = f"bind 127.0.0.1\nport {port}\nrequirepass {password}\n"
    return f"redis://:{password}@127.0.0.1:{port}", listen


def _durability(fsync: Fsync) -> str:
    return (
        f'appendonly yes\nappendfsync {fsync}\nsave ""\nmaxmemory-policy noeviction\n'
        "daemonize no\nloglevel warning\n"
    )


def _launch(data: Path) -> subprocess.Popen[bytes]:
    """Start the process that starts the server and watches over it.

    In a session of its own, so that Ctrl-C at the terminal does not reach the server before its
    owner has drained.
    """
    with (data / LOG_FILE).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(WATCHDOG)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def _order(watchdog: subprocess.Popen[bytes], program: Path, config: str, data: Path) -> Answer:
    order: Order = {
        "binary": str(program.absolute()),
        "config": config,
        "data": str(data),
        "owner": os.getpid(),
    }
    assert watchdog.stdin
    assert watchdog.stdout
    watchdog.stdin.write(json.dumps(order).encode() + b"\n")
    line = watchdog.stdout.readline()
    if not line:
        raise _did_not_start(data)
    answer: Answer = json.loads(line)
    if "held_by" in answer:
        raise ServerUnfit(
            detail=f"{data} is in use by the server of process {answer['held_by']}; "
            "stop that one, or choose another directory by --data or --name"
        )
    return answer


def _connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url, retry=Retry(NoBackoff(), 0), socket_timeout=START_PATIENCE_S, decode_responses=True
    )


def _await_ready(client: redis.Redis, watchdog: subprocess.Popen[bytes], data: Path) -> None:
    """Return when the server answers. It may take as long as it wants to load what it has."""
    deadline = time.monotonic() + START_PATIENCE_S
    while watchdog.poll() is None:
        try:
            client.ping()
        except redis.BusyLoadingError:
            deadline = time.monotonic() + START_PATIENCE_S
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                break
        else:
            return
        time.sleep(POLL_S)
    raise _did_not_start(data)


def _did_not_start(data: Path) -> ServerUnfit:
    log = data / LOG_FILE
    last = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()][-3:]
    return ServerUnfit(detail=f"the server did not start; the end of {log}:\n" + "\n".join(last))


def _rewrite_log(client: redis.Redis) -> None:
    """Have the server write its log anew from what it loaded, so that nothing torn stays in it."""
    client.bgrewriteaof()
    while True:
        state = client.info("persistence")
        if not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]:
            break
        time.sleep(POLL_S)
    if state["aof_last_bgrewrite_status"] != "ok":
        raise ServerUnfit(detail="the server could not rewrite its append-only file")


def _publish(file: Path, url: str) -> None:
    """Leave the address, password included, where only this user can read it."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(url)


def _release(watchdog: subprocess.Popen[bytes]) -> None:
    """Let go of the lifeline, and wait for what that ends."""
    for pipe in (watchdog.stdin, watchdog.stdout):
        if pipe:
            pipe.close()
    watchdog.wait()
