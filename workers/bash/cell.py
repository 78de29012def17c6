"""The cell type `bash`: one command of a shell in, what it wrote out.

A command that fails is a result like any other: a model reads why. Nothing it started outlives it.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field

from colony.cell import Cell
from colony.confinement.environment import plain_environment
from colony.confinement.folders import hold, remove_abandoned
from colony.confinement.limits import Limits
from colony.confinement.programs import Program, run
from colony.envelope import Emission, Envelope
from colony.errors import InvalidInput, ToolTimeout, Unreadable
from colony.host import Host
from colony.results import KEPT_BYTES
from colony.topology.findings import Flaw
from colony.topology.model import CellSpec, ToolDeclaration
from workers.bash.report import report
from workers.documents import Folder
from workers.named_folders import folder
from workers.tool_call import Answer, Arguments, KeepBytes, answer

# Linux takes no longer string as an argument of a program.
COMMAND_LIMIT = 131_072

_SCRATCH = "colony-bash-"

PositiveInt = Annotated[int, Field(ge=1)]


class Command(Arguments):
    """What is run."""

    command: Annotated[str, Field(min_length=1, description="The command, for /bin/sh -c.")]


class Bash(Cell):
    """Run a command and answer with what it wrote and how it ended.

    Each runs confined, without input, in `directory` or else in a folder of its own that is removed
    afterwards, with `env` and little else as its environment.
    """

    class Params(Cell.Params):
        """A relative `directory` is below the cell's own folder; the limits are of one command."""

        directory: str = ""
        env: dict[Annotated[str, Field(pattern=r"^[^=\x00]+$")], str] = Field(default_factory=dict)
        external_timeout_ms: PositiveInt = 60_000
        max_concurrency: PositiveInt = 4
        max_bytes: PositiveInt = 262_144
        keep_bytes: KeepBytes = KEPT_BYTES
        max_memory_bytes: PositiveInt = Limits().memory_bytes
        max_processes: PositiveInt = Limits().processes

    default_tool = ToolDeclaration(
        name="bash",
        description=(
            "Run a command with /bin/sh. Returns its output, its error output, and how it ended. "
            "Nothing keeps running after the command."
        ),
        parameters=Command.schema_of_tool(),
        read_only=False,
    )
    params: Params
    _folder: Folder | None

    def __init__(self, params: Params, *, way: str | None = None) -> None:
        super().__init__(params)
        self._way = way

    @classmethod
    def flaws(cls, spec: CellSpec) -> Iterator[Flaw]:
        """An absolute `directory` that is not there."""
        return folder(spec, "directory")

    async def start(self, host: Host) -> None:
        """Raises ConfigError where `directory` is missing on this host."""
        await asyncio.to_thread(remove_abandoned, _SCRATCH)
        written = self.params.directory
        self._folder = Folder.at(written, host.directory) if written else None

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """Answer one `{command}`."""
        return await answer(
            envelope, self._run, host=host, operation="bash", arguments=Command, timeout_ms=None
        )

    async def probe(self) -> str:
        """Run a command that does nothing."""
        done = await self._run(Command(command="true"))
        return f"runs commands, confined by {done.hop['confinement']}"

    async def _run(self, arguments: Command) -> Answer:
        if len(arguments.command.encode()) >= COMMAND_LIMIT or "\0" in arguments.command:
            detail = f"a command has fewer than {COMMAND_LIMIT} bytes and no NUL"
            raise InvalidInput(detail=detail)
        timeout_ms, max_bytes = self.params.external_timeout_ms, self.params.max_bytes
        keep_bytes = max(max_bytes, self.params.keep_bytes)
        try:
            async with _scratch() as scratch:
                program = self._program(arguments.command, scratch)
                finished = await run(program, timeout_s=timeout_ms / 1000, keep_bytes=keep_bytes)
        except OSError as error:
            raise Unreadable(detail=f"the command could not be run: {error}") from error
        found = report(finished, max_bytes)
        if finished.overdue:
            raise ToolTimeout(
                operation="bash", timeout_ms=timeout_ms, output=found.text, hop=found.hop
            )
        return Answer(found.text, found.hop, found.whole)

    def _program(self, command: str, scratch: Path) -> Program:
        params = self.params
        return Program(
            argv=("/bin/sh", "-c", command),
            directory=self._folder.root if self._folder else scratch,
            environment={
                **plain_environment(os.environ),
                "HOME": str(scratch),
                "TMPDIR": str(scratch),
                **params.env,
            },
            limits=Limits(
                memory_bytes=params.max_memory_bytes,
                processes=params.max_processes,
                # A backstop: every core for as long as the command may take.
                cpu_s=(os.cpu_count() or 1) * (params.external_timeout_ms // 1000 + 1),
            ),
            way=self._way,
        )


@asynccontextmanager
async def _scratch() -> AsyncIterator[Path]:
    folder = tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True)
    held = hold(Path(folder.name))
    try:
        yield Path(folder.name)
    finally:
        os.close(held)
        with suppress(RecursionError):  # a tree that deep is left to whoever cleans the host
            await asyncio.to_thread(folder.cleanup)
