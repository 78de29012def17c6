"""Slots: names stay few and stable, and only their holder may use them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from colony.codec import encode_head
from colony.envelope import Head
from colony.errors import ServerChanged
from colony.inbox import Inbox, make_groups
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.slots import Slots, holders

KEYS = Keys("test")
SOURCE = KEYS.cell("/a")


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    await make_groups(link, [SOURCE])
    yield link
    await link.close()


async def leased(link: Link) -> Slots:
    slots = Slots(link, KEYS, "worker")
    await slots.lease({})
    return slots


async def expire(link: Link, slot: int) -> None:
    """Let the lease of a slot have run out."""
    key = KEYS.slots("worker")
    token, _, about = (await link.command("HGET", key, slot)).split(b" ", 2)
    await link.command("HSET", key, slot, b" ".join((token, b"1", about)))


async def held(link: Link, consumer: str) -> str:
    head = encode_head(Head(id="x", trace_id="x", target="/a", ttl=1))
    await link.command("XADD", SOURCE, "*", "head", head, "body", "b")
    (read,) = await Inbox(link, consumer).read([SOURCE], count=1, block_ms=None)
    return read.entry


async def owner(link: Link) -> tuple[str, int]:
    ((_, consumer, idle, _),) = await link.command("XPENDING", SOURCE, GROUP, "-", "+", 1)
    return consumer.decode(), idle


async def test_each_process_leases_the_lowest_free_slot(link: Link) -> None:
    first, second, third = [await leased(link) for _ in range(3)]
    await second.release()
    fourth = await leased(link)

    assert [s.slot for s in (first, second, third, fourth)] == [0, 1, 2, 1]
    assert fourth.consumer == "worker-1"


async def test_a_lease_is_renewed_by_its_holder_and_by_nobody_else(link: Link) -> None:
    slots = Slots(link, KEYS, "worker")

    assert not await slots.lease({})
    assert await slots.lease({})
    assert slots.slot == 0


async def test_a_lease_that_ran_out_is_taken_and_its_old_holder_is_told(link: Link) -> None:
    old = await leased(link)
    await expire(link, 0)
    new = await leased(link)

    assert (new.slot, old.slot) == (0, 0)
    assert not await old.lease({})
    assert old.slot == 1


async def test_a_slot_that_somebody_held_in_between_is_not_the_one_held_before(link: Link) -> None:
    old = await leased(link)
    await expire(link, 0)
    new = await leased(link)
    await new.release()

    assert not await old.lease({})
    assert old.slot == 0


async def test_a_lease_that_ran_out_and_nobody_took_is_kept(link: Link) -> None:
    slots = await leased(link)
    await expire(link, 0)

    assert await slots.lease({})


async def test_a_slot_is_released_by_its_holder_only(link: Link) -> None:
    old = await leased(link)
    await expire(link, 0)
    await leased(link)

    await old.release()

    assert len(await holders(link, KEYS, "worker")) == 1


async def test_many_starts_at_once_take_different_slots(link: Link) -> None:
    started = await asyncio.gather(*(leased(link) for _ in range(20)))

    assert sorted(s.slot or 0 for s in started) == [*range(20)]


async def test_a_thousand_restarts_leave_one_name(link: Link) -> None:
    for _ in range(1000):
        slots = await leased(link)
        await slots.release()

    assert slots.consumer == "worker-0"
    assert await link.command("HLEN", KEYS.slots("worker")) == 0


async def test_holders_tell_of_themselves_until_their_lease_ends(link: Link) -> None:
    first, second = await leased(link), await leased(link)
    await first.lease({"cells": ["/a b"]})
    await expire(link, second.slot or 0)

    (holder,) = await holders(link, KEYS, "worker")

    assert (holder.role, holder.slot, holder.about["cells"]) == ("worker", 0, ["/a b"])
    assert {"host", "pid"} <= holder.about.keys()


async def test_renewal_keeps_what_is_held(link: Link) -> None:
    slots = await leased(link)
    entry = await held(link, "worker-0")
    await link.command("XCLAIM", SOURCE, GROUP, "worker-0", 0, entry, "IDLE", 90_000, "JUSTID")

    assert await slots.renew(SOURCE, [entry], server=await link.open()) == {entry}

    consumer, idle = await owner(link)
    assert consumer == "worker-0"
    assert idle < 10_000


async def test_renewal_does_not_take_back_what_somebody_else_has(link: Link) -> None:
    slots = await leased(link)
    entry = await held(link, "worker-0")
    await Inbox(link, "worker-7").reclaim(SOURCE, idle_ms=0, count=1)

    assert await slots.renew(SOURCE, [entry], server=await link.open()) == set()
    assert (await owner(link))[0] == "worker-7"


async def test_renewal_under_a_slot_that_somebody_else_holds_keeps_nothing(link: Link) -> None:
    old = await leased(link)
    entry = await held(link, "worker-0")
    await expire(link, 0)
    await leased(link)

    assert await old.renew(SOURCE, [entry], server=await link.open()) == set()


@pytest.mark.parametrize("command", [("DEL", SOURCE), ("XGROUP", "DESTROY", SOURCE, GROUP)])
async def test_renewal_where_stream_or_group_is_gone_keeps_nothing(
    link: Link, command: tuple[str, ...]
) -> None:
    slots = await leased(link)
    entry = await held(link, "worker-0")
    await link.command("XGROUP", "CREATE", SOURCE, "another", "0")
    await link.command(*command)

    assert await slots.renew(SOURCE, [entry], server=await link.open()) == set()


async def test_renewal_for_another_server_is_not_sent(link: Link) -> None:
    slots = await leased(link)

    with pytest.raises(ServerChanged):
        await slots.renew(SOURCE, ["1-1"], server="another")
