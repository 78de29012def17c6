"""What a handler is given of the params of its cell, and what is found before it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from colony.agent.in_hand import RunInHand
from colony.agent.record import RunRecord, SessionRecord
from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.errors import NoRun, TopologyError
from colony.testing.host import RecordingHost
from colony.tool import tool
from colony.topology.load import load
from workers.code import Code
from workers.code.given import params_model

if TYPE_CHECKING:
    from nowhere import Hidden


class Params(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: Annotated[int, Field(ge=1)] = 3
    names: tuple[str, ...] = ()
    prices: dict[str, int] = Field(default_factory=dict)

    made: int = 0

    @field_validator("made")
    @classmethod
    def _counted(cls, made: int) -> int:
        MADE.append(made)
        return made


MADE: list[int] = []


def modelled(envelope: Envelope, params: Params) -> Emission:
    return Emission.say("done", kind=type(params).__name__, limit=params.limit)


async def modelled_async(envelope: Envelope, params: Params) -> Emission:
    return modelled(envelope, params)


class Broken(BaseModel):
    limit: int

    @field_validator("limit")
    @classmethod
    def _looked_up(cls, limit: int) -> int:
        return {1: 2}[limit]


def broken(envelope: Envelope, params: Broken) -> None: ...


def mapped(envelope: Envelope, params: Mapping[str, JsonValue]) -> Emission:
    return Emission.say("done", keys=sorted(params))


def bare(envelope, params) -> None: ...  # type: ignore[no-untyped-def]


def annotated(envelope: Envelope, params: Annotated[Params, "as a whole"]) -> None: ...


def hidden(envelope: Envelope, params: Hidden) -> None: ...


def alone(envelope: Envelope) -> None: ...


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@decorated
def wrapped(envelope: Envelope, params: Params) -> None: ...


class Instance:
    def __call__(self, envelope: Envelope, params: Params) -> None: ...


instance = Instance()


@tool
def priced(text: str, params: Params) -> int:
    """A tool whose second argument is a model."""
    return params.limit


@tool
async def priced_async(text: str, params: Params) -> int:
    """The same, async."""
    return params.limit


ENVELOPE = Envelope(
    id="m-1", trace_id="t-1", target="/cell", ttl=7, body=Body.of(Entry.say("user", "hello"))
)


def host(handler: str, isolation: str | None = None, **params: Any) -> RecordingHost:
    name = handler if ":" in handler else f"{__name__}:{handler}"
    return RecordingHost.of("code", {"handler": name, **params}, isolation=isolation)


async def answers(recording: RecordingHost, *, times: int = 1) -> list[Emission]:
    cell = Code(Code.Params.model_validate(recording.spec.params))
    await cell.start(recording)
    try:
        return [one for _ in range(times) for one in await cell.handle(ENVELOPE, recording)]
    finally:
        await cell.stop()


@pytest.mark.parametrize(
    "handler", [modelled, modelled_async, annotated, wrapped, instance, Instance().__call__]
)
def test_an_annotation_says_what_a_handler_is_given(
    handler: Callable[..., Awaitable[Any] | Any],
) -> None:
    assert params_model(handler) is Params


@pytest.mark.parametrize("handler", [mapped, bare, hidden, alone, priced, priced_async, print, int])
def test_without_one_a_handler_takes_any_params(handler: Callable[..., Any]) -> None:
    assert params_model(handler) is None


@pytest.mark.parametrize("isolation", [None, "process", "job"])
@pytest.mark.parametrize("name", ["modelled", "modelled_async"])
async def test_a_handler_is_given_the_model_it_names(name: str, isolation: str | None) -> None:
    found = await answers(host(name, isolation, limit=7, max_concurrency=2))

    assert [emission.hop for emission in found] == [{"kind": "Params", "limit": 7}]


async def test_the_model_is_made_once_and_not_for_each_envelope() -> None:
    MADE.clear()

    await answers(host("modelled", made=5), times=3)

    assert MADE == [5]


async def test_a_handler_without_a_model_is_given_the_params_as_they_are_written() -> None:
    (emission,) = await answers(host("mapped", limit=7, external_timeout_ms=5_000))

    assert emission.hop == {"keys": ["external_timeout_ms", "limit"]}


@pytest.mark.parametrize("isolation", [None, "process"])
async def test_a_cell_whose_handler_refuses_its_params_is_not_started(
    isolation: str | None,
) -> None:
    with pytest.raises(TopologyError, match="limit"):
        await answers(host("modelled", isolation, limit=0))


def test_each_param_that_a_handler_does_not_take_is_a_flaw_at_its_place() -> None:
    recording = host("modelled", limit="many", lmit=2, prices={"north": "dear"}, max_concurrency=2)

    flaws = Code.flaws(recording.spec)

    assert {(flaw.code, flaw.steps, flaw.severity) for flaw in flaws} == {
        ("invalid_value", ("params", "limit"), "error"),
        ("invalid_value", ("params", "prices", "north"), "error"),
        ("unknown_key", ("params", "lmit"), "error"),
    }


def test_a_model_that_raises_is_a_flaw() -> None:
    (flaw,) = Code.flaws(host("broken", limit=7).spec)

    assert (flaw.code, flaw.steps) == ("invalid_value", ("params",))
    assert flaw.sentence == "The model of the handler's params raised KeyError: 7."


@pytest.mark.parametrize("handler", ["mapped", "bare", "priced"])
def test_a_handler_without_a_model_takes_what_it_is_given(handler: str) -> None:
    assert [*Code.flaws(host(handler, anything=1).spec)] == []


def test_a_text_that_came_out_of_a_variable_is_read_as_a_number() -> None:
    assert [*Code.flaws(host("modelled", limit="7", names=["a"]).spec)] == []


MODULE = """
from pydantic import BaseModel

class Params(BaseModel, extra="forbid"):
    limit: int

def buy(envelope, params: Params):
    return None
"""


def test_a_tree_names_the_param_that_the_module_beside_it_does_not_take(tmp_path: Path) -> None:
    (tmp_path / "main/buyer").mkdir(parents=True)
    (tmp_path / "buying_with_a_model.py").write_text(MODULE)
    (tmp_path / "main/config.json").write_text(
        '{"cell": {"type": "hive"}, "params": {"graph": {"edges":'
        ' [{"from": "./buyer", "to": "./buyer"}]}}}'
    )
    (tmp_path / "main/buyer/config.json").write_text(
        '{"cell": {"type": "code"}, "params": {"handler": "buying_with_a_model:buy", "limt": 2}}'
    )

    found = [f for f in load(tmp_path, environment={}).findings if f.severity == "error"]

    assert [(f.file, f.json_path, f.code) for f in found] == [
        ("main/buyer/config.json", "$.params.limit", "missing_key"),
        ("main/buyer/config.json", "$.params.limt", "unknown_key"),
    ]


# The run of the envelope


def counting(envelope: Envelope, params: Mapping[str, JsonValue], run: RunInHand) -> Emission:
    run.count(turns=1)
    if envelope.hop.get("broken"):
        raise ValueError("broken")
    return Emission.say("done", turn=run.record.turn)


def a_run() -> RunInHand:
    record = RunRecord(id="r", session="s", agent="a", kind="prompt", started_at=0, turn=3)
    session = SessionRecord(
        id="s", agent="a", owner="", state="running", created_at=0, updated_at=0
    )
    return RunInHand(record, session)


async def counted(run: RunInHand | None, **hop: JsonValue) -> Emission:
    host = RecordingHost.of("code", {"handler": f"{__name__}:counting"}, run=run)
    cell = Code(Code.Params(handler=f"{__name__}:counting"))
    await cell.start(host)
    envelope = Envelope(
        id="e", trace_id="r", target="/cell", ttl=9, hop=hop, body=Body.of(Entry.say("user", "x"))
    )
    (emission,) = await cell.handle(envelope, host)
    await cell.stop()
    return emission


async def test_a_handler_that_wants_its_run_is_given_it() -> None:
    run = a_run()

    emission = await counted(run)

    assert emission.hop["turn"] == 3
    assert run.changes.counts == {("run", "turns"): 1}


async def test_what_a_handler_meant_to_change_goes_with_its_failure() -> None:
    run = a_run()

    emission = await counted(run, broken=True)

    assert emission.hop["error_code"]
    assert not run.changes.any


async def test_a_handler_that_wants_a_run_has_none_of_a_plain_envelope() -> None:
    with pytest.raises(NoRun):
        await counted(None)
