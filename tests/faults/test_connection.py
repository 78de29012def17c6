"""A connection that breaks at the worst moment: what was asked happens once, answered or not."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import pytest

from colony.blobs import Blobs
from colony.body import Body
from colony.codec import encode_body, encode_head
from colony.dead_letters import DeadLetters, facts_of
from colony.envelope import DeadLetter, Head
from colony.errors import ServerUnavailable
from colony.inbox import Inbox, make_groups
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import scripts
from colony.streams import Delivery, Outgoing, Step, Streams
from colony.testing.nursery import Nursery
from colony.testing.proxy import Proxy, command, script
from colony.traces import Traces
from tests.faults.colony_at_work import ColonyAtWork, colony_at_work
from tests.faults.tree import CELLS, ROOT, STORE, Kind, ask

KEYS: Final = Keys("test")
OPERATIONS: Final = ("insert", "update", "upsert", "select", "newest", "delete")
Break = Callable[[str], Awaitable[Link]]

# What is asked for, and the scripts that its role sends for that.
SCRIPTS: Final[Mapping[str, tuple[Sequence[str], Sequence[Kind]]]] = {
    "router": (
        ("lease_slot", "commit", "revive", "end_quiet", "retire", "end_trace"),
        ("rounds", "lull", "overdue"),
    ),
    "worker": (
        ("lease_slot", "commit", "record", "update_state", "keep_blob", "renew"),
        ("slow", "large"),
    ),
    "store": (
        ("commit", "store_make", "settle", *(f"store_{name}" for name in OPERATIONS)),
        ("rounds", "ledger"),
    ),
}

_numbers = itertools.count()


def at_work(
    nursery: Nursery, url: str, *, claim_idle_s: float = 0.4
) -> AbstractAsyncContextManager[ColonyAtWork]:
    name = f"connection-{next(_numbers)}"
    environment = {"COLONY_CLAIM_IDLE_S": str(claim_idle_s)}
    return colony_at_work(nursery, url, url, name=name, environment=environment)


async def start(colony: ColonyAtWork, proxied: str, proxy: Proxy) -> None:
    """A router, a worker for the store and one for the rest; one of them behind the proxy."""
    at = {proxied: proxy.url}
    colony.router(at.get("router"))
    colony.worker(at.get("store"), cells=STORE)
    colony.worker(at.get("worker"), cells=CELLS)


async def happened(event: asyncio.Event) -> None:
    async with asyncio.timeout(30):
        await event.wait()


@pytest.mark.parametrize("ways", ["lose_reply", "cut_within"])
@pytest.mark.parametrize("role", SCRIPTS)
async def test_a_script_whose_answer_is_lost_has_its_effect_once(
    role: str, ways: str, nursery: Nursery, redis_url: str
) -> None:
    """Once for each script; or it is cut off half sent, and has no effect until it is repeated."""
    names, kinds = SCRIPTS[role]
    async with Proxy(redis_url) as proxy, at_work(nursery, redis_url) as colony:
        broken = {name: getattr(proxy, ways)(script(name)) for name in names}
        await start(colony, role, proxy)
        async with asyncio.timeout(60):
            while not all(event.is_set() for event in broken.values()):
                await colony.send(*kinds)
                await colony.answers(len(kinds))

        sums = await colony.finish()

        assert sums.clean, sums


@pytest.mark.parametrize("ways", ["lose_reply", "cut_within"])
async def test_an_attempt_that_is_counted_and_not_answered_counts_once(
    ways: str, nursery: Nursery, redis_url: str
) -> None:
    async with Proxy(redis_url) as proxy, at_work(nursery, redis_url) as colony:
        colony.router()
        colony.worker(cells=STORE)
        died = colony.fleet.worker(*_worker_of(CELLS), armed="before_commit=crash")
        await colony.send("rounds", count=3)
        await died.ended()
        broken = getattr(proxy, ways)(script("attempt"))
        colony.worker(proxy.url, cells=CELLS)
        await happened(broken)

        sums = await colony.finish()

        assert sums.clean, sums
        counted = [each for found in (await colony.attempts()).values() for each in found]
        assert counted
        assert {each.split()[0] for each in counted} == {"1"}


@pytest.mark.parametrize("role", ["router", "worker"])
async def test_what_was_read_and_never_arrived_is_found_in_the_readers_own_list(
    role: str, nursery: Nursery, redis_url: str
) -> None:
    """Nobody reclaims: the claim outlasts the test."""
    async with (
        Proxy(redis_url) as proxy,
        at_work(nursery, redis_url, claim_idle_s=600) as colony,
    ):
        source = colony.keys.router() if role == "router" else colony.keys.cell("/dispatch")
        lost = proxy.lose_reply(
            command("XREADGROUP"), telling=lambda reply: _tells_of(reply, source)
        )
        await start(colony, role, proxy)
        await colony.send("rounds", count=3)
        await happened(lost)

        sums = await colony.finish()

        assert sums.clean, sums


async def test_a_report_of_rest_that_was_read_and_never_arrived_is_read_again(
    nursery: Nursery, redis_url: str
) -> None:
    async with Proxy(redis_url) as proxy, at_work(nursery, redis_url) as colony:
        quiet = colony.keys.quiet()
        lost = proxy.lose_reply(
            command("XREADGROUP"), telling=lambda reply: _tells_of(reply, quiet)
        )
        await start(colony, "router", proxy)
        await colony.send("lull", count=3)
        await happened(lost)

        sums = await colony.finish()

        assert sums.clean, sums


async def test_what_was_reclaimed_and_never_arrived_is_found(
    nursery: Nursery, redis_url: str
) -> None:
    async with Proxy(redis_url) as proxy, at_work(nursery, redis_url) as colony:
        colony.router()
        colony.worker(cells=STORE)
        # Side by side, so that who takes over has another name.
        dying = colony.fleet.worker(*_worker_of(CELLS), armed="before_commit=crash")
        other = colony.worker(proxy.url, cells=CELLS)
        await asyncio.gather(dying.serving(), other.serving())
        lost = proxy.lose_reply(script("reclaim"), telling=_took_something)
        while dying.running:
            await colony.send("rounds", count=3)
        await happened(lost)

        sums = await colony.finish()

        assert sums.clean, sums


async def test_a_connection_that_is_cut_all_the_time_costs_nothing(
    nursery: Nursery, redis_url: str
) -> None:
    async with Proxy(redis_url) as proxy, at_work(nursery, redis_url) as colony:
        colony.router(proxy.url)
        colony.worker(proxy.url)
        colony.worker(proxy.url)
        colony.keep_sending("rounds", "large", "ledger", "lull", pause_s=0.1)
        await colony.answers(4)
        for _ in range(3):
            proxy.cut()
            await colony.answers(2)
        proxy.refuse()
        await colony.send("rounds")
        await proxy.admit()

        sums = await colony.finish()

        assert sums.clean, sums


async def test_answers_that_come_later_than_a_claim_lasts_cost_nothing(
    nursery: Nursery, redis_url: str
) -> None:
    async with Proxy(redis_url) as proxy, at_work(nursery, redis_url) as colony:
        colony.router()
        colony.worker(proxy.url)
        colony.worker()
        colony.keep_sending("slow", "rounds", "ledger", pause_s=0.1)
        await colony.answers(2)
        proxy.delay(0.6)
        await colony.answers(4)
        proxy.delay(0)

        sums = await colony.finish()

        assert sums.clean, sums


# Whoever asks from outside has no delivery to fall back on, and asks again.


@pytest.fixture
async def direct(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


@pytest.fixture(params=["lost", "cut", "held"])
async def broken(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Break]:
    """Makes a link on which one script is broken off."""
    async with Proxy(redis_url) as proxy:
        link = Link(proxy.url, silence_s=0.3)

        async def broken(name: str) -> Link:
            await link.command("SCRIPT", "LOAD", scripts()[name].source)
            match request.param:
                case "lost":
                    proxy.lose_reply(script(name))
                case "cut":
                    proxy.cut_within(script(name))
                case "held":
                    proxy.hold()
            return link

        yield broken
        await link.close()


async def test_a_birth_that_was_not_answered_is_repeated_and_found(
    broken: Break, direct: Link
) -> None:
    link, trace_id = await broken("birth"), "0" * 32
    with pytest.raises(ServerUnavailable):
        await ask(link, KEYS, "lull", trace_id=trace_id)

    assert await ask(direct, KEYS, "lull", trace_id=trace_id) == trace_id

    assert await direct.command("XLEN", KEYS.router()) == 1
    assert await direct.command("ZCARD", KEYS.open_traces()) == 1


async def test_a_replay_that_was_not_answered_is_repeated_and_sends_once(
    broken: Break, direct: Link
) -> None:
    await _bury(direct, "1-0")
    link = await broken("replay")
    with pytest.raises(ServerUnavailable):
        await DeadLetters(link, KEYS).replay("1-0", ttl=9)

    first = await DeadLetters(direct, KEYS).replay("1-0", ttl=9)

    assert first == await DeadLetters(direct, KEYS).replay("1-0", ttl=9)
    assert await direct.command("XLEN", KEYS.router()) == 1
    assert await direct.command("ZRANGE", KEYS.open_traces(), 0, -1) == [first.encode()]


async def test_a_commit_whose_answer_is_held_too_long_is_repeated_and_stale(
    broken: Break, direct: Link
) -> None:
    await make_groups(direct, [KEYS.router()])
    await ask(direct, KEYS, "lull")
    (delivery,) = await Inbox(direct, "router-0").read([KEYS.router()], count=1, block_ms=None)
    assert isinstance(delivery, Delivery)
    step = Step(delivery, published=[Outgoing(KEYS.cell("/lull"), b"head", b"body")])
    link = await broken("commit")
    with pytest.raises(ServerUnavailable):
        await Streams(link, KEYS, Blobs(link, KEYS)).commit([step])

    await Streams(direct, KEYS, Blobs(direct, KEYS)).commit([step])

    assert await direct.command("XLEN", KEYS.cell("/lull")) == 1
    assert await direct.command("XLEN", KEYS.router()) == 0
    trace = await Traces(direct, KEYS).get(delivery.head.trace_id)
    assert (trace.state, trace.live) == ("open", 1)


async def _bury(link: Link, letter_id: str) -> None:
    head = Head(id="t", trace_id="t", sender="/a", target="/b", ttl=3)
    letter = DeadLetter("cell_failed", "why", "/a", "/b", "/b", head, b"")
    fields = ("trace", "t", "code", "cell_failed", "facts", facts_of(letter))
    envelope = ("head", encode_head(head), "body", encode_body(Body(messages=())))
    await link.command("XADD", KEYS.dead(), letter_id, *fields, *envelope)


def _worker_of(cells: Sequence[str]) -> list[str]:
    return ["--root", str(ROOT), *(part for cell in cells for part in ("--cells", cell))]


def _tells_of(reply: object, source: str) -> bool:
    """Whether an entry of the source was read; it may be told of none."""
    return isinstance(reply, list) and any(
        stream == source.encode() and entries for stream, entries in reply
    )


def _took_something(reply: object) -> bool:
    return isinstance(reply, list) and reply[0] == b"reclaimed" and bool(reply[2])
