"""What comes from outside waits outside where too much waits inside; what is inside goes on."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from colony.body import Body, Entry
from colony.desk import letter_of
from colony.errors import Backlogged, GuardReused
from colony.link import Link
from colony.pressure import Pressure, seconds_until_room
from colony.streams import Step
from colony.testing.claims import eventually
from colony.testing.harness import Harness
from colony.topology.model import (
    QUIET,
    CellSettings,
    CellSpec,
    ColonySettings,
    EdgeSpec,
    Topology,
    TopologySpec,
)

HELLO = Body.of(Entry.say("user", "hello"))
LIMIT = 3
OUTS = tuple(f"/out-{n}" for n in range(2 * LIMIT))
FAN = """
from colony.envelope import Emission


def fan(envelope, params):
    return Emission.say("hi", route="done")
"""


def fan_out() -> TopologySpec:
    """`/fan` answers to twice as many cells as may wait."""
    cells = [CellSpec(path=path, cell=CellSettings(type="sink")) for path in OUTS]
    fan = CellSpec(
        path="/fan", cell=CellSettings(type="code"), params={"handler": "pressure_fan:fan"}
    )
    edges = [EdgeSpec(source="/fan", target=path) for path in OUTS]
    lane = EdgeSpec(source=QUIET, target="/fan", condition="hop.outputs == 0")
    return TopologySpec(
        settings=ColonySettings(ingress_backlog_max=LIMIT),
        cells=(fan, *cells),
        edges=(*edges, lane),
    )


@pytest.fixture
async def harness(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Harness]:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pressure_fan.py").write_text(FAN)
    async with Harness(redis_url, fan_out()) as harness:
        yield harness


async def fill(harness: Harness) -> list[str]:
    """As many messages as are admitted."""
    return [await harness.ask("/fan", str(n)) for n in range(LIMIT)]


async def size(link: Link) -> int:
    return int(await link.command("DBSIZE"))


async def one_more(harness: Harness) -> str | None:
    """The trace of one more message; None where it is refused."""
    try:
        return await harness.ask("/fan", "more")
    except Backlogged:
        return None


async def until_admitted(harness: Harness) -> str:
    """The first trace that is admitted: what is known may be a moment old."""
    return str(await eventually(lambda: one_more(harness), "a message is admitted"))


async def until_refused(harness: Harness) -> None:
    """Send until nothing is admitted: what is known may be a moment old."""

    async def refused() -> bool:
        return await one_more(harness) is None

    await eventually(refused, "a message is refused")


async def test_a_message_is_refused_and_nothing_written_while_too_many_wait(
    harness: Harness,
) -> None:
    await fill(harness)
    before = await size(harness.link)

    with pytest.raises(Backlogged) as refused:
        await harness.admission.admit("/fan", Body.of(Entry.say("user", "x" * 70_000)), guard="g")

    assert refused.value.facts["waiting"] == refused.value.facts["limit"] == LIMIT
    assert await size(harness.link) == before
    assert len(await harness.traces.ids("open", limit=99)) == LIMIT


async def test_messages_that_come_at_once_do_not_pass_the_limit(harness: Harness) -> None:
    found = await asyncio.gather(
        *(harness.ask("/fan", str(n)) for n in range(5 * LIMIT)), return_exceptions=True
    )

    assert sum(isinstance(one, str) for one in found) == LIMIT
    assert {type(one) for one in found} == {str, Backlogged}


async def test_after_the_backlog_was_handled_messages_are_admitted_again(harness: Harness) -> None:
    await fill(harness)
    with pytest.raises(Backlogged):
        await harness.ask("/fan", "more")

    await harness.finish()

    trace_id = await until_admitted(harness)
    assert (await harness.trace(trace_id)).state == "open"


async def test_what_is_inside_above_the_limit_is_handled_to_the_end(harness: Harness) -> None:
    traces = await fill(harness)
    most = 0
    while pending := await harness.pending():
        most = max(most, len(pending))
        await harness.step(pending[0])

    assert most > LIMIT
    await harness.finish()
    for trace_id in traces:
        trace = await harness.trace(trace_id)
        assert (trace.cause, trace.outputs) == ("completed", len(OUTS))


async def test_a_quiet_trace_is_taken_up_and_a_letter_replayed_above_the_limit(
    harness: Harness,
) -> None:
    lost, dead, *_ = await fill(harness)
    pending = {delivery.head.trace_id: delivery for delivery in await harness.pending()}
    await harness.drop(pending[lost])
    letter = letter_of(pending[dead], "/fan", "cell_failed", "why")
    await harness.commit(Step(pending[dead], letters=[letter]))
    for n in range(LIMIT):
        await harness.traces.birth(f"/out-{n}", HELLO, ttl=9)
    await until_refused(harness)
    (buried,) = await harness.letters()

    assert await harness.attend() == [lost, dead]
    assert await harness.dead_letters.replay(buried.id, ttl=9)

    assert (await harness.trace(lost)).revivals == 1
    assert (await harness.trace(dead)).state == "open"


async def test_the_repeat_of_a_request_finds_its_trace_above_the_limit(harness: Harness) -> None:
    first = await harness.admission.admit("/fan", HELLO, guard="g")
    for n in range(LIMIT):
        await harness.traces.birth(f"/out-{n}", HELLO, ttl=9)
    await until_refused(harness)

    again = await harness.admission.admit("/fan", HELLO, guard="g")

    assert (again.trace_id, again.repeated) == (first.trace_id, True)
    with pytest.raises(GuardReused):
        await harness.admission.admit("/out-0", HELLO, guard="g")
    with pytest.raises(Backlogged):
        await harness.admission.admit("/fan", HELLO, guard="another")


class Counting(Link):
    """A link that counts what is asked."""

    asked = 0

    async def command(self, *parts, server=None):
        self.asked += 1
        return await super().command(*parts, server=server)


async def test_many_admissions_share_one_look(redis_url: str, harness: Harness) -> None:
    spec = fan_out().model_copy(update={"settings": ColonySettings()})
    topology, link = Topology.compile(spec), Counting(redis_url)
    entrance = Pressure(link, harness.keys)

    await asyncio.gather(*(entrance.admit_one(topology) for _ in range(200)))

    # The router's stream and what is parked, beside the cells.
    assert link.asked % (2 + len(topology.cells)) == 0
    assert link.asked < 200
    await link.close()


async def test_what_is_still_being_born_counts_though_no_look_finds_it(
    redis_url: str, harness: Harness
) -> None:
    topology, link = Topology.compile(fan_out()), Link(redis_url)
    entrance = Pressure(link, harness.keys)
    for _ in range(LIMIT):
        await entrance.admit_one(topology)

    with pytest.raises(Backlogged) as refused:
        await entrance.admit_one(topology)
    assert refused.value.facts["waiting"] == LIMIT
    assert refused.value.facts["retry_after_s"] == 1

    # None of them came to be.
    for _ in range(LIMIT):
        entrance.arrived()
    await entrance.admit_one(topology)
    await link.close()


async def test_what_is_born_during_a_look_counts_until_the_next_one(
    redis_url: str, harness: Harness
) -> None:
    topology = Topology.compile(fan_out())

    class Slow(Link):
        async def command(self, *parts, server=None):
            found = await super().command(*parts, server=server)
            while born:
                born.pop()
                entrance.arrived()
            return found

    link = Slow(redis_url)
    born: list[int] = []
    entrance = Pressure(link, harness.keys)
    for _ in range(LIMIT):
        await entrance.admit_one(topology)
    born += range(LIMIT)

    with pytest.raises(Backlogged):
        await entrance.admit_one(topology)
    await entrance.admit_one(topology)
    await link.close()


@pytest.mark.parametrize(
    ("looks", "retry_s"),
    [
        ([(0.0, 100)], 1),
        ([(0.0, 100), (2.0, 90)], 17),
        ([(0.0, 100), (2.0, 99)], 60),
        ([(0.0, 100), (2.0, 100)], 60),
        ([(0.0, 100), (2.0, 120)], 60),
        ([(0.0, 100_000), (2.0, 11)], 1),
        ([(0.0, 0), (2.0, 9)], 1),
    ],
)
def test_how_soon_to_try_again_follows_from_how_fast_the_backlog_falls(
    looks: list[tuple[float, int]], retry_s: int
) -> None:
    assert seconds_until_room(looks, limit=10) == retry_s
