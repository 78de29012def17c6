"""Dead letters: read, replayed once, dropped, and forgotten in the end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.codec import encode_blob_reference, encode_body, encode_head, pack
from colony.dead_letters import PAGE, DeadLetters, Which, facts_of
from colony.desk import letter_of
from colony.envelope import DeadLetter, Head
from colony.errors import BlobUnavailable, DeadLetterNotFound, EnvelopeError, ServerUnavailable
from colony.inbox import Inbox, make_groups
from colony.keeping.keeper import Keeper
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.streams import Broken, Delivery, Step, Streams
from colony.testing.harness import Harness
from colony.topology.model import DEFAULTS, CellSettings, CellSpec, EdgeSpec, TopologySpec
from colony.traces import Traces

KEYS = Keys("test")
KEEP_MS = DEFAULTS.dead_letter_retention_ms
HELLO = Body.of(Entry.say("user", "hello"))


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    await make_groups(link, [KEYS.router(), KEYS.quiet()])
    yield link
    await link.close()


@pytest.fixture
def letters(link: Link) -> DeadLetters:
    return DeadLetters(link, KEYS)


async def router(link: Link) -> list[Delivery]:
    read = await Inbox(link, "router-0").read([KEYS.router()], count=99, block_ms=None)
    return [delivery for delivery in read if isinstance(delivery, Delivery)]


async def buried(link: Link, code: str = "no_route", *, ttl: int = 7, siblings: int = 0) -> Head:
    """A letter whose trace has so many envelopes under way."""
    birth = await Traces(link, KEYS).birth("/a", HELLO, ttl=ttl, context={"k": 1})
    (delivery,) = await router(link)
    head = delivery.head.model_copy(update={"ttl": 0})
    letter = DeadLetter(code, "why", "/a", "/b", "/b", head, encode_body(HELLO))
    edges = ({"to": "/b", "condition": "hop.x", "verdict": "false"},)
    await Streams(link, KEYS, Blobs(link, KEYS)).commit(
        [Step(delivery, letters=[replace(letter, edges=edges, attempts=3)])]
    )
    trace = KEYS.trace(birth.trace_id)
    if siblings:
        await link.command("HSET", trace, "live", siblings, "state", "open")
    return head


async def written(
    link: Link,
    died_at: int,
    code: str = "cell_failed",
    trace_id: str = "t",
    sender: str = "/a",
    resolved: str = "/b",
    original: str = "/b",
) -> str:
    """A letter that died then, whose trace is gone; returns its id."""
    head = Head(id=trace_id, trace_id=trace_id, sender=sender, target=resolved, ttl=3)
    letter = DeadLetter(code, "why", sender, original, resolved, head, b"")
    fields = ("trace", trace_id, "code", code, "facts", facts_of(letter))
    envelope = ("head", encode_head(head), "body", encode_body(HELLO))
    letter_id = f"{died_at}-0"
    await link.command("XADD", KEYS.dead(), letter_id, *fields, *envelope)
    return letter_id


async def test_a_letter_tells_who_where_why_and_keeps_the_whole_envelope(
    link: Link, letters: DeadLetters
) -> None:
    head = await buried(link)

    (letter,) = await letters.list()

    told = letter.to_json()
    assert (told["error_code"], told["detail"]) == ("no_route", "why")
    assert (told["sender_path"], told["original_target"]) == ("/a", "/b")
    assert (told["resolved_target"], told["attempts"]) == ("/b", 3)
    assert told["edges"] == [{"to": "/b", "condition": "hop.x", "verdict": "false"}]
    assert told["trace_id"] == told["message_id"] == head.id
    assert told["died_at"] == int(letter.id.partition("-")[0])
    message = told["message"]
    assert isinstance(message, dict)
    assert message["context"] == {"k": 1}
    assert message["ttl"] == 0
    assert Body.parse(message["body"]) == HELLO
    assert await letters.get(letter.id) == letter


async def test_letters_are_listed_by_code_and_age(link: Link, letters: DeadLetters) -> None:
    for code in ("a", "b", "a"):
        await buried(link, code)
    all_of_them = await letters.list()

    assert [letter.code for letter in all_of_them] == ["a", "b", "a"]
    assert len(await letters.list(Which(code="a"))) == 2
    assert len(await letters.list(limit=1)) == 1
    assert await letters.list(Which(since=all_of_them[-1].died_at + 1)) == []
    assert await letters.count() == 3


@pytest.mark.parametrize(
    ("which", "found"),
    [
        (Which(), [0, 1, 2]),
        (Which(code="cell_failed"), [1, 2]),
        (Which(trace_id="t-2"), [1]),
        (Which(to_path_prefix="/tools"), [0, 1]),
        (Which(to_path_prefix="/tools/reader"), [0]),
        (Which(to_path_prefix="/too"), []),
        (Which(to_path_prefix="/asked"), [2]),
        (Which(from_path_prefix="/b"), [1]),
        (Which(since=2000), [1, 2]),
        (Which(until=2000), [0, 1]),
        (Which(until=0), []),
        (Which(since=2000, until=2000), [1]),
        (Which(after="1000-0"), [1, 2]),
        (Which(before="3000-0"), [0, 1]),
        (Which(after="1000-0", before="3000-0", code="cell_failed"), [1]),
    ],
)
async def test_letters_are_found_by_each_filter_in_either_order(
    link: Link, letters: DeadLetters, which: Which, found: list[int]
) -> None:
    kept = [
        await written(link, 1000, "no_route", "t-1", "/a", "/tools/reader", "/tools/reader"),
        await written(link, 2000, "cell_failed", "t-2", "/b", "/tools", "/tools"),
        await written(link, 3000, "cell_failed", "t-3", "/a", "/c", "/asked"),
    ]
    expected = [kept[n] for n in found]

    assert [letter.id for letter in await letters.list(which)] == expected
    assert [letter.id for letter in await letters.newest(which)] == expected[::-1]


async def test_letters_are_found_behind_many_others(link: Link, letters: DeadLetters) -> None:
    many = 2 * PAGE + 10
    for n in range(many):
        await written(link, n + 1, "rare" if n % 100 == 0 else "common")
    rare = [f"{n + 1}-0" for n in range(0, many, 100)]

    assert [letter.id for letter in await letters.list(Which(code="rare"))] == rare
    assert [letter.id for letter in await letters.newest(Which(code="rare"))] == rare[::-1]
    assert [letter.id for letter in await letters.list(Which(code="rare"), limit=2)] == rare[:2]
    assert len(await letters.list(limit=many)) == many


@pytest.mark.parametrize("letter_id", ["1-1", "x", "", "1-", "²-1", "9" * 30 + "-1", "-", "+"])
async def test_a_letter_that_is_not_there_is_not_found(
    letters: DeadLetters, letter_id: str
) -> None:
    with pytest.raises(DeadLetterNotFound):
        await letters.get(letter_id)
    with pytest.raises(DeadLetterNotFound):
        await letters.replay(letter_id, ttl=64)
    with pytest.raises(DeadLetterNotFound):
        await letters.drop(letter_id)


async def test_a_dropped_letter_is_gone(link: Link, letters: DeadLetters) -> None:
    await buried(link)
    (letter,) = await letters.list()

    assert await letters.drop(letter.id) == letter

    assert await letters.count() == 0


@pytest.mark.parametrize("siblings", [0, 2], ids=["quiet", "open"])
async def test_a_replay_into_a_trace_that_has_not_ended_keeps_its_ids(
    link: Link, letters: DeadLetters, siblings: int
) -> None:
    head = await buried(link, siblings=siblings)
    (letter,) = await letters.list()

    assert await letters.replay(letter.id, ttl=64) == head.trace_id

    (delivery,) = await router(link)
    assert (delivery.head.id, delivery.head.trace_id) == (head.id, head.trace_id)
    assert delivery.body == encode_body(HELLO)
    trace = await Traces(link, KEYS).get(head.trace_id)
    assert (trace.state, trace.live) == ("open", siblings + 1)


@pytest.mark.parametrize("gone", [False, True])
async def test_a_replay_into_a_trace_that_has_ended_opens_a_new_one(
    link: Link, letters: DeadLetters, gone: bool
) -> None:
    head = await buried(link)
    traces = Traces(link, KEYS)
    await traces.end(head.trace_id, "failed", "why")
    if gone:
        await link.command("DEL", KEYS.trace(head.trace_id))
    (letter,) = await letters.list()

    fresh = await letters.replay(letter.id, ttl=64)

    assert fresh != head.trace_id
    trace = await traces.get(fresh)
    assert (trace.state, trace.live, trace.replayed_from) == ("open", 1, letter.id)
    (delivery,) = await router(link)
    assert (delivery.head.id, delivery.head.trace_id) == (fresh, fresh)
    assert delivery.head.context == {"k": 1}
    assert await traces.ids("open", limit=9) == [fresh]


async def test_the_repeat_of_a_replay_gets_the_first_answer(
    link: Link, letters: DeadLetters
) -> None:
    head = await buried(link)
    await Traces(link, KEYS).end(head.trace_id, "failed", "why")
    (letter,) = await letters.list()

    answers = await asyncio.gather(*(letters.replay(letter.id, ttl=64) for _ in range(5)))

    assert len({*answers}) == 1
    assert len(await router(link)) == 1
    assert 0 < await link.command("PTTL", KEYS.replay(letter.id)) <= KEEP_MS


async def test_replays_of_one_letter_from_many_processes_send_it_once(
    link: Link, letters: DeadLetters, redis_url: str
) -> None:
    await buried(link)
    (letter,) = await letters.list()
    others = [Link(redis_url) for _ in range(4)]

    answers = await asyncio.gather(
        *(DeadLetters(other, KEYS).replay(letter.id, ttl=64) for other in others)
    )

    assert len({*answers}) == 1
    assert len(await router(link)) == 1
    await asyncio.gather(*(other.close() for other in others))


async def test_a_keeper_that_comes_after_the_replay_leaves_the_trace_alone(
    link: Link, letters: DeadLetters
) -> None:
    """The trace was reported quiet, and its letter is replayed before anybody attends to it."""
    head = await buried(link)
    traces = Traces(link, KEYS)
    keeper = Keeper(Streams(link, KEYS, Blobs(link, KEYS)), Publication(link, KEYS))
    before = await traces.get(head.trace_id)
    (letter,) = await letters.list()

    assert await letters.replay(letter.id, ttl=64) == head.trace_id
    # What it decided on was read before.
    await keeper._end(before)
    await keeper.attend(head.trace_id)

    trace = await traces.get(head.trace_id)
    assert (before.state, trace.state, trace.live) == ("quiet", "open", 1)


async def test_a_server_that_is_full_refuses_a_replay_as_a_whole(
    link: Link, letters: DeadLetters
) -> None:
    await buried(link)
    (letter,) = await letters.list()
    await link.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(ServerUnavailable):
            await letters.replay(letter.id, ttl=64)
    finally:
        await link.command("CONFIG", "SET", "maxmemory", "0")

    assert await router(link) == []
    assert await letters.replays([letter.id]) == {}
    assert await letters.replay(letter.id, ttl=64)


async def test_what_died_for_want_of_a_budget_gets_one(link: Link, letters: DeadLetters) -> None:
    await buried(link, "ttl_expired")
    (letter,) = await letters.list()

    await letters.replay(letter.id, ttl=12)

    (delivery,) = await router(link)
    assert delivery.head.ttl == 12


async def test_bytes_that_were_never_an_envelope_cannot_be_replayed(
    link: Link, letters: DeadLetters
) -> None:
    await link.command("XADD", KEYS.router(), "*", "head", b"\xc1", "body", b"b")
    (broken,) = await Inbox(link, "r").read([KEYS.router()], count=1, block_ms=None)
    assert isinstance(broken, Broken)
    await Streams(link, KEYS, Blobs(link, KEYS)).bury(broken, target="/colony")
    (letter,) = await letters.list()

    assert letter.to_json()["message"] == {"head": "c1", "body": b"b".hex()}
    with pytest.raises(EnvelopeError):
        await letters.replay(letter.id, ttl=64)


async def test_a_letter_without_a_head_says_why_it_cannot_be_replayed(
    link: Link, letters: DeadLetters
) -> None:
    fields = ("trace", "t", "code", "envelope_lost", "facts", pack({}), "head", pack(None))
    letter_id = await link.command("XADD", KEYS.dead(), "*", *fields, "body", b"")
    (letter,) = await letters.list()

    assert letter.id == letter_id.decode()
    assert letter.to_json()["message_id"] is None
    assert (letter.to_json()["message"], letter.to_json()["attempts"]) == (None, None)
    with pytest.raises(EnvelopeError, match=f"letter {letter.id} cannot be replayed: it has no"):
        await letters.replay(letter.id, ttl=64)
    assert await router(link) == []


async def test_a_letter_whose_body_was_lost_cannot_be_replayed(
    link: Link, letters: DeadLetters
) -> None:
    head = encode_head(Head(id="t", trace_id="t", sender="/a", target="/b", ttl=3))
    fields = ("trace", "t", "code", "blob_unavailable", "facts", pack({}), "head", head)
    body = encode_blob_reference("5ab96ae8-6b5a-5b1a-8f5a-3a1d3c1f5f52")
    await link.command("XADD", KEYS.dead(), "*", *fields, "body", body)
    (letter,) = await letters.list()

    with pytest.raises(BlobUnavailable):
        await letters.replay(letter.id, ttl=64)
    assert await router(link) == []


@pytest.mark.parametrize("ended", [False, True], ids=["own trace", "new trace"])
async def test_a_letter_keeps_a_body_that_travelled_as_a_blob_and_replays_it(
    redis_url: str, ended: bool
) -> None:
    sink = CellSpec(path="/sink", cell=CellSettings(type="sink"))
    edge = EdgeSpec(source="/x", target="/sink")
    async with Harness(redis_url, TopologySpec(cells=(sink,), edges=(edge,))) as harness:
        trace_id = await harness.ask("/sink", "x" * 100_000)
        await harness.step((await harness.pending())[0])
        (delivery,) = await harness.pending()
        letter = letter_of(delivery, "/sink", "cell_failed", "why")
        await harness.commit(Step(delivery, letters=[letter]))
        if ended:
            await harness.attend()
        blobs = await harness.link.command("SMEMBERS", harness.keys.belongings(trace_id))
        assert await harness.link.command("DEL", *blobs) == 1

        (buried,) = await harness.letters()
        travels_in = await harness.dead_letters.replay(buried.id, ttl=9)
        await harness.finish()

        assert (travels_in == trace_id) is not ended
        (output,) = await harness.outputs(travels_in)
        assert Body.parse(output["body"]) == Body.of(Entry.say("user", "x" * 100_000))
        own = await harness.link.command("SMEMBERS", harness.keys.belongings(travels_in))
        assert set(own) == set(blobs) if not ended else not set(own) & set(blobs)


async def test_letters_are_forgotten_after_thirty_days(link: Link, letters: DeadLetters) -> None:
    seconds, _ = await link.command("TIME")
    oldest = int(seconds) * 1000 - KEEP_MS
    fields = ("trace", "", "code", "c", "facts", b"\x80", "head", b"\xc0", "body", "")
    for age in (-1000, 1000):
        await link.command("XADD", KEYS.dead(), f"{oldest + age}-0", *fields)
    await buried(link)

    assert await letters.expire(keep_ms=KEEP_MS) == 1

    assert [letter.code for letter in await letters.list()] == ["c", "no_route"]


@pytest.mark.parametrize(
    "fields",
    [("x", "y"), ("code", b"\xff", "trace", b"\xff", "facts", b"\xc1"), ("facts", pack([1]))],
)
async def test_what_a_stranger_wrote_hides_no_letter_and_can_be_dropped(
    link: Link, letters: DeadLetters, fields: tuple[str | bytes, ...]
) -> None:
    strange = (await link.command("XADD", KEYS.dead(), "*", *fields)).decode()
    await buried(link)

    odd, letter = await letters.list()

    assert (odd.id, odd.head, letter.code) == (strange, None, "no_route")
    assert "no letter of colony" in str(odd.to_json()["detail"])
    with pytest.raises(EnvelopeError):
        await letters.replay(odd.id, ttl=9)
    await letters.drop(odd.id)
    assert [found.id for found in await letters.list()] == [letter.id]
