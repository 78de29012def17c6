"""What a step does to its run is written with it: whole, once, and never behind the end."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from colony.agent.asks import Ask
from colony.agent.changes import End, RunChanges
from colony.agent.events import Event
from colony.agent.history import HistoryRow
from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.codec import decode_head, encode_body, encode_head
from colony.inbox import Inbox, make_groups
from colony.keys import Keys
from colony.link import Link
from colony.live import subscribed
from colony.runs.reading import run_in_hand
from colony.streams import Delivery, Outgoing, Step, Streams
from colony.traces import Traces

KEYS = Keys("test")
HELLO = Body.of(Entry.say("user", "hello"))
SAID = HistoryRow(kind="user", run_id="r", turn=0, entries=(Entry.say("user", "hello"),))


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    await make_groups(link, [KEYS.router(), KEYS.cell("/a"), KEYS.quiet()])
    yield link
    await link.close()


@pytest.fixture
def streams(link: Link) -> Streams:
    return Streams(link, KEYS, Blobs(link, KEYS))


@pytest.fixture
async def delivery(link: Link) -> Delivery:
    """The first delivery of a run of the session `s`."""
    birth = await Traces(link, KEYS).birth("/a", HELLO, ttl=9)
    await link.command("HSET", KEYS.run(birth.trace_id), "session", "s", "agent", "a")
    await link.command("HSET", KEYS.agent_session("s"), "state", "running")
    (found,) = await Inbox(link, "router-0").read([KEYS.router()], count=1, block_ms=None)
    assert isinstance(found, Delivery)
    return found


def child(delivery: Delivery) -> Outgoing:
    head = delivery.head.model_copy(update={"id": "child", "target": "/a"})
    return Outgoing(KEYS.router(), encode_head(head), encode_body(HELLO))


def changed() -> RunChanges:
    changes = RunChanges("s", turn=2)
    changes.fields[("run", "phase")] = "tools"
    changes.counts[("run", "turns")] = 1
    changes.counts[("session", "input_tokens")] = 5
    changes.rows.append(SAID)
    changes.write("turn.start", 2, {})
    changes.write("tool.result.available", 2, {"call_id": "c"}, durable=False)
    changes.write("turn.end", 2, {"used": 7})
    return changes


async def log(link: Link) -> list[Event]:
    entries = await link.command("XRANGE", KEYS.session_events("s"), "-", "+")
    return [Event.logged(entry, fields) for entry, fields in entries]


async def field(link: Link, key: str, name: str) -> str:
    value = await link.command("HGET", key, name)
    return "" if value is None else str(value.decode())


async def commit(streams: Streams, step: Step) -> str:
    (outcome,) = await streams.commit([step])
    return outcome.token


async def test_what_changes_is_written_with_the_step_and_once(
    streams: Streams, link: Link, delivery: Delivery
) -> None:
    run = KEYS.run(delivery.head.trace_id)

    tokens = [await commit(streams, Step(delivery, run=changed())) for _ in range(2)]

    assert tokens == ["committed", "stale"]
    events = await log(link)
    assert [(event.seq, event.kind, event.turn) for event in events] == [
        (1, "turn.start", 2),
        (2, "turn.end", 2),
    ]
    assert events[1].payload == {"used": 7}
    assert [await field(link, run, name) for name in ("phase", "turns")] == ["tools", "1"]
    assert await field(link, KEYS.agent_session("s"), "input_tokens") == "5"
    kept = await link.command("LRANGE", KEYS.history("s"), 0, -1)
    assert [HistoryRow.decode(row) for row in kept] == [SAID]


async def test_whoever_listens_is_told_what_is_kept_and_what_is_not(
    streams: Streams, delivery: Delivery, redis_url: str
) -> None:
    heard = subscribed(redis_url, KEYS.session_live("s"))
    assert await anext(heard) == b""

    await commit(streams, Step(delivery, run=changed()))

    told = [Event.told(await anext(heard)) for _ in range(3)]
    assert [(event.kind, event.seq, event.durable) for event in told] == [
        ("turn.start", 1, True),
        ("tool.result.available", 0, False),
        ("turn.end", 2, True),
    ]
    await heard.aclose()


@pytest.mark.parametrize("cause", ["cancelled", "completed"])
async def test_nothing_of_a_run_is_written_behind_its_end(
    streams: Streams, link: Link, delivery: Delivery, cause: str
) -> None:
    await link.command("HSET", KEYS.trace(delivery.head.trace_id), "state", "ended", "cause", cause)

    await commit(streams, Step(delivery, run=changed()))

    assert await log(link) == []
    assert await link.command("EXISTS", KEYS.history("s")) == 0


async def test_a_step_that_asks_waits_and_comes_back_to_its_cell(
    streams: Streams, link: Link, delivery: Delivery
) -> None:
    run_id, changes = delivery.head.trace_id, changed()
    asks = [
        Ask.of_call(run_id, name, "bash", {"command": name}, turn=2, reason="why") for name in "ab"
    ]
    changes.asks += asks

    tokens = [await commit(streams, Step(delivery, run=changes)) for _ in range(2)]

    assert tokens == ["asked", "stale"]
    assert (await Traces(link, KEYS).get(run_id)).live == 1
    assert await field(link, KEYS.agent_session("s"), "state") == "awaiting"
    assert await field(link, KEYS.run(run_id), "pending") == "2"
    asked = [event.payload for event in await log(link) if event.kind == "permission.ask"]
    assert [told["ask_id"] for told in asked] == [ask.id for ask in asks]
    kept = json.loads(await field(link, KEYS.asks(run_id), asks[0].id))
    assert kept["args"] == {"command": "a"}
    assert await field(link, KEYS.asks(run_id), f"group:{kept['group']}:open") == "2"
    assert await link.command("ZCARD", KEYS.ask_deadlines()) == 2


async def test_a_run_that_was_cancelled_meanwhile_asks_nothing(
    streams: Streams, link: Link, delivery: Delivery
) -> None:
    run_id, changes = delivery.head.trace_id, RunChanges("s")
    changes.asks.append(Ask.of_call(run_id, "a", "bash", {}, turn=0, reason="why"))
    await link.command("HSET", KEYS.trace(run_id), "state", "ended", "cause", "cancelled")

    assert await commit(streams, Step(delivery, run=changes)) == "fenced"

    assert (await Traces(link, KEYS).get(run_id)).live == 0
    assert await link.command("ZCARD", KEYS.ask_deadlines()) == 0
    assert await log(link) == []


async def test_the_end_is_written_once_and_last(
    streams: Streams, link: Link, delivery: Delivery
) -> None:
    run_id, changes = delivery.head.trace_id, changed()
    changes.end = End("end_turn", text="all done")
    step = Step(delivery, published=[child(delivery)], run=changes)

    tokens = [await commit(streams, step) for _ in range(2)]

    assert tokens == ["ended", "stale"]
    trace = await Traces(link, KEYS).get(run_id)
    assert (trace.state, trace.cause, trace.live) == ("ended", "completed", 0)
    *_, result = await log(link)
    assert (result.kind, result.payload["stop"], result.payload["text"]) == (
        "result",
        "end_turn",
        "all done",
    )
    assert result.payload["turns"] == 1
    assert await field(link, KEYS.agent_session("s"), "state") == "completed"
    assert await link.command("XLEN", KEYS.router()) == 0


async def test_a_run_that_is_steered_goes_on(
    streams: Streams, link: Link, delivery: Delivery
) -> None:
    run_id, changes = delivery.head.trace_id, RunChanges("s")
    changes.end = End("end_turn")
    changes.fields[("session", "state")] = "idle"
    await link.command("RPUSH", KEYS.steers("s"), "one more thing")

    token = await commit(streams, Step(delivery, published=[child(delivery)], run=changes))

    assert token == "steered"
    assert await field(link, KEYS.agent_session("s"), "state") == "running"
    trace = await Traces(link, KEYS).get(run_id)
    assert (trace.state, trace.live) == ("open", 1)
    assert await log(link) == []
    entries = await link.command("XRANGE", KEYS.router(), "-", "+")
    assert [decode_head(fields[1]).id for _, fields in entries] == ["child"]


async def test_a_run_that_fails_names_what_nobody_took_up(
    streams: Streams, link: Link, delivery: Delivery
) -> None:
    changes = RunChanges("s")
    changes.end = End("error", error="boom", disposition="retryable", progress="visible")
    await link.command("RPUSH", KEYS.steers("s"), "one more thing")

    await commit(streams, Step(delivery, run=changes))

    (result,) = await log(link)
    told: dict[str, Any] = dict(result.payload)
    assert (told["state"], told["dropped_steers"]) == ("failed", ["one more thing"])
    session = KEYS.agent_session("s")
    kept = [await field(link, session, name) for name in ("state", "disposition", "progress")]
    assert kept == ["failed", "retryable", "visible"]


async def test_a_handler_sees_its_run_as_it_is(
    streams: Streams, link: Link, delivery: Delivery
) -> None:
    await link.command("RPUSH", KEYS.steers("s"), "wait")
    await link.command("RPUSH", KEYS.history("s"), SAID.encode())
    await link.command("HSET", KEYS.run(delivery.head.trace_id), "turn", 0, "repeat:ab", 2)

    run = await run_in_hand(
        link,
        KEYS,
        run_id=delivery.head.trace_id,
        session_id="s",
        tools=(),
        decided=False,
        server=None,
    )

    assert run is not None
    assert (run.record.turn, run.record.batch, run.record.repeats) == (0, -1, {"ab": 2})
    assert run.steers == ["wait"]
    assert await run.history() == [SAID]
