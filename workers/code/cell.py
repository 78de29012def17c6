"""The code cell: a Python function or a script handles each envelope.

A failure of either leaves the cell by its own edges, as one emission with `hop.error_code`. What a
program emits for one envelope leaves as a whole or, where it breaks the contract, not at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Protocol, Self

from pydantic import ConfigDict, Field, JsonValue, ValidationError, model_validator

from colony.body import explain
from colony.cell import QUICK, Cell
from colony.envelope import Emission, Envelope
from colony.errors import TopologyError
from colony.host import Host
from colony.topology import documents
from colony.topology.findings import NOT_IMPORTABLE, Flaw
from colony.topology.model import CellSpec, Isolation, ToolDeclaration
from workers.code.contract import check
from workers.code.given import given, params_model, wants_run
from workers.code.handler import Function, InlineHandler, load
from workers.code.isolated import IsolatedHandler
from workers.code.outcome import Failure, Outcome
from workers.code.script import ScriptProgram, locate
from workers.code.zygote import Script

SOURCES = ("handler", "script_inline", "script_path")

PositiveInt = Annotated[int, Field(ge=1)]


class Program(Protocol):
    """What a code cell runs for each envelope."""

    async def run(self, envelope: Envelope, host: Host) -> Outcome:
        """What the program gives for `envelope`."""

    def close(self) -> None:
        """Nothing of the program runs afterwards that can be stopped."""


class Code(Cell):
    """Run a program on each envelope and emit what it gives."""

    class Params(Cell.Params):
        """Exactly one source; keys beyond these are for the program."""

        model_config = ConfigDict(frozen=True, extra="allow")
        __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

        handler: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")] | None = None
        script_inline: str | None = None
        script_path: str | None = None
        runner: Literal["python3"] | None = None
        external_timeout_ms: PositiveInt = 60_000
        max_concurrency: PositiveInt = 4

        @model_validator(mode="after")
        def _has_one_source(self) -> Self:
            given = [name for name in SOURCES if getattr(self, name) is not None]
            if len(given) != 1:
                raise ValueError(f"exactly one of {', '.join(SOURCES)} is needed")
            if self.runner is not None and self.handler is not None:
                raise ValueError("a runner goes with a script, not with a handler")
            return self

        def for_program(self) -> dict[str, JsonValue]:
            """The params as they are written, without the sources."""
            return self.model_dump(exclude_unset=True, exclude=set(SOURCES))

        def for_handler(self, function: Function) -> dict[str, JsonValue]:
            """As for any program; for one with a model only what is not the cell's own."""
            return self.for_program() if params_model(function) is None else self.model_extra or {}

    isolations: ClassVar[tuple[Isolation, ...]] = ("inline", "process", "job")
    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._program: Program | None = None

    @property
    def prefetch(self) -> int:
        """A handler is quick: its process reads ahead, so that commits come in batches."""
        return self.max_concurrency if self.params.handler is None else QUICK

    def killed_after_ms(self, limit_ms: int) -> int:
        """In a process of its own a program has the time of its cell, and no more."""
        return min(limit_ms, self.params.external_timeout_ms)

    @classmethod
    def declare(cls, params: Mapping[str, JsonValue]) -> ToolDeclaration | None:
        """What the handler declares of itself, where it is a tool that can be imported here."""
        handler = params.get("handler")
        if not isinstance(handler, str):
            return None
        try:
            declared = getattr(load(handler), "declaration", None)
        except TopologyError:
            return None
        return declared if isinstance(declared, ToolDeclaration) else None

    @classmethod
    def flaws(cls, spec: CellSpec) -> Iterator[Flaw]:
        """An isolation that is not to be had here, a handler that cannot be loaded, and what the
        model of its params refuses."""
        handler, isolation = spec.params.get("handler"), spec.cell.isolation
        problem = _isolation_problem(isolation, script=handler is None)
        if problem is not None:
            yield Flaw("isolation_unavailable", _sentence(problem), ("cell", "isolation"))
        if isinstance(handler, str):
            try:
                yield from _refused(load(handler), cls.Params.model_validate(spec.params))
            except TopologyError as error:
                steps = ("params", "handler")
                sentence = _sentence(str(error.facts["detail"]))
                yield Flaw(NOT_IMPORTABLE, sentence, steps, severity="warning")

    async def start(self, host: Host) -> None:
        """The program is loaded; raises TopologyError where it cannot be."""
        isolation = host.spec.cell.isolation
        problem = _isolation_problem(isolation, script=self.params.handler is None)
        if problem is not None:
            raise TopologyError(detail=problem)
        if self.params.handler is not None:
            self._program = await self._handler(self.params.handler, apart=isolation == "process")
        else:
            self._program = await self._script(host)

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """What the program gives, or one error emission."""
        assert self._program is not None, "a cell is started before it handles"
        outcome = await self._program.run(envelope, host)
        if not isinstance(outcome, Failure):
            outcome = check(outcome, host.spec.contract)
        if isinstance(outcome, Failure):
            # What it meant to change in its run goes with what it meant to emit.
            run = await host.run()
            if run is not None:
                run.forget()
            return [outcome.emission(envelope)]
        return outcome

    async def stop(self) -> None:
        """The program is closed."""
        if self._program is not None:
            self._program.close()
            self._program = None

    async def _handler(self, name: str, *, apart: bool) -> Program:
        function = load(name)
        params, timeout_ms = self.params.for_handler(function), self.params.external_timeout_ms
        try:
            found = given(function, params)
        except ValidationError as error:
            detail = f"the handler {name!r} does not take its params: {explain(error)}"
            raise TopologyError(detail=detail) from None
        if apart and wants_run(function):
            raise TopologyError(detail=f"the handler {name!r} is given its run, and runs inline")
        if apart:
            return await IsolatedHandler.start(name, params, timeout_ms=timeout_ms)
        return InlineHandler(
            function, found, timeout_ms=timeout_ms, concurrency=self.params.max_concurrency
        )

    async def _script(self, host: Host) -> Program:
        directory = host.directory or Path("/")
        if self.params.script_inline is not None:
            script = Script(self.params.script_inline, directory)
        else:
            written = self.params.script_path or ""
            found = locate(host.spec.files, written, directory)
            if found is None:
                raise TopologyError(detail=f"script_path {written!r} names no file of the cell")
            script = found
        return await ScriptProgram.start(
            script, self.params.for_program(), timeout_ms=self.params.external_timeout_ms
        )


def _isolation_problem(isolation: Isolation | None, *, script: bool) -> str | None:
    if isolation == "inline" and script:
        return "a script always runs in a process of its own"
    return None


def _refused(function: Function, params: Code.Params) -> Iterator[Flaw]:
    written = params.for_handler(function)
    try:
        given(function, written)
    except ValidationError as error:
        for flaw in documents.flaws(error, written):
            yield replace(flaw, steps=("params", *flaw.steps))
    except Exception as error:  # A validator is foreign code: it may raise anything.
        told = f"the model of the handler's params raised {type(error).__name__}: {error}"
        yield Flaw("invalid_value", _sentence(told), ("params",))


def _sentence(detail: str) -> str:
    return f"{detail[:1].upper()}{detail[1:].rstrip('.')}."
