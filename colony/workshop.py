"""The workshop: the cells that one worker hosts, started and stopped as the topology changes."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from pydantic import JsonValue, ValidationError

from colony.announcements import Announcements, Tools
from colony.arguments import DeclaredTool
from colony.body import explain
from colony.cell import Cell, cell_type, tool_declaration
from colony.errors import ConfigError, ServerUnavailable
from colony.host import Host
from colony.hosting import LiveHost
from colony.keys import Keys
from colony.link import Link
from colony.log import get_logger
from colony.publication import POLL_S
from colony.sources import LiveSource, drive
from colony.topology.model import CellSpec, Isolation, ToolDeclaration, Topology, TopologySpec
from colony.topology.substitution import substitute

# A cell that does not stop must not keep its process from ending.
STOP_S: Final = 10.0

log = get_logger("colony.workshop")


@dataclass(frozen=True, slots=True)
class Hosted:
    """A cell that runs here. `published` is its description as it was published; `tool` is there if
    a model may call it, `origin` if it may make envelopes of its own. One whose handles run in
    other processes is not `started` here."""

    cell: Cell
    spec: CellSpec
    published: CellSpec
    directory: Path | None
    tools: tuple[ToolDeclaration, ...]
    tool: DeclaredTool | None
    gate: asyncio.Semaphore
    origin: "Origin | None" = None
    started: bool = True


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a cell makes envelopes of its own, and the task in which it does."""

    source: LiveSource
    task: asyncio.Task[None]

    async def stop(self) -> None:
        """Nothing more is born here, and another process may take over at once."""
        self.task.cancel()
        # One that will not be cancelled must not keep its process.
        await asyncio.wait([self.task], timeout=STOP_S)
        await self.source.close()


class Workshop:
    """The cells of a topology that match one of `patterns`, running in this process.

    `root` is the tree on this host, whose folders relative params name; without it a cell's
    published files are laid out in a temporary folder. A cell of an isolation that is in `apart` is
    only known here: its handles run in other processes, and it is not started in this one.
    """

    def __init__(
        self,
        link: Link,
        keys: Keys,
        *,
        patterns: tuple[str, ...] = ("*",),
        environment: Mapping[str, str] | None = None,
        root: Path | None = None,
        apart: Collection[Isolation] = (),
    ) -> None:
        self.cells: dict[str, Hosted] = {}
        self.failed: dict[str, str] = {}
        self.announcements = Announcements(link, keys)
        self._link = link
        self._keys = keys
        self._patterns = patterns
        self._environment = os.environ if environment is None else environment
        self._root = root
        self._apart = apart
        self._leaving: set[asyncio.Task[None]] = set()
        self._topology = Topology.compile(TopologySpec())

    @property
    def ready(self) -> bool:
        """Whether every cell that should run here does."""
        return not self.failed

    async def follow(self, topology: Topology) -> None:
        """Start the cells that are new or changed, and stop those that are gone or changed, each
        as soon as it has handled what it has in hand.

        A cell that cannot be started is not hosted; one error is logged for it. Where no cell is to
        run here, a warning is.
        """
        await self.announcements.refresh()
        self._topology = topology
        wanted = {path: spec for path, spec in topology.cells.items() if self._hosts(path)}
        for path, hosted in list(self.cells.items()):
            if wanted.get(path) != hosted.published:
                del self.cells[path]
                if path not in wanted:
                    self.announcements.disown(path)
                leaving = asyncio.create_task(_dismiss(hosted))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
        self.failed.clear()
        if topology.cells and not wanted:
            log.warning("no_cell_matches", cells=self._patterns, version=topology.version)
        for path, spec in wanted.items():
            if path not in self.cells:
                await self._start(spec, topology)
            else:
                # Which tools are in reach depends on edges and on other cells.
                self._retool(self.cells[path], topology)

    async def watch(self) -> None:
        """Offer what cells announce, here and elsewhere, to the models here, until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            # That the server is away is told by those who need it.
            with suppress(ServerUnavailable):
                await self.take_up()

    async def take_up(self) -> None:
        """Offer what was announced since to the models here."""
        if await self.announcements.refresh():
            self._retool_all()

    def facing(self, hosted: Hosted, hop: Mapping[str, JsonValue]) -> Hosted:
        """The cell as the tool that `hop.tool_name` names, where it announces its tools."""
        if hosted.tool is not None or not hosted.cell.announces:
            return hosted
        tools = self.announcements.of(hosted.spec.path)
        called = [tool for tool in tools if tool.declaration.name == hop.get("tool_name")]
        return replace(hosted, tool=called[0]) if called else hosted

    def is_apart(self, spec: CellSpec) -> bool:
        """Whether the handles of a cell run in other processes."""
        return spec.cell.isolation in self._apart

    async def close(self) -> None:
        """Stop every cell, whatever it still does, and remove what was laid out."""
        for leaving in self._leaving:
            leaving.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        for hosted in self.cells.values():
            await _stop(hosted)
        self.cells.clear()
        if "_laid_out" in self.__dict__:
            shutil.rmtree(self._laid_out, ignore_errors=True)

    def _hosts(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self._patterns)

    async def _start(self, published: CellSpec, topology: Topology) -> None:
        path = published.path
        try:
            tools = tools_within_reach(topology, path, self.announcements.of)
            params = substitute(published.params, self._environment)
            spec = published.model_copy(update={"params": params})
            kind = cell_type(spec.cell.type)
            cell = kind(_parse_params(kind, spec))
            directory = self._lay_out(spec)
            host = LiveHost(
                link=self._link,
                keys=self._keys,
                spec=spec,
                directory=directory,
                tools=tools,
                envelope=None,
                server=None,
                announce=partial(self.announce, path),
            )
            declaration = tool_declaration(spec)
            tool = DeclaredTool.of(declaration) if declaration else None
            if not self.is_apart(spec):
                await self.begin(cell, host)
        except Exception as error:  # A module of the user's may raise anything when it is imported.
            detail = f"{error}{self._hint(error)}"
            self.failed[path] = f"{type(error).__name__}: {detail}"
            log.error("cell_not_hosted", cell=path, detail=detail)
            return
        gate = asyncio.Semaphore(cell.max_concurrency)
        started = not self.is_apart(spec)
        origin = self.origin_of(cell, spec, directory) if started else None
        self.cells[path] = Hosted(
            cell, spec, published, directory, tools, tool, gate, origin, started
        )

    async def begin(self, cell: Cell, host: Host) -> None:
        """Start a cell here."""
        await cell.start(host)

    def origin_of(self, cell: Cell, spec: CellSpec, directory: Path | None) -> Origin | None:
        """Where a cell that was started makes envelopes of its own, and that it does so now."""
        source = LiveSource(
            link=self._link,
            keys=self._keys,
            spec=spec,
            directory=directory,
            topology=lambda: self._topology,
        )
        task = asyncio.create_task(drive(cell, source), name=f"source {spec.path}")
        return Origin(source, task)

    async def announce(self, path: str, tools: Sequence[ToolDeclaration]) -> None:
        """A cell here has these tools, for models here and elsewhere."""
        await self.announcements.announce(path, tools)
        self._retool_all()

    def _retool_all(self) -> None:
        for hosted in [*self.cells.values()]:
            self._retool(hosted, self._topology)

    def _retool(self, hosted: Hosted, topology: Topology) -> None:
        path = hosted.spec.path
        try:
            tools = tools_within_reach(topology, path, self.announcements.of)
        except Exception as error:  # The module of a tool may raise anything when it is imported.
            log.error("tools_unknown", cell=path, detail=str(error))
            return
        self.cells[path] = replace(hosted, tools=tools)

    def _hint(self, error: BaseException) -> str:
        missing = any(isinstance(e, ModuleNotFoundError) for e in (error, error.__cause__))
        if self._root is not None or not missing:
            return ""
        return "; a module of the tree's own is found with `--root`, which names the tree here"

    @cached_property
    def _laid_out(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="colony-cells-"))

    def _lay_out(self, spec: CellSpec) -> Path | None:
        if self._root is not None:
            own = self._root / "main" / spec.path.lstrip("/")
            if own.is_dir():
                return own
        if not spec.files:
            return None
        folder = self._laid_out / spec.path.lstrip("/")
        for name, text in spec.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder


async def _dismiss(hosted: Hosted) -> None:
    if hosted.origin is not None:
        await hosted.origin.stop()
    try:
        # Whoever waits at the gate was there first, and is handled yet.
        for _ in range(hosted.cell.max_concurrency):
            await hosted.gate.acquire()
    finally:
        await _stop(hosted)


async def _stop(hosted: Hosted) -> None:
    if hosted.origin is not None:
        await hosted.origin.stop()
    if not hosted.started:
        return
    try:
        async with asyncio.timeout(STOP_S):
            await hosted.cell.stop()
    except Exception as error:  # A cell of the user's may raise anything; it is gone all the same.
        detail = str(error) or type(error).__name__
        log.error("cell_stop_failed", cell=hosted.spec.path, detail=detail)


def tools_within_reach(
    topology: Topology, path: str, announced: Callable[[str], Tools]
) -> tuple[ToolDeclaration, ...]:
    """The tools that edges out of the cell at `path` lead to, directly or past one more cell.

    Or those out of the cell whose tools it `offers`. The cell in between is the one that hands each
    call of a model to its tool; hives are passed. A cell of a type that announces its tools has
    those of `announced`.
    """
    near = _reached(topology, topology.cells[path].offers or path)
    cells = {cell: None for first in near for cell in (first, *_reached(topology, first))}
    tools: dict[str, ToolDeclaration] = {}
    for cell in cells:
        for tool in _tools(topology.cells[cell], announced):
            # A provider refuses a request that offers one name twice.
            tools.setdefault(tool.name, tool)
    return tuple(tools.values())


def _tools(spec: CellSpec, announced: Callable[[str], Tools]) -> Iterator[ToolDeclaration]:
    declared = tool_declaration(spec)
    if declared is not None:
        yield declared
    elif cell_type(spec.cell.type).announces:
        yield from (tool.declaration for tool in announced(spec.path))


def _reached(topology: Topology, path: str) -> list[str]:
    found: list[str] = []
    ahead, seen = [path], {path}
    while ahead:
        for edge in topology.edges_from(ahead.pop()):
            target = edge.spec.target
            if target in topology.cells:
                found.append(target)
            elif target in topology.hives and target not in seen:
                seen.add(target)
                ahead.append(target)
    return found


def _parse_params(kind: type[Cell], spec: CellSpec) -> Cell.Params:
    try:
        return kind.Params.model_validate(spec.params)
    except ValidationError as error:
        raise ConfigError(detail=f"{spec.path}: {explain(error)}") from None
