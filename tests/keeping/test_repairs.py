"""Names, orphans and counts: what is found, what is left alone, and what is told."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from colony.codec import encode_head
from colony.counts import Counts
from colony.envelope import Head
from colony.inbox import Inbox, make_groups
from colony.keeping.repairs import MOST_PAGES, NOBODY, PAGE, Repairs
from colony.keys import GROUP, Keys, repairs_beside
from colony.link import Link
from colony.publication import Publication
from colony.slots import Slots
from colony.streams import Delivery
from colony.testing.claims import eventually
from colony.topology.model import CellSettings, CellSpec, TopologySpec

KEYS = Keys("test")
A, B = KEYS.cell("/a"), KEYS.cell("/b")
CELLS = tuple(CellSpec(path=path, cell=CellSettings(type="sink")) for path in ("/a", "/b"))


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


@pytest.fixture
async def repairs(link: Link) -> Repairs:
    publication = Publication(link, KEYS)
    await publication.publish(TopologySpec(cells=CELLS))
    return Repairs(link, KEYS, publication)


async def counted(link: Link) -> dict[str, int]:
    return {name: n for name, n in (await Counts(link, KEYS).read()).items() if n}


async def add(link: Link, *names: str, source: str = A) -> list[str]:
    entries = []
    for name in names:
        head = encode_head(Head(id=name, trace_id=name, target="/a", ttl=1))
        entries.append(
            (await link.command("XADD", source, "*", "head", head, "body", "b")).decode()
        )
    return entries


async def read(link: Link, consumer: str, *, source: str = A, count: int = 1000) -> list[str]:
    found = await Inbox(link, consumer).read([source], count=count, block_ms=None)
    return [delivery.entry for delivery in found]


async def held(link: Link, source: str = A) -> dict[str, str]:
    found = await link.command("XPENDING", source, GROUP, "-", "+", 10_000)
    return {entry.decode(): consumer.decode() for entry, consumer, *_ in found}


async def consumers(link: Link, source: str = A) -> set[str]:
    found = await link.command("XINFO", "CONSUMERS", source, GROUP)
    return {dict(zip(info[::2], info[1::2], strict=True))[b"name"].decode() for info in found}


async def blocked(link: Link) -> bool:
    return b"blocked_clients:0" not in await link.command("INFO", "clients")


# Names


async def test_a_thousand_restarts_leave_only_the_names_of_those_that_live(
    link: Link, repairs: Repairs
) -> None:
    living = [Slots(link, KEYS, "worker") for _ in range(3)]
    for slots in living:
        await slots.lease({})
    for n in range(1000):
        await link.command("XGROUP", "CREATECONSUMER", A, GROUP, f"worker-{n}")
    for n in range(50):
        await link.command("XGROUP", "CREATECONSUMER", KEYS.quiet(), GROUP, f"router-{n}")

    assert await repairs.forget_consumers(idle_ms=-1) == 1047

    assert await consumers(link) == {"worker-0", "worker-1", "worker-2"}
    assert await consumers(link, KEYS.quiet()) == set()
    assert await counted(link) == {"consumers_forgotten": 1047}
    assert await repairs.forget_consumers(idle_ms=-1) == 0


async def test_a_name_that_holds_an_entry_is_kept_with_it(link: Link, repairs: Repairs) -> None:
    entries = await add(link, "x", "y")
    await read(link, "worker-7", count=1)
    await read(link, "worker-8", count=1)
    await link.command("XACK", A, GROUP, entries[1])

    assert await repairs.forget_consumers(idle_ms=-1) == 1

    assert await held(link) == {entries[0]: "worker-7"}


async def test_a_name_that_was_used_lately_is_kept(link: Link, repairs: Repairs) -> None:
    await link.command("XGROUP", "CREATECONSUMER", A, GROUP, "worker-7")

    assert await repairs.forget_consumers() == 0
    assert await consumers(link) == {"worker-7"}


@pytest.mark.parametrize("lease", ["token 1 {}", "nonsense", None])
async def test_a_lease_that_has_run_out_keeps_no_name(
    link: Link, repairs: Repairs, lease: str | None
) -> None:
    await link.command("XGROUP", "CREATECONSUMER", A, GROUP, "worker-0")
    if lease:
        await link.command("HSET", KEYS.slots("worker"), 0, lease)

    assert await repairs.forget_consumers(idle_ms=-1) == 1


@pytest.mark.parametrize("name", [NOBODY, "worker", "worker-x", "-0", "debugging by hand"])
async def test_a_name_that_no_process_can_have_goes_when_it_is_idle(
    link: Link, repairs: Repairs, name: str
) -> None:
    await Slots(link, KEYS, "worker").lease({})
    await link.command("XGROUP", "CREATECONSUMER", A, GROUP, name)

    assert await repairs.forget_consumers(idle_ms=-1) == 1


async def test_the_lease_of_another_role_keeps_no_name(link: Link, repairs: Repairs) -> None:
    await Slots(link, KEYS, "router").lease({})
    await link.command("XGROUP", "CREATECONSUMER", A, GROUP, "worker-0")

    assert await repairs.forget_consumers(idle_ms=-1) == 1


async def test_groups_of_others_and_streams_without_a_group_are_left_alone(
    link: Link, repairs: Repairs
) -> None:
    await link.command("XGROUP", "CREATE", A, "theirs", "0")
    await link.command("XGROUP", "CREATECONSUMER", A, "theirs", "worker-0")
    await link.command("XGROUP", "DESTROY", B, GROUP)
    await link.command("DEL", KEYS.quiet())

    assert await repairs.forget_consumers(idle_ms=-1) == 0
    assert len(await link.command("XINFO", "CONSUMERS", A, "theirs")) == 1
    assert await link.command("EXISTS", KEYS.quiet()) == 0


async def test_a_reader_whose_name_was_forgotten_while_it_waits_gets_what_comes(
    link: Link, repairs: Repairs, redis_url: str
) -> None:
    await link.command("XGROUP", "CREATECONSUMER", A, GROUP, "worker-7")
    reader = Link(redis_url)
    waiting = asyncio.create_task(
        Inbox(link, "worker-7", reader=reader).read([A], count=9, block_ms=10_000)
    )
    await eventually(lambda: blocked(link))

    assert await repairs.forget_consumers(idle_ms=-1) == 1
    (entry,) = await add(link, "x")

    assert [delivery.entry for delivery in await waiting] == [entry]
    assert await held(link) == {entry: "worker-7"}
    await reader.close()


# Orphans


async def test_what_a_deleted_name_held_is_delivered_again_as_a_redelivery(
    link: Link, repairs: Repairs
) -> None:
    entries = await add(link, "x", "y")
    await read(link, "worker-0")
    assert await link.command("XGROUP", "DELCONSUMER", A, GROUP, "worker-0") == 2
    inbox = Inbox(link, "worker-1")
    assert await inbox.reclaim(A, idle_ms=0, count=9) == []

    assert await repairs.adopt_orphans() == 2

    found = await inbox.reclaim(A, idle_ms=60_000, count=9)
    assert [delivery.entry for delivery in found] == entries
    assert [d.redelivered for d in found if isinstance(d, Delivery)] == [True, True]
    assert await held(link) == dict.fromkeys(entries, "worker-1")
    assert await counted(link) == {"orphans_adopted": 2}
    assert await repairs.adopt_orphans() == 0


async def test_what_somebody_holds_is_no_orphan(link: Link, repairs: Repairs) -> None:
    entries = await add(link, "x", "y", "z")
    await read(link, "worker-0", count=2)
    await read(link, "worker-1", count=1)
    await link.command("XGROUP", "DELCONSUMER", A, GROUP, "worker-1")

    assert await repairs.adopt_orphans() == 1

    assert await held(link) == {
        entries[0]: "worker-0",
        entries[1]: "worker-0",
        entries[2]: NOBODY,
    }


async def test_what_was_never_delivered_is_not_looked_at(link: Link, repairs: Repairs) -> None:
    """However much waits, a sweep costs one look at each stream."""
    await add(link, *(str(n) for n in range(3 * PAGE)))
    await repairs.adopt_orphans()
    await link.command("CONFIG", "RESETSTAT")

    assert await repairs.adopt_orphans() == 0

    stats = (await link.command("INFO", "commandstats")).decode()
    assert "cmdstat_evalsha:calls=4," in stats
    assert "cmdstat_xpending" not in stats
    assert await held(link) == {}
    assert len(await read(link, "worker-0")) == 3 * PAGE


async def test_a_sweep_of_much_is_bounded_and_the_next_goes_on(
    link: Link, repairs: Repairs
) -> None:
    most = PAGE * MOST_PAGES
    await add(link, *(str(n) for n in range(most + 50)))
    await read(link, "worker-0", count=10_000)
    await link.command("XGROUP", "DELCONSUMER", A, GROUP, "worker-0")

    assert [await repairs.adopt_orphans() for _ in range(3)] == [most, 50, 0]


async def test_the_next_sweep_begins_anew_behind_the_end(link: Link, repairs: Repairs) -> None:
    await add(link, "x")
    await read(link, "worker-0")
    assert await repairs.adopt_orphans() == 0

    await link.command("XGROUP", "DELCONSUMER", A, GROUP, "worker-0")

    assert await repairs.adopt_orphans() == 1


async def test_what_a_moved_group_passed_over_is_delivered(link: Link, repairs: Repairs) -> None:
    entries = await add(link, "x", "y")
    await link.command("XGROUP", "SETID", A, GROUP, "$")
    assert await read(link, "worker-0") == []

    assert await repairs.adopt_orphans() == 2
    found = await Inbox(link, "worker-0").reclaim(A, idle_ms=60_000, count=9)
    assert [delivery.entry for delivery in found] == entries


async def test_an_orphan_that_its_holder_settles_first_is_none(
    link: Link, repairs: Repairs
) -> None:
    (entry,) = await add(link, "x")
    await read(link, "worker-0")
    await link.command("XGROUP", "DELCONSUMER", A, GROUP, "worker-0")
    await link.command("XDEL", A, entry)

    assert await repairs.adopt_orphans() == 0
    assert await held(link) == {}


async def test_sweeps_that_race_adopt_each_orphan_once(link: Link, repairs: Repairs) -> None:
    await add(link, *(str(n) for n in range(30)))
    await read(link, "worker-0")
    await link.command("XGROUP", "DELCONSUMER", A, GROUP, "worker-0")
    others = [Repairs(link, KEYS, repairs.publication) for _ in range(5)]

    found = await asyncio.gather(*(other.adopt_orphans() for other in others))

    assert sum(found) == 30
    assert await counted(link) == {"orphans_adopted": 30}


async def test_a_group_that_was_made_again_delivers_all_and_leaves_no_orphan(
    link: Link, repairs: Repairs
) -> None:
    entries = await add(link, "x", "y")
    await read(link, "worker-0")
    await link.command("XGROUP", "DESTROY", A, GROUP)
    assert await repairs.adopt_orphans() == 0
    await make_groups(link, [A])

    assert await repairs.adopt_orphans() == 0
    assert await read(link, "worker-1") == entries


@pytest.mark.parametrize("source", [KEYS.router(), KEYS.quiet(), B])
async def test_every_stream_is_swept(link: Link, repairs: Repairs, source: str) -> None:
    await add(link, "x", source=source)
    await read(link, "any-0", source=source)
    await link.command("XGROUP", "DELCONSUMER", source, GROUP, "any-0")

    assert await repairs.adopt_orphans() == 1


async def test_cells_that_are_gone_are_swept_too(link: Link, repairs: Repairs) -> None:
    await add(link, "x")
    await read(link, "worker-0")
    await link.command("XGROUP", "DELCONSUMER", A, GROUP, "worker-0")
    await repairs.publication.publish(TopologySpec())
    await repairs.publication.refresh()

    assert await repairs.adopt_orphans() == 1


# Counts


async def test_counts_are_told_by_name_and_add_up(link: Link) -> None:
    counts = Counts(link, KEYS)
    assert set((await counts.read()).values()) == {0}

    await counts.add("claims_lost")
    await counts.add("claims_lost", 2)

    assert await counted(link) == {"claims_lost": 3}


@pytest.mark.parametrize("keys", [Keys("a"), Keys("a-1", 12)])
def test_the_counts_beside_a_stream_are_those_of_its_partition(keys: Keys) -> None:
    for stream in (keys.router(), keys.cell("/a/{x}:y"), keys.quiet()):
        assert repairs_beside(stream) == keys.repairs()
