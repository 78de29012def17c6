"""What is kept of requests is put together again, whoever wrote which of them."""

from collections.abc import AsyncIterator

import pytest

from colony.body import Body
from colony.envelope import Envelope
from colony.errors import RequestNotFound
from colony.keys import Keys
from colony.link import Link
from colony.requests import Recent, Requests, SentRequest

KEYS = Keys("requests")
FACTS = {"provider": "p", "model": "m", "attempt": 1}


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    await link.command("HSET", KEYS.trace("t"), "state", "open", "live", 1)
    yield link
    await link.close()


async def send(requests: Requests, envelope: str, body: bytes, *, turn_id: str = "q") -> None:
    arriving = Envelope(
        id=envelope,
        trace_id="t",
        target="/llm",
        ttl=9,
        context={"turn_id": turn_id},
        body=Body(messages=()),
    )
    await requests.record(body, envelope=arriving, cell="/llm", facts=FACTS)


async def kept(link: Link) -> list[tuple[SentRequest, bytes]]:
    requests = Requests(link, KEYS)
    return [(sent, await requests.body(sent)) for sent in await requests.of_trace("t")]


def grown(rounds: int) -> bytes:
    said = b",".join(b'{"n":%d,"s":"%s"}' % (n, "ä".encode() * 300) for n in range(rounds))
    return b'{"messages":[' + said + b'],"tools":[]}'


async def test_requests_of_one_thread_by_several_workers_are_kept_once_each(link: Link) -> None:
    """Neither knows what the other has sent meanwhile."""
    workers = [Requests(link, KEYS, recent=Recent()) for _ in range(2)]
    bodies = [grown(n) for n in range(9)]
    for n, body in enumerate(bodies):
        await send(workers[n % 2], f"e-{n}", body)

    assert [body for _, body in await kept(link)] == bodies
    values = await link.command("HVALS", KEYS.requests("t"))
    assert sum(map(len, values)) < 2 * len(bodies[-1]) + 300 * len(bodies)


async def test_whatever_the_bytes_are_they_are_kept(link: Link) -> None:
    requests = Requests(link, KEYS)
    bodies = [b"no JSON", b"", b"\xff\x00", b"[" * 100_000, b"\xff\x00\xfe"]
    for n, body in enumerate(bodies):
        await send(requests, f"e-{n}", body)

    assert [body for _, body in await kept(link)] == bodies


async def test_the_same_bytes_are_counted_though_others_were_sent_between(link: Link) -> None:
    requests = Requests(link, KEYS)
    for body in (b"short", b"longer", b"short"):
        await send(requests, "e", body)
    await send(requests, "f", b"longer")

    assert [(s.envelope_id, s.sent, body) for s, body in await kept(link)] == [
        ("e", 2, b"short"),
        ("e", 1, b"longer"),
        ("f", 1, b"longer"),
    ]


async def test_a_server_that_has_forgotten_is_told_again(link: Link) -> None:
    """After a failover what was sent last may be missing there."""
    requests = Requests(link, KEYS)
    await send(requests, "e-0", grown(3))
    await link.command("DEL", KEYS.requests("t"))

    await send(requests, "e-1", grown(4))

    assert [body for _, body in await kept(link)] == [grown(4)]


async def test_a_request_whose_base_was_deleted_is_not_found_and_the_next_is_whole(
    link: Link,
) -> None:
    for n in range(2):
        await send(Requests(link, KEYS), f"e-{n}", grown(n))
    first, second = await Requests(link, KEYS).of_trace("t")
    await link.command("HDEL", KEYS.requests("t"), first.name)

    await send(Requests(link, KEYS), "e-2", grown(2))

    requests = Requests(link, KEYS)
    with pytest.raises(RequestNotFound):
        await requests.body(second)
    (newest,) = [s for s in await requests.of_trace("t") if s.envelope_id == "e-2"]
    assert await requests.body(newest) == grown(2)


@pytest.mark.parametrize("newest", [b"e-0", b"\xff"], ids=["unreadable", "unknown"])
async def test_what_a_stranger_wrote_is_built_on_by_nobody(link: Link, newest: bytes) -> None:
    key = KEYS.requests("t")
    await link.command("HSET", key, "e-0", "0 1 ?", ">/llm q", newest)

    await send(Requests(link, KEYS), "e-1", grown(2))

    await link.command("HDEL", key, "e-0")
    assert [body for _, body in await kept(link)] == [grown(2)]


@pytest.mark.parametrize("turn_id", ["", "> q", "#", "ü\u2028\x00", "\ud800"])
async def test_a_question_may_be_called_anything(link: Link, turn_id: str) -> None:
    requests = Requests(link, KEYS)
    for n in range(3):
        await send(requests, f"e-{n}", grown(n), turn_id=turn_id)
        await send(requests, f"o-{n}", b"other %d" % n)

    bodies = [body for sent, body in await kept(link) if sent.envelope_id.startswith("e")]
    assert bodies == [grown(n) for n in range(3)]


def test_a_process_knows_requests_up_to_a_number_of_bytes() -> None:
    recent = Recent(max_bytes=10)
    recent.put("t", "a", name=b"a1", body=b"1234")
    recent.put("t", "b", name=b"b1", body=b"1234")
    recent.put("t", "a", name=b"a2", body=b"123456")
    assert [found and found.name for found in (recent.of("t", "a"), recent.of("t", "b"))] == [
        b"a2",
        b"b1",
    ]

    recent.put("u", "a", name=b"a3", body=b"1")
    assert recent.of("t", "b") is None
    assert recent.of("t", "a") is not None

    recent.put("u", "a", name=b"a4", body=b"x" * 11)
    assert recent.of("u", "a") is None
    recent.put("u", "b", name=b"b2", body=b"x" * 10)
    assert recent.of("u", "b") is not None
