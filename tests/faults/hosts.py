"""Hosts: network namespaces on a switch of their own, so that a test may cut their links.

No link and no address of this machine's own network is touched or used. A host sees the others and
itself; nothing beyond.
"""

import ctypes
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import redis

from colony.testing.claims import block_until

_PREFIX: Final = "colony"
_SWITCH: Final = "switch"
_CLONE_NEWNET: Final = 0x40000000
_PR_SET_PDEATHSIG: Final = 1
_PORT: Final = 6379
_libc: Final = ctypes.CDLL(None, use_errno=True)


class NamespacesRefused(Exception):
    """The machine does not let this process make networks."""


class Host:
    """A network namespace with one link, to the switch."""

    def __init__(self, run: str, name: str, number: int) -> None:
        self.name = name
        self.address = f"10.0.0.{number}"
        self.namespace = f"{run}-{name}"
        self._number = number
        self._switch = f"{run}-{_SWITCH}"
        self._port = f"port{number}"

    @property
    def prefix(self) -> tuple[str, ...]:
        """What goes before a command that is to run on this host."""
        return ("ip", "netns", "exec", self.namespace)

    def plug_in(self) -> None:
        """Make the host, and its link to the switch."""
        _ip("netns", "add", self.namespace)
        peer = ("peer", "name", "eth0", "netns", self.namespace)
        _ip("-n", self._switch, "link", "add", self._port, "type", "veth", *peer)
        _ip("-n", self._switch, "link", "set", self._port, "master", "bridge", "up")
        _ip("-n", self.namespace, "address", "add", f"{self.address}/16", "dev", "eth0")
        _ip("-n", self.namespace, "link", "set", "lo", "up")
        _ip("-n", self.namespace, "link", "set", "eth0", "up")

    def pull_the_plug(self) -> None:
        """Take its own link down: the host has no route, and nobody is told of it."""
        _ip("-n", self.namespace, "link", "set", "eth0", "down")

    def swallow(self) -> None:
        """Let the switch lose every packet from and to the host, whose link stays up."""
        _ip("-n", self._switch, "link", "set", self._port, "nomaster")

    def readdress(self) -> None:
        """Give it another address: its connections are dead, and neither end is told of it."""
        _, _, times, _ = self.address.split(".")
        self.address = f"10.0.{int(times) + 1}.{self._number}"
        _ip("-n", self.namespace, "address", "flush", "dev", "eth0")
        _ip("-n", self.namespace, "address", "add", f"{self.address}/16", "dev", "eth0")

    def mend(self) -> None:
        """Undo either cut. A repeat changes nothing."""
        _ip("-n", self._switch, "link", "set", self._port, "master", "bridge")
        _ip("-n", self.namespace, "link", "set", "eth0", "up")

    @contextmanager
    def visited(self) -> Iterator[None]:
        """Within the block, the sockets that this thread makes are the host's."""
        with Path("/proc/thread-self/ns/net").open() as home:
            with Path("/run/netns", self.namespace).open() as there:
                _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())


class Network:
    """Hosts on one switch. What an earlier run left because it was killed goes first."""

    def __init__(self, *names: str) -> None:
        self._run = f"{_PREFIX}-{os.getpid()}"
        self.hosts = {name: Host(self._run, name, n) for n, name in enumerate(names, 1)}

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __enter__(self) -> Self:
        _remove_leftovers()
        switch = f"{self._run}-{_SWITCH}"
        try:
            _ip("netns", "add", switch)
            _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", switch, "link", "set", "bridge", "up")
            for host in self.hosts.values():
                host.plug_in()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def mend(self) -> None:
        """Undo every cut."""
        for host in self.hosts.values():
            host.mend()

    def remove(self) -> None:
        """Remove the switch and the hosts; processes that still run there lose their network."""
        _remove(name for name in _namespaces() if name.startswith(f"{self._run}-"))


@dataclass(frozen=True)
class Addresses:
    """Where a server is reached: by hosts, and by the test, whom no cut is to keep from looking."""

    network: str
    aside: str


@contextmanager
def server_on(host: Host, binary: Path) -> Iterator[Addresses]:
    """A server on a host, as one that other hosts use is run: on its address, with a password."""
    password = secrets.token_urlsafe()
    with tempfile.TemporaryDirectory(prefix="colony-") as data:
        listen = ["--bind", host.address, "--port", str(_PORT), "--protected-mode", "yes"]
        listen += ["--unixsocket", f"{data}/redis.sock", "--requirepass", password]
        kept = ["--dir", data, "--appendonly", "yes", "--save", "", "--logfile", "server.log"]
        process = subprocess.Popen(
            [*host.prefix, str(binary), *listen, *kept], preexec_fn=_end_with_parent
        )
        aside = f"unix://:{password}@{data}/redis.sock"
        try:
            _until_it_answers(aside)
            yield Addresses(f"redis://:{password}@{host.address}:{_PORT}", aside)
        finally:
            process.kill()
            process.wait()


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _until_it_answers(url: str) -> None:
    with redis.Redis.from_url(url) as client:

        def answers() -> bool:
            with suppress(redis.ConnectionError):
                return bool(client.ping())
            return False

        block_until(answers, "the server answers")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NamespacesRefused(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _namespaces() -> Sequence[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line]


def _remove(namespaces: Iterator[str]) -> None:
    for name in namespaces:
        with suppress(NamespacesRefused):
            _ip("netns", "delete", name)


def _remove_leftovers() -> None:
    for name in _namespaces():
        prefix, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if prefix == _PREFIX and pid.isdigit() and not Path("/proc", pid).exists():
            _remove(iter((name,)))
