"""What a consumer reads, and what becomes of entries and groups that go away."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from colony.codec import encode_head
from colony.envelope import Head
from colony.errors import ServerUnavailable
from colony.inbox import Inbox, make_groups
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.lua.registry import bind
from colony.streams import Broken, Delivery
from colony.testing.claims import eventually
from colony.testing.redis_server import RedisServer

KEYS = Keys("test")
A, B = KEYS.cell("/a"), KEYS.cell("/b")


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    await make_groups(link, [A, B])
    yield link
    await link.close()


@pytest.fixture
async def reader(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


async def add(link: Link, stream: str, name: str) -> str:
    head = encode_head(Head(id=name, trace_id=name, target="/a", ttl=1))
    entry = await link.command("XADD", stream, "*", "head", head, "body", "b")
    return str(entry.decode())


def names(found: list[Delivery | Broken]) -> list[str]:
    return [read.head.id for read in found if isinstance(read, Delivery)]


async def blocked(link: Link) -> bool:
    return b"blocked_clients:0" not in await link.command("INFO", "clients")


async def pending(link: Link, stream: str) -> int:
    return int((await link.command("XPENDING", stream, GROUP))[0])


async def test_new_entries_of_several_sources_are_read(link: Link) -> None:
    for n in range(3):
        await add(link, A, f"a{n}")
    await add(link, B, "b0")

    found = await Inbox(link, "c").read([A, B], count=2, block_ms=None)

    assert names(found) == ["a0", "a1", "b0"]
    assert all(not read.redelivered for read in found if isinstance(read, Delivery))
    assert {read.server for read in found} == {link.server}


async def test_an_entry_that_comes_while_a_read_waits_arrives_at_once(
    link: Link, reader: Link
) -> None:
    task = asyncio.create_task(
        Inbox(link, "c", reader=reader).read([A, B], count=9, block_ms=10_000)
    )
    await eventually(lambda: blocked(link))

    await add(link, B, "b")

    assert names(await task) == ["b"]


async def test_a_read_where_there_is_no_group_makes_one_from_the_first_entry(link: Link) -> None:
    await add(link, KEYS.cell("/new"), "early")
    inbox = Inbox(link, "c")

    assert await inbox.read([KEYS.cell("/new")], count=9, block_ms=None) == []
    assert names(await inbox.read([KEYS.cell("/new")], count=9, block_ms=None)) == ["early"]


@pytest.mark.parametrize("command", [("FLUSHALL",), ("DEL", A), ("XGROUP", "DESTROY", A, GROUP)])
async def test_a_group_that_goes_while_a_read_waits_is_made_again(
    link: Link, reader: Link, command: tuple[str, ...]
) -> None:
    inbox = Inbox(link, "c", reader=reader)
    task = asyncio.create_task(inbox.read([A], count=9, block_ms=10_000))
    await eventually(lambda: blocked(link))

    await link.command(*command)
    await add(link, A, "after")

    async with asyncio.timeout(5):
        found = await task or await inbox.read([A], count=9, block_ms=None)
    assert names(found) == ["after"]


async def test_nothing_is_read_from_a_server_that_it_could_not_be_settled_with(
    link: Link, redis_binary: Path
) -> None:
    with RedisServer.start(redis_binary) as other:
        reader = Link(other.url)
        await make_groups(reader, [A])
        entry = await add(reader, A, "x")
        inbox = Inbox(link, "c", reader=reader)

        with pytest.raises(ServerUnavailable, match="two servers"):
            await inbox.read([A], count=9, block_ms=10)

        assert (link.server, reader.server) == (None, None)
        assert await pending(reader, A) == 0
        assert await reader.command("XLEN", A) == 1, entry
        await reader.close()


async def test_history_is_what_the_name_holds_and_nothing_else(link: Link) -> None:
    for n in range(150):
        await add(link, A, str(n))
    await Inbox(link, "mine").read([A], count=120, block_ms=None)
    await Inbox(link, "other").read([A], count=10, block_ms=None)

    found = await Inbox(link, "mine").history(A)

    assert names(found) == [str(n) for n in range(120)]
    assert all(isinstance(read, Delivery) and read.redelivered for read in found)


async def test_an_entry_that_was_deleted_under_its_holder_is_let_go_and_reported(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    gone, _ = await add(link, A, "gone"), await add(link, A, "there")
    await Inbox(link, "c").read([A], count=9, block_ms=None)
    await link.command("XDEL", A, gone)

    with caplog.at_level(logging.ERROR, "colony.inbox"):
        assert names(await Inbox(link, "c").history(A)) == ["there"]

    assert await pending(link, A) == 1
    (line,) = caplog.messages
    assert gone in line
    assert A in line


async def test_reclaim_lets_go_what_was_deleted_and_reports_it(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    gone, _ = await add(link, A, "gone"), await add(link, A, "there")
    await Inbox(link, "dead").read([A], count=9, block_ms=None)
    await link.command("XDEL", A, gone)

    with caplog.at_level(logging.ERROR, "colony.inbox"):
        found = await Inbox(link, "c").reclaim(A, idle_ms=0, count=9)

    assert names(found) == ["there"]
    assert await pending(link, A) == 1
    assert len(caplog.messages) == 1


async def test_a_loss_is_counted_once_whoever_comes_across_it(link: Link) -> None:
    gone = [await add(link, A, str(n)) for n in range(3)]
    await Inbox(link, "c").read([A], count=9, block_ms=None)
    await link.command("XTRIM", A, "MAXLEN", 0)

    await asyncio.gather(
        Inbox(link, "c").history(A),
        Inbox(link, "c").history(A),
        *(Inbox(link, f"other-{n}").reclaim(A, idle_ms=0, count=9) for n in range(3)),
    )

    assert await pending(link, A) == 0
    assert await link.command("HGET", KEYS.repairs(), "entries_lost") == b"3", gone


async def test_what_is_there_is_not_written_off(link: Link) -> None:
    entry = await add(link, A, "x")
    await Inbox(link, "c").read([A], count=9, block_ms=None)
    call = bind("write_off", source=A, repairs=KEYS.repairs(), group=GROUP, entries=[entry, "1-1"])

    assert await link.run(call) == [b"written_off", []]

    assert await pending(link, A) == 1
    assert await link.command("EXISTS", KEYS.repairs()) == 0


async def test_a_reclaim_ends_where_everything_was_trimmed(link: Link) -> None:
    """However many pages of the pending list are gone, the cursor comes round."""
    for n in range(250):
        await add(link, A, str(n))
    await Inbox(link, "dead").read([A], count=1000, block_ms=None)
    await link.command("XTRIM", A, "MAXLEN", 0)
    inbox = Inbox(link, "c")

    for _ in range(250):
        assert await inbox.reclaim(A, idle_ms=0, count=10) == []
        if not await pending(link, A):
            break

    assert await pending(link, A) == 0
    assert await link.command("HGET", KEYS.repairs(), "entries_lost") == b"250"


async def test_history_counts_no_delivery_against_what_was_settled_meanwhile(link: Link) -> None:
    entry = await add(link, A, "x")
    await Inbox(link, "c").read([A], count=9, block_ms=None)
    await link.command("XACK", A, GROUP, entry)
    await link.command("XDEL", A, entry)

    assert await Inbox(link, "c").history(A) == []
    assert await Inbox(link, "c").reclaim(A, idle_ms=0, count=9) == []
    assert await link.command("EXISTS", KEYS.repairs()) == 0


@pytest.mark.parametrize("command", [("DEL", A), ("XGROUP", "DESTROY", A, GROUP)])
async def test_a_history_where_there_is_no_group_makes_one(
    link: Link, command: tuple[str, ...]
) -> None:
    await link.command(*command)
    await add(link, A, "x")
    inbox = Inbox(link, "c")

    assert await inbox.history(A) == []
    assert names(await inbox.read([A], count=9, block_ms=None)) == ["x"]


async def test_a_group_that_was_made_again_delivers_what_is_in_hand_once_more(link: Link) -> None:
    """From the first entry on: nothing is passed over, and what was settled is not there."""
    done, _ = await add(link, A, "done"), await add(link, A, "held")
    await Inbox(link, "c").read([A], count=9, block_ms=None)
    await link.command("XACK", A, GROUP, done)
    await link.command("XDEL", A, done)
    await link.command("XGROUP", "DESTROY", A, GROUP)
    await add(link, A, "new")
    inbox = Inbox(link, "d")

    assert await inbox.read([A], count=9, block_ms=None) == []
    assert names(await inbox.read([A], count=9, block_ms=None)) == ["held", "new"]


async def test_reclaim_takes_what_is_idle_whoever_holds_it_and_counts_deliveries(
    link: Link,
) -> None:
    await add(link, A, "x")
    await Inbox(link, "c").read([A], count=9, block_ms=None)

    assert await Inbox(link, "c").reclaim(A, idle_ms=60_000, count=9) == []
    for times in (2, 3):
        (read,) = await Inbox(link, "c").reclaim(A, idle_ms=0, count=9)
        assert isinstance(read, Delivery)
        assert read.times == times


async def test_reclaim_follows_the_cursor_past_entries_that_are_renewed(link: Link) -> None:
    """XAUTOCLAIM looks at ten times COUNT entries and stops, whether it found any or not."""
    for n in range(50):
        await add(link, A, str(n))
    held = await Inbox(link, "alive").read([A], count=49, block_ms=None)
    await Inbox(link, "dead").read([A], count=9, block_ms=None)
    await link.command("XCLAIM", A, GROUP, "dead", 0, await _last(link), "IDLE", 90_000, "JUSTID")
    assert len(held) == 49

    inbox = Inbox(link, "c")
    rounds = [names(await inbox.reclaim(A, idle_ms=60_000, count=1)) for _ in range(6)]

    assert [name for found in rounds for name in found] == ["49"]
    assert rounds[0] == []


async def test_reclaim_where_there_is_no_group_makes_one(link: Link) -> None:
    await link.command("FLUSHALL")
    await add(link, A, "x")
    inbox = Inbox(link, "c")

    assert await inbox.reclaim(A, idle_ms=0, count=9) == []
    assert names(await inbox.read([A], count=9, block_ms=None)) == ["x"]


@pytest.mark.parametrize(
    "fields",
    [
        ("head", b"\xc1", "body", b"b"),
        ("head", b"\x92\x63\x00", "body", b"b"),
        ("other", "x"),
    ],
    ids=["bytes", "version", "fields"],
)
async def test_a_head_that_cannot_be_read_is_a_broken_entry(
    link: Link, fields: tuple[str | bytes, ...]
) -> None:
    await link.command("XADD", A, "*", *fields)

    (broken,) = await Inbox(link, "c").read([A], count=9, block_ms=None)

    assert isinstance(broken, Broken)
    assert broken.code == "envelope_invalid"
    (same,) = await Inbox(link, "c").history(A)
    assert same == broken


async def _last(link: Link) -> bytes:
    ((entry, _),) = await link.command("XREVRANGE", A, "+", "-", "COUNT", 1)
    return bytes(entry)
