"""The system state: who may write what of it, and what a message leaves behind."""

from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.errors import BodyError
from colony.testing.host import RecordingHost
from workers.llm import Llm
from workers.llm.system_state import Limits, parse, render

STATE = {"system.a.x": "1", "system.a.y": "2", "system.ab": "3", "system.c": "4"}


def envelope(**slots: Any) -> Envelope:
    body = Body.model_validate(slots)
    return Envelope(id="m-1", trace_id="t-1", target="/cell", ttl=9, body=body)


async def handle(host: RecordingHost, *arriving: Envelope) -> list[Emission]:
    """The emissions for the last of `arriving`, each handled as an envelope of its own."""
    cell = Llm(Llm.Params.model_validate(host.spec.params))
    await cell.start(host)
    emissions: list[Emission] = []
    for one in arriving:
        emissions = [*await cell.handle(one, host.next_envelope())]
    await cell.stop()
    return emissions


def host_of(**params: Any) -> RecordingHost:
    return RecordingHost.of("llm", {"provider": "scripted", "script": [{"text": "x"}], **params})


QUESTION = (Entry.say("user", "What is it?"),)


# The write gate


def gate(*writable: str) -> Limits:
    return Limits(max_slots=9, max_leaf_bytes=100, writable=writable)


@pytest.mark.parametrize(
    "system",
    [
        {"a": {"x": {"text": "9"}}},
        {"a": {"x": {"deeper": {"text": "9"}}}},
        {"a": {"x": {"$replace": True}}},
        {"c": {"text": ""}},
        {"c": {"$replace": True, "new": {"text": "9"}}},
    ],
)
def test_what_is_at_or_below_a_writable_path_may_change(system: dict[str, Any]) -> None:
    gate("a.x", "c").check(parse(system), STATE)


@pytest.mark.parametrize(
    "system",
    [
        {"a": {"y": {"text": "9"}}},
        {"ab": {"text": "9"}},
        {"a": {"text": "9"}},
        {"a": {"$replace": True}},
        {"$replace": True},
        {"a": {"x": {"text": "9"}, "y": {"$replace": True}}},
        {"a.x": {"text": "9"}},
        {"tools": {"t": {"text": ""}}},
    ],
)
def test_nothing_beside_or_above_a_writable_path_may_change(system: dict[str, Any]) -> None:
    with pytest.raises(BodyError):
        gate("a.x", "c").check(parse(system), STATE)


def test_everything_may_change_where_nothing_is_named() -> None:
    gate().check(parse({"$replace": True, "new": {"text": "9"}}), STATE)


def test_a_leaf_is_measured_in_bytes_and_not_in_characters() -> None:
    gate().check(parse({"a": {"text": "ä" * 50}}), {})
    with pytest.raises(BodyError):
        gate().check(parse({"a": {"text": "ä" * 51}}), {})


def test_texts_of_tools_count_as_slots_and_params_do_not() -> None:
    two = Limits(max_slots=2, max_leaf_bytes=100, writable=())
    state = {"system.tools.t": "{}", "params.model": '"m"', "params.temperature": "0"}

    two.check(parse({"a": {"text": "1"}}), state)
    with pytest.raises(BodyError):
        two.check(parse({"a": {"text": "1"}, "b": {"text": "2"}}), state)


async def test_a_write_that_the_gate_refuses_fails_the_whole_message() -> None:
    host = host_of(system_writable=["a"])

    (emission,) = await handle(
        host,
        envelope(
            messages=QUESTION,
            system={"a": {"text": "mine"}, "b": {"text": "not mine"}},
            params={"temperature": 0},
        ),
    )

    assert emission.hop["error_code"] == "invalid_input"
    assert emission.body.messages == QUESTION
    assert host.states == {}


# What a message leaves behind


def test_a_key_with_a_dot_is_one_key_and_is_ordered_as_it_is_written() -> None:
    change = parse({"z.first": {"text": "Z"}, "a": {"b": {"text": "AB"}}, "a.b": {"text": "A.B"}})
    state = change.applied_to({})

    assert len(state) == 3
    assert render(state, ["z.first"]) == "Z\n\nAB\n\nA.B"


async def test_params_alone_change_the_state_and_emit_nothing() -> None:
    host = host_of()

    assert await handle(host, envelope(system={}, params={"model": "m-2"})) == []

    assert host.states["session"] == {"params.model": '"m-2"'}


async def test_clearing_the_system_leaves_the_params() -> None:
    host = host_of()

    await handle(
        host,
        envelope(params={"model": "m-2"}, system={"a": {"text": "1"}}),
        envelope(system={"$replace": True}),
    )

    assert host.states["session"] == {"params.model": '"m-2"'}


async def test_a_message_that_changes_nothing_writes_nothing() -> None:
    class Silent(RecordingHost):
        async def update_state(self, *_: Any, **__: Any) -> dict[str, str]:
            raise AssertionError("nothing was to be written")

    host = Silent.of("llm", host_of().spec.params)
    host.states["session"] = {"system.a": "1"}

    (emission,) = await handle(host, envelope(messages=QUESTION, system={"a": {"text": "1"}}))

    assert emission.body.entries[0].text == "x"


async def test_the_same_message_again_leaves_the_same_state() -> None:
    host = host_of()
    arriving = envelope(system={"a": {"$replace": True, "b": {"text": "1"}}})

    await handle(host, envelope(system={"a": {"c": {"text": "0"}}}), arriving)
    once = dict(host.states["session"])
    await handle(host, arriving)

    assert host.states["session"] == once == {"system.a.b": "1"}
