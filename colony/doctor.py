"""The doctor: whether all that a tree needs is there, tried just now, a line for each thing."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from redis.exceptions import ResponseError

from colony.access import Access
from colony.cell import Cell
from colony.errors import CellError, ColonyError
from colony.host import Host
from colony.jobs.waiting import Jobs
from colony.keys import Keys
from colony.link import Link, server_facts
from colony.lua.registry import bind, scripts
from colony.topology.load import Loaded
from colony.topology.model import CellSpec, ToolDeclaration, Topology, TopologySpec
from colony.workshop import Hosted, Origin, Workshop

PROBE_S: Final = 30.0

# What cells are started as on a server that is there for them only.
TRIAL: Final = "trial"

State = Literal["ok", "warning", "failed"]

# What processes ask for beside what scripts do. Of EVAL the script that asks is the proof, and
# Redis 7.0 dies when a script asks for it.
_ASKED: Final = (
    "PING INFO TIME EXISTS GET GETRANGE SET STRLEN PEXPIRE"
    " HDEL HGET HGETALL HINCRBY HKEYS HMGET HSET LRANGE SADD SMEMBERS PUBLISH SUBSCRIBE"
    " XACK XADD XDEL XLEN XPENDING XRANGE XREAD XREADGROUP XREVRANGE XTRIM"
    " ZCARD ZRANGE ZREM ZREVRANGE ZSCAN"
)
_SUBCOMMANDS: Final = ("XGROUP CREATE", "XGROUP DELCONSUMER", "XINFO CONSUMERS", "XINFO GROUPS")
_CALLED = re.compile(rb"redis\.p?call\('(\w+)'")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found of one thing."""

    state: State
    what: str
    found: str

    def to_json(self) -> dict[str, str]:
        """The diagnosis as a JSON object."""
        return {"state": self.state, "what": self.what, "found": self.found}


async def examine(
    loaded: Loaded,
    url: str,
    name: str | None,
    *,
    root: Path,
    environment: Mapping[str, str],
    rq_url: str | None,
) -> AsyncIterator[Diagnosis]:
    """The tree, the server, what the colony `name` runs there, and each cell as it works here.

    Nothing is said of a colony where the server is none's, nor of job processes without `rq_url`.
    Every cell is started in this process with `environment` and tries what it reaches: a model is
    asked for one token. Nothing is published, and no cell makes envelopes of its own.
    """
    for diagnosis in _tree(loaded):
        yield diagnosis
    async with Access(url, name or TRIAL) as access:
        try:
            async for diagnosis in _server(access.link, access.keys.router()):
                yield diagnosis
            if name is not None:
                async for diagnosis in _colony(access, loaded.spec):
                    yield diagnosis
            if loaded.spec is not None:
                if rq_url is not None:
                    async for diagnosis in _jobs(loaded.spec, rq_url, access.keys):
                        yield diagnosis
                ward = _Ward(access.link, access.keys, environment=environment, root=root)
                async for diagnosis in _cells(ward, loaded.spec):
                    yield diagnosis
        except ColonyError as error:
            yield Diagnosis("failed", "server", f"{error.code}: {error}")
        except ResponseError as error:
            # A user that may not even ask.
            yield Diagnosis("failed", "server", str(error))


def commands() -> frozenset[str]:
    """Every Redis command that a colony gives."""
    called = {name for script in scripts().values() for name in _CALLED.findall(script.source)}
    return (
        frozenset((*_ASKED.split(), *_SUBCOMMANDS)) | {name.decode().upper() for name in called}
    ) - {"XGROUP", "XINFO"}


class _Ward(Workshop):
    """Cells that are started to be looked at: they tell nobody and begin nothing."""

    async def begin(self, cell: Cell, host: Host) -> None:
        """Start a cell, or give it up: the others are to be looked at as well."""
        try:
            async with asyncio.timeout(PROBE_S):
                await cell.start(host)
        except TimeoutError:
            raise CellError(detail=f"it has not started within {PROBE_S:.0f} s") from None

    def origin_of(self, cell: Cell, spec: CellSpec, directory: Path | None) -> Origin | None:
        """Nothing is born here."""
        return None

    async def announce(self, path: str, tools: Sequence[ToolDeclaration]) -> None:
        """Nobody hears of these tools."""


def _tree(loaded: Loaded) -> Iterator[Diagnosis]:
    for finding in loaded.findings:
        state: State = "failed" if finding.severity == "error" else "warning"
        yield Diagnosis(state, f"{finding.file} {finding.json_path}", finding.sentence)
    if loaded.spec is not None and not loaded.findings:
        yield Diagnosis("ok", "tree", f"{len(loaded.spec.cells)} cells, nothing to find")


async def _server(link: Link, key: str) -> AsyncIterator[Diagnosis]:
    facts = await server_facts(link)
    yield Diagnosis("ok", "server", f"{facts.version}, maxmemory-policy {facts.policy}")
    for problem in facts.problems:
        yield Diagnosis("failed", "server", problem)
    if not facts.durable:
        yield Diagnosis("warning", "server", "no append-only file: a restart loses what it held")
    _, refused = await link.run(bind("permitted", key=key, commands=sorted(commands())))
    if refused:
        told = ", ".join(command.decode() for command in refused)
        yield Diagnosis("failed", "ACL", f"this user may not: {told}")
    else:
        yield Diagnosis("ok", "ACL", f"this user may do all {len(commands())} commands")


async def _colony(access: Access, spec: TopologySpec | None) -> AsyncIterator[Diagnosis]:
    status = await access.status()
    if not status.version:
        yield Diagnosis("ok", "published", f"nothing yet as {status.name!r}: `colony apply` does")
        return
    if spec is None or spec.digest() != status.digest:
        detail = f"version {status.version} of {status.name!r} is another tree than this one"
        yield Diagnosis("warning", "published", detail)
    else:
        yield Diagnosis("ok", "published", f"version {status.version} of {status.name!r}")
    for problem in status.problems:
        yield Diagnosis("warning", "running", problem)


async def _jobs(spec: TopologySpec, url: str, keys: Keys) -> AsyncIterator[Diagnosis]:
    if all(cell.cell.isolation != "job" for cell in spec.cells):
        return
    jobs = Jobs(url, keys)
    try:
        if await jobs.attended():
            yield Diagnosis("ok", "jobs", f"a process takes those of the queue {jobs.queue}")
        else:
            detail = f"no process takes those of the queue {jobs.queue}: `colony jobs` is one"
            yield Diagnosis("warning", "jobs", detail)
    finally:
        await jobs.close()


async def _cells(ward: Workshop, spec: TopologySpec) -> AsyncIterator[Diagnosis]:
    try:
        await ward.follow(Topology.compile(spec))
        for path, why in sorted(ward.failed.items()):
            yield Diagnosis("failed", path, why)
        probes = {
            path: asyncio.create_task(_probe(path, hosted))
            for path, hosted in sorted(ward.cells.items())
        }
        for probe in probes.values():
            yield await probe
    finally:
        await ward.close()


async def _probe(path: str, hosted: Hosted) -> Diagnosis:
    what = f"{path} ({hosted.spec.cell.type})"
    try:
        async with asyncio.timeout(PROBE_S):
            return Diagnosis("ok", what, await hosted.cell.probe())
    except TimeoutError:
        return Diagnosis("failed", what, f"no answer within {PROBE_S:.0f} s")
    except ColonyError as error:
        return Diagnosis("failed", what, f"{error.code}: {error}")
    except Exception as error:  # A cell of the user's may raise anything.
        return Diagnosis("failed", what, f"{type(error).__name__}: {error}")
