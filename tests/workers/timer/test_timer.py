"""A timer fires each tick once, and lets calls change what it fires."""

import json
from dataclasses import replace
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.host import Mark
from colony.testing.host import RecordingHost
from colony.testing.source import RecordingSource
from workers.timer import Timer
from workers.timer.firing import Firing

MINUTE = 60_000
EVERY_MINUTE = {"cron": "0 * * * * *", "text": "tick"}


class Colony:
    """One timer in two processes, with one state and one clock that the test sets."""

    def __init__(self, **params: Any) -> None:
        self.params = Timer.Params.model_validate(params)
        self.timer = Timer(self.params, clock=lambda: self.one.now)
        self.host = RecordingHost.of("timer")
        leaves = self.host.states.setdefault("cell", {})
        self.one = RecordingSource(self.host.spec, leaves=leaves)
        shared = {"births": self.one.births, "marks": self.one.marks, "leaves": leaves}
        self.two = replace(self.one, **shared)
        self.firings = [self.firing(), self.firing()]

    def firing(self) -> Firing:
        return Firing(self.params.schedules, catch_up_ms=self.params.catch_up_ms)

    async def pass_at(self, now: int) -> int | None:
        """Both processes look what is due at `now`."""
        self.one.now = self.two.now = now
        await self.firings[0].fire(self.one)
        return await self.firings[1].fire(self.two)

    @property
    def fired(self) -> list[tuple[object, object, object]]:
        """Schedule, tick and number of each firing."""
        keys = "schedule_id", "scheduled_at", "iteration_n"
        return [tuple(born.emission.hop[key] for key in keys) for born in self.one.births]  # type: ignore[misc]

    async def call(self, envelope_id: str = "e", **arguments: Any) -> Emission:
        """The answer to one operation."""
        body = Body.of(Entry.call("c", arguments))
        envelope = Envelope(id=envelope_id, trace_id="t", target="/cell", ttl=9, body=body)
        host = self.host.next_envelope()
        # What the sources write is what the host reads.
        host.states["cell"] = {**self.one.leaves}
        (answer,) = await self.timer.handle(envelope, host)
        for leaves in (self.one.leaves,):
            leaves.clear()
            leaves.update(host.states["cell"])
        return answer


def text(answer: Emission) -> str:
    return answer.body.entries[0].text or ""


async def test_each_tick_fires_once_however_many_processes_look() -> None:
    colony = Colony(schedules={"m": EVERY_MINUTE})
    for now in range(30_000, 5 * MINUTE, 20_000):
        await colony.pass_at(now)

    assert colony.fired == [("m", n * MINUTE, n) for n in (1, 2, 3, 4)]


async def test_a_firing_tells_what_fired_when() -> None:
    colony = Colony(schedules={"m": {**EVERY_MINUTE, "name": "Minute"}})
    await colony.pass_at(30_000)
    await colony.pass_at(MINUTE + 5)

    (born,) = colony.one.births
    assert born.emission.body == Body.of(Entry.say("user", "tick"))
    event = born.emission.hop["event_id"]
    assert born.emission.hop == {
        "event_id": event,
        "schedule_id": "m",
        "schedule_name": "Minute",
        "scheduled_at": MINUTE,
        "fired_at": MINUTE + 5,
        "iteration_n": 1,
        "skipped_n": 0,
    }


async def test_a_pass_tells_when_the_next_tick_is_due() -> None:
    colony = Colony(schedules={"m": EVERY_MINUTE})

    assert await colony.pass_at(30_000) == 30_000
    assert await colony.pass_at(MINUTE) == MINUTE
    assert await Colony().pass_at(30_000) is None


async def test_a_process_that_comes_later_does_not_move_the_beginning() -> None:
    colony = Colony(schedules={"m": EVERY_MINUTE})
    colony.one.now = 59_999
    await colony.firings[0].fire(colony.one)
    colony.two.now = 60_001
    await colony.firings[1].fire(colony.two)

    assert colony.fired == [("m", MINUTE, 1)]


async def test_of_the_ticks_that_were_missed_the_newest_fires() -> None:
    colony = Colony(schedules={"m": EVERY_MINUTE})
    await colony.pass_at(30_000)
    colony.firings = [colony.firing(), colony.firing()]
    await colony.pass_at(10 * MINUTE + 1)

    assert colony.fired == [("m", 10 * MINUTE, 1)]
    assert colony.one.births[0].emission.hop["skipped_n"] == 9
    (told,) = colony.one.logged
    assert (told["event"], told["skipped"]) == ("ticks_skipped", 9)


async def test_a_tick_that_was_missed_for_too_long_is_counted_and_passed_over() -> None:
    hourly = {"cron": "0 0 * * * *", "text": "tick"}
    colony = Colony(schedules={"h": hourly}, catch_up_ms=MINUTE)
    await colony.pass_at(30_000)
    await colony.pass_at(182 * MINUTE)
    assert colony.fired == []
    assert [told["skipped"] for told in colony.one.logged] == [3]

    await colony.pass_at(240 * MINUTE)
    assert colony.fired == [("h", 240 * MINUTE, 1)]


async def test_a_process_with_an_old_mark_does_not_fire_again() -> None:
    colony = Colony(schedules={"m": EVERY_MINUTE})
    await colony.pass_at(30_000)
    mark = colony.one.marks.copy()
    await colony.pass_at(MINUTE)
    (name,) = mark

    # It read its mark before the other process fired.
    emission = colony.one.births[0].emission
    assert not await colony.two.birth(emission, mark=MINUTE, name=name, after=mark[name].reached)
    assert colony.one.marks[name] == Mark(MINUTE, 1)


async def test_a_tick_is_not_lost_to_a_process_that_was_late_with_an_older_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    colony = Colony(schedules={"m": EVERY_MINUTE})
    await colony.pass_at(30_000)
    birth, late = colony.one.birth, []

    async def overtaken(emission: Emission, **given: Any) -> bool:
        if not late:
            late.append(await birth(emission, **{**given, "mark": MINUTE}))
        return await birth(emission, **given)

    monkeypatch.setattr(colony.one, "birth", overtaken)
    await colony.pass_at(2 * MINUTE)

    assert [(born.mark, born.emission.hop["iteration_n"]) for born in colony.one.births] == [
        (MINUTE, 1),
        (2 * MINUTE, 2),
    ]


# Calls


async def test_a_schedule_is_added_fires_and_is_removed() -> None:
    colony = Colony()
    colony.one.now = 30_000
    answer = await colony.call(op="add", id="m", **EVERY_MINUTE)

    assert answer.hop["msg_type"] == "timer_op_ack"
    assert answer.body.entries[0].id == "c"
    assert json.loads(text(answer)) == {"add": {"id": "m", "next_at": MINUTE}}
    await colony.pass_at(MINUTE)
    assert colony.fired == [("m", MINUTE, 1)]

    assert text(await colony.call(op="remove", id="m")) == "removed m"
    await colony.pass_at(2 * MINUTE)
    assert colony.fired == [("m", MINUTE, 1)]


async def test_one_moment_fires_once() -> None:
    colony = Colony()
    await colony.call(op="add", id="once", at="1970-01-01T00:01:00Z", text="wake up")
    for now in range(0, 3 * MINUTE, 10_000):
        await colony.pass_at(now)

    assert colony.fired == [("once", MINUTE, 1)]
    await colony.pass_at(48 * 60 * MINUTE)
    assert (colony.one.leaves, colony.one.marks) == ({}, {})


async def test_what_is_added_while_no_process_looks_counts_from_then() -> None:
    colony = Colony()
    colony.one.now = 30_000
    await colony.call(op="add", id="m", **EVERY_MINUTE)
    await colony.pass_at(2 * MINUTE + 1)

    assert colony.fired == [("m", 2 * MINUTE, 1)]
    assert colony.one.births[0].emission.hop["skipped_n"] == 1


async def test_a_schedule_that_is_modified_has_its_new_time_and_keeps_the_rest() -> None:
    colony = Colony()
    await colony.call(op="add", id="m", name="Minute", **EVERY_MINUTE)
    await colony.pass_at(MINUTE)
    await colony.call("f", op="modify", id="m", cron="30 * * * * *")
    await colony.pass_at(2 * MINUTE)

    assert colony.fired == [("m", MINUTE, 1), ("m", MINUTE + 30_000, 1)]
    assert colony.one.births[1].emission.hop["schedule_name"] == "Minute"

    await colony.call("g", op="modify", id="m", at=5 * MINUTE, text="last")
    for minute in range(3, 8):
        await colony.pass_at(minute * MINUTE)
    assert colony.fired[2:] == [("m", 5 * MINUTE, 1)]
    assert colony.one.births[2].emission.body.entries[0].text == "last"


async def test_a_trigger_fires_at_once_and_once() -> None:
    colony = Colony(schedules={"m": EVERY_MINUTE})
    await colony.pass_at(10_000)
    assert text(await colony.call(op="trigger", id="m")) == "triggered m"
    await colony.pass_at(11_000)
    await colony.pass_at(12_000)

    assert colony.fired == [("m", 10_000, 1)]
    await colony.pass_at(MINUTE)
    assert colony.fired[1:] == [("m", MINUTE, 1)]


async def test_the_schedules_are_listed_with_their_next_tick() -> None:
    colony = Colony(schedules={"m": EVERY_MINUTE})
    await colony.call(op="add", id="once", at=5 * MINUTE, text="wake up")

    assert json.loads(text(await colony.call("f", op="list"))) == [
        {"id": "m", "cron": "0 * * * * *", "text": "tick", "next_at": MINUTE},
        {"id": "once", "at": 5 * MINUTE, "text": "wake up", "next_at": 5 * MINUTE},
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ({"op": "add", **EVERY_MINUTE}, "invalid_input", "needs the id"),
        ({"op": "add", "id": "m", **EVERY_MINUTE}, "invalid_input", "stays as it is"),
        ({"op": "add", "id": "d", **EVERY_MINUTE}, "invalid_input", "already"),
        ({"op": "add", "id": "x", "at": 1_000, "text": "t"}, "invalid_input", "has passed"),
        ({"op": "add", "id": "x", "text": "t"}, "invalid_input", "cron and at"),
        ({"op": "add", "id": "x", "cron": "0 0 0 30 2 *", "text": "t"}, "invalid_input", "never"),
        ({"op": "add", "id": "a b", **EVERY_MINUTE}, "invalid_input", "pattern"),
        ({"op": "modify", "id": "d", "at": 1_000}, "invalid_input", "has passed"),
        ({"op": "modify", "id": "x", **EVERY_MINUTE}, "not_found", "'x'"),
        ({"op": "modify", "id": "m", **EVERY_MINUTE}, "invalid_input", "stays as it is"),
        ({"op": "remove", "id": "x"}, "not_found", "'x'"),
        ({"op": "trigger", "id": "x"}, "not_found", "'x'"),
        ({"op": "stop", "id": "x"}, "invalid_input", "op"),
    ],
)
async def test_an_operation_that_cannot_be_done_says_why(
    arguments: dict[str, Any], code: str, why: str
) -> None:
    colony = Colony(schedules={"m": EVERY_MINUTE})
    await colony.call("d", op="add", id="d", **EVERY_MINUTE)
    before = dict(colony.one.leaves)
    colony.one.now = 10_000

    answer = await colony.call(**arguments)

    assert (answer.hop["msg_type"], answer.hop["error_code"]) == ("timer_op_error", code)
    assert answer.body.entries[0].is_error
    assert why in text(answer)
    assert colony.one.leaves == before


async def test_an_operation_that_is_handled_again_says_the_same_and_undoes_nothing() -> None:
    colony = Colony()
    envelope = Envelope(
        id="e",
        trace_id="t",
        target="/cell",
        ttl=9,
        body=Body.of(Entry.call("c", {"op": "add", "id": "m", **EVERY_MINUTE})),
    )
    host = RecordingHost.of("timer")
    (first,) = await colony.timer.handle(envelope, host)
    host.states["cell"].clear()
    changed = {"schedules.m": json.dumps({"at": 9 * MINUTE, "text": "changed since"})}
    host.states["cell"].update(changed)

    (again,) = await colony.timer.handle(envelope, host)

    assert again.body == first.body
    assert host.states["cell"] == changed


async def test_a_leaf_that_cannot_be_read_does_not_stop_the_others() -> None:
    colony = Colony(schedules={"m": EVERY_MINUTE})
    colony.one.leaves["schedules.broken"] = "{"
    await colony.pass_at(30_000)
    await colony.pass_at(MINUTE)

    assert colony.fired == [("m", MINUTE, 1)]


@pytest.mark.parametrize(
    "unsendable",
    [{"text": "x", "name": "n" * 70_000}, {"body": {"messages": [], "system": {"n": 2**70}}}],
)
async def test_what_could_not_be_sent_is_not_added(unsendable: dict[str, Any]) -> None:
    colony = Colony(schedules={"m": EVERY_MINUTE})
    refused = await colony.call(op="add", id="a", cron="0 * * * * *", **unsendable)
    await colony.pass_at(30_000)
    await colony.pass_at(MINUTE)

    assert refused.hop["error_code"] == "invalid_input"
    assert colony.fired == [("m", MINUTE, 1)]
