"""Traces: born once per guard, ended once, and known in between."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.envelope import EXTERNAL, new_id
from colony.errors import (
    EnvelopeError,
    Fenced,
    HeaderTooLarge,
    RecordBroken,
    ServerChanged,
    TraceNotFound,
)
from colony.inbox import Inbox, make_groups
from colony.keys import Keys
from colony.link import Link
from colony.streams import Delivery, Step, Streams
from colony.traces import Birth, Traces, read_output, write_output

KEYS = Keys("test")
HELLO = Body.of(Entry.say("user", "hello"))


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    await make_groups(link, [KEYS.router(), KEYS.quiet()])
    yield link
    await link.close()


@pytest.fixture
def traces(link: Link) -> Traces:
    return Traces(link, KEYS)


async def first(link: Link) -> Delivery:
    (delivery,) = await Inbox(link, "router-0").read([KEYS.router()], count=1, block_ms=None)
    assert isinstance(delivery, Delivery)
    return delivery


async def births(link: Link) -> int:
    return int(await link.command("XLEN", KEYS.router()))


async def test_a_birth_opens_a_trace_with_its_first_envelope(link: Link, traces: Traces) -> None:
    birth = await traces.birth("/a", HELLO, ttl=7, context={"k": 1}, hop={"h": 2})

    trace = await traces.get(birth.trace_id)
    assert (trace.state, trace.live, trace.entry, trace.cause) == ("open", 1, "/a", None)
    assert (trace.outputs, trace.dead, trace.revivals, trace.session) == (0, 0, 0, None)
    assert await traces.ids("open", limit=9) == [birth.trace_id]
    delivery = await first(link)
    head = delivery.head
    assert (head.id, head.trace_id, head.sender) == (birth.trace_id, birth.trace_id, EXTERNAL)
    assert (head.target, head.ttl, head.context, head.hop) == ("/a", 7, {"k": 1}, {"h": 2})
    assert await Blobs(link, KEYS).open(delivery.body) == HELLO


async def test_the_repeat_of_a_birth_finds_the_trace(link: Link, traces: Traces) -> None:
    trace_id = new_id()

    answers = [await traces.birth("/a", HELLO, ttl=7, trace_id=trace_id) for _ in range(2)]

    assert answers == [Birth(trace_id, False), Birth(trace_id, True)]
    assert await births(link) == 1


async def test_births_under_one_guard_are_one_however_many_race(link: Link, traces: Traces) -> None:
    answers = await asyncio.gather(
        *(traces.birth("/a", HELLO, ttl=7, guard="key") for _ in range(20))
    )

    assert len({answer.trace_id for answer in answers}) == 1
    assert sorted(answer.repeated for answer in answers) == [False] + [True] * 19
    assert await births(link) == 1


async def test_a_guard_does_not_serve_another_request(link: Link, traces: Traces) -> None:
    one = await traces.birth("/a", HELLO, ttl=7, guard="key")
    other = await traces.birth("/a", HELLO, ttl=8, guard="key")

    assert (other.trace_id, other.conflict, other.repeated) == (one.trace_id, True, False)
    assert await births(link) == 1


async def test_a_guard_is_found_after_its_trace_is_gone(link: Link, traces: Traces) -> None:
    birth = await traces.birth("/a", HELLO, ttl=7, guard="key")
    await link.command("DEL", KEYS.trace(birth.trace_id))

    assert (await traces.birth("/a", HELLO, ttl=7, guard="key")).repeated
    assert 0 < await link.command("PTTL", KEYS.guard("key")) <= 24 * 3600 * 1000


async def test_a_trace_is_found_after_its_guard_is_gone(link: Link, traces: Traces) -> None:
    await traces.birth("/a", HELLO, ttl=7, guard="key", guard_keep_ms=1000)
    assert 0 < await link.command("PTTL", KEYS.guard("key")) <= 1000
    await link.command("DEL", KEYS.guard("key"))

    assert (await traces.birth("/a", HELLO, ttl=7, guard="key")).repeated
    assert await births(link) == 1


async def test_headers_that_cannot_be_sent_are_refused(link: Link, traces: Traces) -> None:
    with pytest.raises(HeaderTooLarge):
        await traces.birth("/a", HELLO, ttl=7, context={"k": "x" * 70_000})
    with pytest.raises(EnvelopeError):
        await traces.birth("/a", HELLO, ttl=7, context={"k": 2**70})

    assert await link.command("KEYS", "*trace*") == []


async def test_a_large_body_is_born_as_a_reference(link: Link, traces: Traces) -> None:
    large = Body.of(Entry.say("user", "x" * 2000))

    for _ in range(2):
        birth = await traces.birth("/a", large, ttl=7, guard="key", inline_max_bytes=1000)

    delivery = await first(link)
    assert len(delivery.body) < 100
    assert await Blobs(link, KEYS).open(delivery.body) == large
    (blob,) = await link.command("SMEMBERS", KEYS.belongings(birth.trace_id))
    assert await link.command("PTTL", blob) == -1


async def test_a_trace_that_is_not_there_is_not_found(traces: Traces) -> None:
    with pytest.raises(TraceNotFound):
        await traces.get("nothing")
    with pytest.raises(TraceNotFound):
        await traces.end("nothing", "cancelled", "why")


async def test_the_first_end_stands(link: Link, traces: Traces) -> None:
    birth = await traces.birth("/a", HELLO, ttl=7, timeout_ms=60_000)

    assert await traces.end(birth.trace_id, "cancelled", "by hand") == "cancelled"
    assert await traces.end(birth.trace_id, "failed", "late") == "cancelled"

    trace = await traces.get(birth.trace_id)
    assert (trace.state, trace.cause, trace.reason) == ("ended", "cancelled", "by hand")
    assert trace.ended
    assert await traces.fenced(trace.id)
    assert trace.ended_at is not None
    assert trace.ended_at >= trace.created_at
    assert await traces.ids("open", limit=9) == []
    assert await traces.ids("ended", limit=9) == [birth.trace_id]
    assert await link.command("ZCARD", KEYS.deadlines()) == 0
    assert await link.command("XLEN", KEYS.quiet()) == 0


async def test_the_end_of_a_quiet_trace_reports_it(link: Link, traces: Traces) -> None:
    birth = await traces.birth("/a", HELLO, ttl=7)
    await Streams(link, KEYS, Blobs(link, KEYS)).commit([Step(await first(link))])

    await traces.end(birth.trace_id, "cancelled", "by hand")

    assert await link.command("XLEN", KEYS.quiet()) == 2


async def test_a_deadline_is_kept_by_the_servers_clock(link: Link, traces: Traces) -> None:
    birth = await traces.birth("/a", HELLO, ttl=7, timeout_ms=5000)

    deadline = int(await link.command("ZSCORE", KEYS.deadlines(), birth.trace_id))
    assert deadline == (await traces.get(birth.trace_id)).created_at + 5000


async def test_work_is_fenced_once_its_trace_was_ended_or_is_gone(traces: Traces) -> None:
    birth = await traces.birth("/a", HELLO, ttl=7)

    assert not await traces.fenced(birth.trace_id)
    await traces.end(birth.trace_id, "failed", "why")
    assert await traces.fenced(birth.trace_id)
    assert await traces.fenced("nothing")
    with pytest.raises(ServerChanged):
        await traces.fenced(birth.trace_id, server="another")


async def test_what_a_completed_trace_has_under_way_runs_out(link: Link, traces: Traces) -> None:
    birth = await traces.birth("/a", HELLO, ttl=7)
    ended = ("state", "ended", "cause", "completed")
    await link.command("HSET", KEYS.trace(birth.trace_id), *ended)

    assert not await traces.fenced(birth.trace_id)
    assert not await traces.retire(birth.trace_id, keep_ms=1000)
    await link.command("HSET", KEYS.trace(birth.trace_id), "live", 0)
    assert await traces.fenced(birth.trace_id)
    assert await traces.retire(birth.trace_id, keep_ms=1000)
    assert await traces.retire("nothing", keep_ms=1000)


async def test_attempts_count_handles_and_not_repeats_of_the_call(
    link: Link, traces: Traces
) -> None:
    birth = await traces.birth("/a", HELLO, ttl=7)
    server = await link.open()

    async def attempt(token: str) -> int:
        return await traces.attempt(birth.trace_id, "envelope", token=token, server=server)

    assert [await attempt(token) for token in "aabbc"] == [1, 1, 2, 2, 3]
    await traces.end(birth.trace_id, "cancelled", "why")
    with pytest.raises(Fenced):
        await attempt("d")
    with pytest.raises(ServerChanged):
        await traces.attempt(birth.trace_id, "envelope", token="e", server="another")


async def test_a_handle_that_a_change_of_server_broke_off_is_no_attempt(
    link: Link, traces: Traces
) -> None:
    birth = await traces.birth("/a", HELLO, ttl=7)
    server = await link.open()
    tokens = ("old/1", "new/1", "new/2", "newer/1", "newest/1", "newest/2")

    counted = [
        await traces.attempt(birth.trace_id, "envelope", token=token, server=server)
        for token in tokens
    ]

    assert counted == [1, 1, 2, 2, 2, 3]


async def test_what_ends_its_server_each_time_is_not_forgiven_for_ever(
    link: Link, traces: Traces
) -> None:
    birth = await traces.birth("/a", HELLO, ttl=7)
    server = await link.open()

    counted = [
        await traces.attempt(birth.trace_id, "envelope", token=f"{n}/1", server=server)
        for n in range(10)
    ]

    assert counted == [1, 1, 1, 1, 1, 1, 2, 3, 4, 5]


async def test_the_log_is_read_page_by_page(link: Link, traces: Traces) -> None:
    record = b"\x93\x84\xa2id\xa1x\xa8trace_id\xa1x\xa6target\xa2/a\xa3ttl\x01\xc0\xc0"
    for _ in range(1001):
        await link.command("XADD", KEYS.log("t"), "*", "record", record)

    log = await traces.log("t")

    assert len({hop.entry for hop in log}) == 1001
    assert [hop.entry for hop in log] == sorted(
        (hop.entry for hop in log), key=lambda e: [int(part) for part in e.split("-")]
    )


async def test_outputs_come_in_the_order_they_were_kept(link: Link, traces: Traces) -> None:
    for n in range(3):
        await link.command("RPUSH", KEYS.outputs("t"), write_output(HELLO, {"n": n}, "/sink"))

    outputs = await traces.outputs("t")

    assert [output["hop"] for output in outputs] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert outputs[0] == read_output(write_output(HELLO, {"n": 0}, "/sink"))
    assert outputs[0]["path"] == "/sink"
    assert Body.parse(outputs[0]["body"]) == HELLO


@pytest.mark.parametrize(("field", "value"), [("created_at", "soon"), ("reason", b"\xff")])
async def test_a_record_that_somebody_else_wrote_to_is_told_and_not_read(
    link: Link, traces: Traces, field: str, value: str | bytes
) -> None:
    born = await traces.birth("/a", HELLO, ttl=9)
    await link.command("HSET", KEYS.trace(born.trace_id), field, value)

    with pytest.raises(RecordBroken, match=born.trace_id):
        await traces.get(born.trace_id)
