"""Dead letters: read, replayed once, dropped, and forgotten in the end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.codec import encode_body
from colony.dead_letters import LETTER_KEEP_MS, DeadLetters
from colony.envelope import DeadLetter, Head
from colony.errors import DeadLetterNotFound, EnvelopeError
from colony.inbox import Inbox, make_groups
from colony.keys import Keys
from colony.link import Link
from colony.streams import Broken, Delivery, Step, Streams
from colony.traces import Traces

KEYS = Keys("test")
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
    assert len(await letters.list(code="a")) == 2
    assert len(await letters.list(limit=1)) == 1
    assert await letters.list(since_ms=all_of_them[-1].died_at + 1) == []
    assert await letters.count() == 3


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
    assert 0 < await link.command("PTTL", KEYS.replay(letter.id)) <= LETTER_KEEP_MS


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


async def test_letters_are_forgotten_after_thirty_days(link: Link, letters: DeadLetters) -> None:
    seconds, _ = await link.command("TIME")
    oldest = int(seconds) * 1000 - LETTER_KEEP_MS
    fields = ("trace", "", "code", "c", "facts", b"\x80", "head", b"\xc0", "body", "")
    for age in (-1000, 1000):
        await link.command("XADD", KEYS.dead(), f"{oldest + age}-0", *fields)
    await buried(link)

    assert await letters.expire() == 1

    assert [letter.code for letter in await letters.list()] == ["c", "no_route"]
