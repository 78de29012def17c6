"""Commit and its neighbours on a real server: every answer, and what is there afterwards."""

import re
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

import colony
from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.codec import (
    decode_body,
    decode_head,
    encode_blob_reference,
    encode_body,
    encode_head,
)
from colony.dead_letters import DeadLetters
from colony.envelope import DeadLetter, Head
from colony.errors import ServerChanged
from colony.inbox import Inbox, make_groups
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.streams import Broken, Delivery, Outgoing, Step, Streams, next_batch
from colony.traces import Traces

KEYS = Keys("test")
PACKAGE = Path(colony.__file__).parent
HELLO = Body.of(Entry.say("user", "hello"))


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    await make_groups(link, [KEYS.router(), KEYS.cell("/a"), KEYS.quiet()])
    yield link
    await link.close()


@pytest.fixture
def streams(link: Link) -> Streams:
    return Streams(link, KEYS, Blobs(link, KEYS, inline_max_bytes=1000))


@pytest.fixture
def traces(link: Link) -> Traces:
    return Traces(link, KEYS)


async def born(link: Link, traces: Traces, *, consumer: str = "router-0") -> Delivery:
    """The first delivery of a new trace."""
    birth = await traces.birth("/a", HELLO, ttl=9)
    read = await Inbox(link, consumer).read([KEYS.router()], count=100, block_ms=None)
    (delivery,) = [d for d in read if isinstance(d, Delivery) and d.head.id == birth.trace_id]
    return delivery


async def again(link: Link, *, consumer: str = "router-1") -> Delivery:
    """The delivery that somebody holds, now in another consumer's hands."""
    (delivery,) = await Inbox(link, consumer).reclaim(KEYS.router(), idle_ms=0, count=10)
    assert isinstance(delivery, Delivery)
    return delivery


def child(delivery: Delivery, name: str = "child", body: Body = HELLO) -> Outgoing:
    head = delivery.head.model_copy(update={"id": name, "parent_message_id": delivery.head.id})
    return Outgoing(KEYS.cell("/a"), encode_head(head), encode_body(body))


def letter(delivery: Delivery, code: str = "no_route") -> DeadLetter:
    head = delivery.head
    return DeadLetter(code, "why", head.sender, "/a", "/a", head, delivery.body)


async def token(streams: Streams, step: Step) -> tuple[str, int | None]:
    (outcome,) = await streams.commit([step])
    return outcome.token, outcome.live


async def names(link: Link, stream: str) -> list[str]:
    entries = await link.command("XRANGE", stream, "-", "+")
    return [decode_head(fields[1]).id for _, fields in entries]


async def length(link: Link, stream: str) -> int:
    return int(await link.command("XLEN", stream))


async def test_a_commit_publishes_and_settles(link: Link, streams: Streams, traces: Traces) -> None:
    delivery = await born(link, traces)
    step = Step(
        delivery,
        [child(delivery, "one"), child(delivery, "two")],
        [b"\x93" + b"\x80\xc0\xc0"],
        [letter(delivery)],
        [b"kept"],
    )

    assert await token(streams, step) == ("committed", 2)

    assert await length(link, KEYS.router()) == 0
    assert (await link.command("XPENDING", KEYS.router(), GROUP))[0] == 0
    assert await names(link, KEYS.cell("/a")) == ["one", "two"]
    assert await length(link, KEYS.log(delivery.head.trace_id)) == 1
    assert await link.command("LRANGE", KEYS.outputs(delivery.head.trace_id), 0, -1) == [b"kept"]
    trace = await traces.get(delivery.head.trace_id)
    assert (trace.state, trace.live, trace.outputs, trace.dead) == ("open", 2, 1, 1)
    assert (trace.error_code, trace.dead_target) == ("no_route", "/a")
    assert trace.dead_message_id == delivery.head.id


async def test_the_last_envelope_that_ends_makes_its_trace_quiet(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)

    assert await token(streams, Step(delivery)) == ("committed", 0)

    trace = await traces.get(delivery.head.trace_id)
    assert (trace.state, trace.live) == ("quiet", 0)
    assert trace.last is not None
    assert decode_head(trace.last).id == delivery.head.id
    ((_, fields),) = await link.command("XRANGE", KEYS.quiet(), "-", "+")
    assert fields == [b"trace", delivery.head.trace_id.encode()]


async def test_a_late_commit_is_stale_and_publishes_nothing(
    link: Link, streams: Streams, traces: Traces
) -> None:
    slow = await born(link, traces)
    quick = await again(link)

    assert (await token(streams, Step(quick, [child(quick, "quick")])))[0] == "committed"
    assert await token(streams, Step(slow, [child(slow, "slow")])) == ("stale", None)

    assert await names(link, KEYS.cell("/a")) == ["quick"]
    assert (await traces.get(slow.head.trace_id)).live == 1


async def test_an_owner_that_lost_its_claim_may_be_first_and_still_all_is_published_once(
    link: Link, streams: Streams, traces: Traces
) -> None:
    slow = await born(link, traces)
    quick = await again(link)

    outcomes = [await token(streams, Step(d, [child(d)])) for d in (slow, quick)]

    assert outcomes == [("committed", 1), ("stale", None)]
    assert await names(link, KEYS.cell("/a")) == ["child"]


async def test_the_repeat_of_a_commit_is_stale(
    link: Link, streams: Streams, traces: Traces
) -> None:
    step = Step(await born(link, traces))

    assert [(await token(streams, step))[0] for _ in range(2)] == ["committed", "stale"]
    assert await length(link, KEYS.quiet()) == 1


async def test_a_commit_settles_an_entry_that_nobody_holds_any_more(
    link: Link, streams: Streams, traces: Traces
) -> None:
    """The pending list may be lost with its consumer; the entry itself is the guard."""
    delivery = await born(link, traces)
    await link.command("XGROUP", "DELCONSUMER", KEYS.router(), GROUP, "router-0")

    assert (await token(streams, Step(delivery, [child(delivery)])))[0] == "committed"
    assert (await token(streams, Step(delivery, [child(delivery)])))[0] == "stale"


@pytest.mark.parametrize("cause", ["cancelled", "failed"])
async def test_what_a_trace_that_was_ended_has_under_way_is_fenced_and_counted_off(
    link: Link, streams: Streams, traces: Traces, cause: str
) -> None:
    delivery = await born(link, traces)
    trace_id = delivery.head.trace_id
    await traces.end(trace_id, cause, "why")  # type: ignore[arg-type]

    step = Step(delivery, [child(delivery)], [b"x"], [letter(delivery)], [b"kept"])

    assert await token(streams, step) == ("fenced", None)
    assert await length(link, KEYS.router()) == 0
    assert await length(link, KEYS.cell("/a")) == await length(link, KEYS.dead()) == 0
    assert await link.command("EXISTS", KEYS.log(trace_id), KEYS.outputs(trace_id)) == 0
    assert (await traces.get(trace_id)).live == 0
    assert await length(link, KEYS.quiet()) == 1


async def test_what_a_completed_trace_has_under_way_is_published(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)
    trace = KEYS.trace(delivery.head.trace_id)
    await link.command("HSET", trace, "state", "ended", "cause", "completed")

    assert await token(streams, Step(delivery, [child(delivery)])) == ("committed", 1)
    (last,) = await Inbox(link, "w").read([KEYS.cell("/a")], count=1, block_ms=None)
    assert isinstance(last, Delivery)
    assert await token(streams, Step(last, kept=[b"kept"])) == ("committed", 0)
    assert (await traces.get(delivery.head.trace_id)).state == "ended"
    assert await length(link, KEYS.quiet()) == 1


async def test_a_commit_for_a_trace_that_is_gone_creates_nothing(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)
    await link.command("DEL", KEYS.trace(delivery.head.trace_id))
    before = {*await link.command("KEYS", "*")}

    assert await token(streams, Step(delivery, [child(delivery)])) == ("fenced", None)
    assert {*await link.command("KEYS", "*")} == before
    assert await length(link, KEYS.router()) == 0


async def test_a_blob_that_is_gone_commits_nothing(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)
    large = Body.of(Entry.say("user", "x" * 2000))
    out = child(delivery, body=large)
    reference, blob = await streams.blobs.offload(out.body, delivery.head.trace_id)
    await link.command("DEL", KEYS.blob(str(blob)))

    assert await token(streams, Step(delivery, [replace(out, body=reference)])) == (
        "blob_lost",
        None,
    )
    assert await length(link, KEYS.router()) == 1
    assert await length(link, KEYS.cell("/a")) == 0


async def test_a_large_body_travels_as_a_reference_that_lives_as_long_as_its_trace(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)
    large = Body.of(Entry.say("user", "x" * 2000))

    await token(streams, Step(delivery, [child(delivery, body=large)] * 2))

    first, second = await link.command("XRANGE", KEYS.cell("/a"), "-", "+")
    assert first[1][3] == second[1][3]
    assert await streams.blobs.open(first[1][3]) == large
    belongings = await link.command("SMEMBERS", KEYS.belongings(delivery.head.trace_id))
    assert len(belongings) == 1
    assert await link.command("PTTL", belongings[0]) == -1


async def test_a_letter_keeps_the_content_of_a_blob(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)
    large = Body.of(Entry.say("user", "x" * 2000))
    reference, _ = await streams.blobs.offload(encode_body(large), "t")

    await token(streams, Step(delivery, letters=[replace(letter(delivery), body=reference)]))

    (kept,) = await DeadLetters(link, KEYS).list()
    assert decode_body(kept.body_bytes) == large


async def test_a_letter_keeps_a_head_that_is_too_large_to_be_sent(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)
    head = delivery.head.model_copy(update={"context": {"much": "x" * 70_000}})

    await token(streams, Step(delivery, letters=[replace(letter(delivery), head=head)]))

    (kept,) = await DeadLetters(link, KEYS).list()
    assert kept.head == head


async def test_a_letter_without_its_headers_is_better_than_none(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)
    head = delivery.head.model_copy(update={"hop": {"n": 2**70}})

    await token(streams, Step(delivery, letters=[replace(letter(delivery), head=head)]))

    (kept,) = await DeadLetters(link, KEYS).list()
    assert kept.head == delivery.head.model_copy(update={"hop": {}})


async def test_a_batch_answers_for_each_delivery(
    link: Link, streams: Streams, traces: Traces
) -> None:
    fine, gone, stale, ended = [await born(link, traces) for _ in range(4)]
    await link.command("DEL", KEYS.trace(gone.head.trace_id))
    await streams.commit([Step(stale)])
    await traces.end(ended.head.trace_id, "cancelled", "why")

    outcomes = await streams.commit(
        [Step(d, [child(d, str(n))]) for n, d in enumerate((fine, gone, stale, ended))]
    )

    assert [o.token for o in outcomes] == ["committed", "fenced", "stale", "fenced"]
    assert await names(link, KEYS.cell("/a")) == ["0"]


async def test_a_batch_with_two_steps_of_one_delivery_settles_it_once(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)

    outcomes = await streams.commit([Step(delivery, [child(delivery)])] * 2)

    assert [o.token for o in outcomes] == ["committed", "stale"]
    assert await length(link, KEYS.cell("/a")) == 1


async def test_a_batch_in_which_one_step_cannot_be_written_writes_nothing(
    link: Link, streams: Streams, traces: Traces
) -> None:
    one, two = await born(link, traces), await born(link, traces)
    await link.command("SET", KEYS.cell("/b"), "not a stream")
    bad = replace(child(two), stream=KEYS.cell("/b"))

    with pytest.raises(ResponseError):
        await streams.commit([Step(one, [child(one)]), Step(two, [bad])])

    assert await length(link, KEYS.router()) == 2
    assert await length(link, KEYS.cell("/a")) == 0


async def test_a_commit_for_another_server_is_not_sent(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)

    with pytest.raises(ServerChanged):
        await streams.commit([Step(replace(delivery, server="another"))])

    assert await length(link, KEYS.router()) == 1


async def test_no_steps_are_no_commit(streams: Streams) -> None:
    assert await streams.commit([]) == []


async def test_a_broken_entry_is_buried_with_its_bytes_once(link: Link, streams: Streams) -> None:
    await link.command("XADD", KEYS.router(), "*", "head", b"\xff\x00", "body", b"\x01", "x", "y")
    (broken,) = await Inbox(link, "router-0").read([KEYS.router()], count=1, block_ms=None)
    assert isinstance(broken, Broken)

    await streams.bury(broken, target="/colony")
    await streams.bury(broken, target="/colony")

    (kept,) = await DeadLetters(link, KEYS).list()
    assert (kept.head, kept.head_bytes, kept.body_bytes) == (None, b"\xff\x00", b"\x01")
    assert kept.code == "envelope_invalid"
    assert await length(link, KEYS.router()) == 0


async def test_what_is_handed_back_is_taken_up_at_once_and_was_not_delivered(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)

    assert await streams.hand_back(delivery, consumer="router-0", attempt="")

    (taken,) = await Inbox(link, "router-1").reclaim(KEYS.router(), idle_ms=60_000, count=1)
    assert isinstance(taken, Delivery)
    assert (taken.times, taken.redelivered) == (1, False)


async def test_what_somebody_else_holds_or_is_settled_is_not_handed_back(
    link: Link, streams: Streams, traces: Traces
) -> None:
    delivery = await born(link, traces)
    taken = await again(link)

    assert not await streams.hand_back(delivery, consumer="router-0", attempt="")
    ((_, owner, _, times),) = await link.command("XPENDING", KEYS.router(), GROUP, "-", "+", 9)
    assert (owner, times) == (b"router-1", 2)

    await streams.commit([Step(taken)])
    assert not await streams.hand_back(delivery, consumer="router-1", attempt="")


async def test_a_handle_that_was_broken_off_by_a_drain_is_no_attempt(
    link: Link, streams: Streams, traces: Traces
) -> None:
    await born(link, traces)
    taken = await again(link)
    head, server = taken.head, taken.server

    async def attempt(token: str) -> int:
        return await traces.attempt(head.trace_id, head.id, token=token, server=server)

    assert await attempt("crashed") == 1
    assert await attempt("drained") == await attempt("drained") == 2
    await streams.hand_back(taken, consumer="router-1", attempt="drained")
    await streams.hand_back(taken, consumer="router-1", attempt="drained")

    assert await attempt("next") == 2


def test_two_deliveries_of_one_entry_are_equal() -> None:
    head = Head(id="1", trace_id="1", target="/a", ttl=1)
    delivery = Delivery("s", "1-1", "server", head, b"")

    assert delivery == replace(delivery, times=2)
    assert delivery != replace(delivery, server="another")
    assert len({delivery, replace(delivery, times=2)}) == 1


def test_a_work_stream_is_never_trimmed() -> None:
    """That would drop what nobody has read: what is settled is deleted, one by one."""
    sources = [path for kind in ("py", "lua") for path in PACKAGE.rglob(f"*.{kind}")]

    trimming = {path.name for path in sources if re.search("XTRIM|MAXLEN", path.read_text())}

    # The doctor only asks whether a user may; the events of a session are no work.
    assert trimming == {"dead_letters.py", "doctor.py", "begin_run.lua"}


def test_no_two_steps_whose_letters_would_bring_a_blob_are_committed_together() -> None:
    head = Head(id="a", trace_id="t", sender="/x", target="/a", ttl=3)
    light = Delivery("s", "1-0", "server", head, b"")
    heavy = Delivery("s", "1-0", "server", head, encode_blob_reference("blob"))
    broken = Delivery("s", "1-0", "server", head, b"\xc7")
    waiting = deque(
        Step(delivery, letters=[letter(delivery)])
        for delivery in (heavy, heavy, broken, light, light, heavy)
    )

    batches = []
    while waiting:
        batches.append(len(next_batch(waiting)))

    assert batches == [1, 1, 3, 1]
