"""Sources: what a cell makes of its own is born once, by whichever process comes first."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from colony import sources
from colony.body import Entry
from colony.cell import Cell
from colony.codec import decode_head
from colony.envelope import EXTERNAL, Emission, digest
from colony.errors import Backlogged, EnvelopeError, GuardReused
from colony.host import Mark, Source
from colony.keys import Keys
from colony.link import Link
from colony.sources import LiveSource, drive
from colony.testing.fleet import Fleet, Process
from colony.testing.harness import Harness
from colony.testing.nursery import Nursery
from colony.testing.telegram_server import TelegramServer
from colony.topology.model import (
    CellSettings,
    CellSpec,
    ColonySettings,
    EdgeSpec,
    Topology,
    TopologySpec,
)
from colony.traces import Traces

KEYS = Keys("test")
BOT = CellSpec(path="/bot", cell=CellSettings(type="proxy"))
SETTINGS = ColonySettings(ingress_backlog_max=2, message_default_ttl=9)
TOPOLOGY = Topology.compile(TopologySpec(cells=(BOT,), settings=SETTINGS), version=1)
HELLO = Emission.of(Entry.say("user", "hello"), chat_id=7)
PATIENCE_S = 30.0


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


@pytest.fixture
async def source(link: Link) -> AsyncIterator[Callable[[], LiveSource]]:
    """Makes the source of the cell as another process has it."""
    made: list[LiveSource] = []

    def make() -> LiveSource:
        source = LiveSource(
            link=link, keys=KEYS, spec=BOT, directory=None, topology=lambda: TOPOLOGY
        )
        made.append(source)
        return source

    yield make
    for source in made:
        await source.close()


async def until(claim: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await claim():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def waiting(link: Link) -> list[Any]:
    entries = await link.command("XRANGE", KEYS.router(), "-", "+")
    return [decode_head(fields[1]) for _, fields in entries]


Make = Callable[[], LiveSource]


# Births and marks


async def test_a_birth_leaves_by_the_edges_of_its_cell(link: Link, source: Make) -> None:
    assert await source().birth(HELLO, mark=5)

    (head,) = await waiting(link)
    assert (head.sender, head.target, head.ttl) == ("/bot", None, 9)
    assert (head.hop, head.context) == ({"chat_id": 7}, {})
    trace = await Traces(link, KEYS).get(head.trace_id)
    assert (trace.state, trace.live, trace.entry) == ("open", 1, "/bot")


async def test_births_have_their_places_in_their_session(link: Link, source: Make) -> None:
    assert await source().birth(HELLO, mark=1, session="s")
    await source().admit(HELLO, guard="g", session="s")

    heads = await waiting(link)
    assert [head.context for head in heads] == [{"session_id": "s"}] * 2
    places = await link.command("ZRANGE", KEYS.order(digest("s")), 0, -1)
    assert [place.decode() for place in places] == [head.trace_id for head in heads]
    record = await link.command("HGET", KEYS.trace(heads[0].trace_id), "session")
    assert record == b"s"


async def test_of_many_processes_one_gives_birth(link: Link, source: Make) -> None:
    born = await asyncio.gather(*(source().birth(HELLO, mark=5) for _ in range(20)))

    assert sorted(born) == [False] * 19 + [True]
    assert len(await waiting(link)) == 1
    assert await source().mark() == Mark(5, 1)


async def test_a_mark_only_rises(source: Make) -> None:
    one = source()
    assert await one.mark() == Mark(-1, 0)
    assert await one.raise_mark(5)
    assert not await one.raise_mark(5)
    assert not await one.birth(HELLO, mark=4)
    assert await one.birth(HELLO, mark=6)
    assert await one.birth(HELLO, mark=2**53 - 1, name="other")

    assert await one.mark() == Mark(6, 1)
    assert await one.mark("other") == Mark(2**53 - 1, 1)


async def test_a_birth_may_build_on_the_mark_that_was_seen(source: Make) -> None:
    one = source()
    assert await one.raise_mark(5, after=-1)
    assert not await one.raise_mark(6, after=-1)
    assert not await one.birth(HELLO, mark=6, after=4)
    assert await one.birth(HELLO, mark=6, after=5)


async def test_a_large_body_goes_with_its_trace(link: Link, source: Make) -> None:
    large = Emission.say("x" * 100_000)
    assert await source().birth(large, mark=1)

    (head,) = await waiting(link)
    (blob,) = await link.command("SMEMBERS", KEYS.belongings(head.trace_id))
    assert await link.command("PTTL", blob) == -1


async def test_what_cannot_be_sent_raises_no_mark(source: Make) -> None:
    one = source()
    with pytest.raises(EnvelopeError):
        await one.birth(Emission.say("x", key="y" * 70_000), mark=1)

    assert await one.mark() == Mark()


async def test_a_birth_waits_while_too_much_waits(link: Link, source: Make) -> None:
    one = source()
    assert [await one.birth(HELLO, mark=n) for n in (1, 2)] == [True, True]
    held = asyncio.create_task(one.birth(HELLO, mark=3))
    with pytest.raises(Backlogged):
        await source().admit(HELLO, guard="g")
    assert not held.done()

    await link.command("XTRIM", KEYS.router(), "MAXLEN", 0)

    assert await asyncio.wait_for(held, PATIENCE_S)


async def test_a_guard_admits_once(link: Link, source: Make) -> None:
    first = await source().admit(HELLO, guard="g")
    again = await source().admit(HELLO, guard="g")
    with pytest.raises(GuardReused):
        await source().admit(Emission.say("other"), guard="g")

    assert first == again
    (head,) = await waiting(link)
    assert (head.trace_id, head.sender) == (first, "/bot")
    assert head.sender != EXTERNAL


async def test_the_state_is_that_of_the_cell(link: Link, source: Make) -> None:
    one = source()
    await one.put_state({"a.b": "1", "c": "2"})
    await one.remove_state(["c", "d"])
    await one.put_state({})
    await one.remove_state([])

    assert await source().state() == {"a.b": "1"}
    assert await link.command("HGETALL", KEYS.state("/bot", "cell", "all")) == [b"a.b", b"1"]


# Who leads


async def test_one_process_leads_until_it_stops(source: Make) -> None:
    one, two = source(), source()
    assert await one.lead(60_000)
    assert await one.lead(60_000)
    assert not await two.lead(60_000)

    await one.close()

    assert await two.lead(60_000)


async def test_a_lease_is_renewed_without_being_asked_for(link: Link, source: Make) -> None:
    one = source()
    assert await one.lead(300)
    left = await link.command("PTTL", KEYS.lease("/bot"))
    await link.command("PEXPIRE", KEYS.lease("/bot"), 250)

    async def renewed() -> bool:
        return bool(await link.command("PTTL", KEYS.lease("/bot")) > 250)

    assert left > 250
    await until(renewed)


async def test_a_process_that_is_gone_is_followed_when_its_lease_ends(
    link: Link, source: Make
) -> None:
    await link.command("SET", KEYS.lease("/bot"), "of the dead", "PX", 200)
    one = source()
    assert not await one.lead(60_000)

    async def leads() -> bool:
        return await one.lead(60_000)

    await until(leads)


async def test_a_process_whose_renewal_is_refused_leads_no_more(link: Link, source: Make) -> None:
    first = source()
    assert await first.lead(150)
    await link.command("DEL", KEYS.lease(BOT.path))
    # What no script of a colony makes of it.
    await link.command("LPUSH", KEYS.lease(BOT.path), "x")
    await until(lambda: renewal_over(first))
    await link.command("DEL", KEYS.lease(BOT.path))

    assert await source().lead(60_000)
    assert not await first.lead(150)


async def renewal_over(source: LiveSource) -> bool:
    return source._renewing is not None and source._renewing.done()


async def test_a_process_that_lost_its_lease_finds_out(link: Link, source: Make) -> None:
    one = source()
    assert await one.lead(300)
    await link.command("SET", KEYS.lease("/bot"), "of another", "PX", 60_000)

    async def lost() -> bool:
        return not await one.lead(300)

    await until(lost)
    await one.close()
    assert await link.command("GET", KEYS.lease("/bot")) == b"of another"


# Running


class Stumbling(Cell):
    """Fails twice, then has no more to make."""

    runs = 0

    async def run(self, source: Source) -> None:
        self.runs += 1
        if self.runs < 3:
            raise ValueError("stumbled")


async def test_a_cell_that_fails_is_run_again(
    source: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sources, "RETRY_S", 0.001)
    cell = Stumbling(Cell.Params())

    await asyncio.wait_for(drive(cell, source()), PATIENCE_S)

    assert cell.runs == 3
    told = [line for line in caplog.messages if line.startswith("source_failed")]
    assert len(told) == 2
    assert "ValueError: stumbled" in told[0]


def bot(server: TelegramServer) -> dict[str, Any]:
    return {
        "bot_token": server.token,
        "base_url": server.base_url,
        "long_poll_request_secs": 1,
        "lease_ms": 1_000,
    }


@pytest.fixture
def server() -> Iterator[TelegramServer]:
    with TelegramServer() as server:
        yield server


def conversation(server: TelegramServer) -> TopologySpec:
    back = {"set_context": {"chat_id": "hop.chat_id"}}
    return TopologySpec(
        cells=(
            CellSpec(path="/bot", cell=CellSettings(type="proxy"), params=bot(server)),
            CellSpec(
                path="/echo",
                cell=CellSettings(type="llm"),
                params={"provider": "scripted", "script": [{"text": "you said so"}]},
            ),
        ),
        edges=(
            EdgeSpec(source="/bot", target="/echo", modifier=back),
            EdgeSpec(source="/echo", target="/bot"),
        ),
    )


async def test_a_colony_answers_who_writes_to_it(redis_url: str, server: TelegramServer) -> None:
    async with Harness(redis_url, conversation(server)) as colony:
        server.say("hello", chat_id=7)

        async def answered() -> bool:
            await colony.finish()
            return bool(server.sent)

        await until(answered)
        assert await colony.letters() == []
        (trace_id,) = await colony.traces.ids("ended", limit=9)
        trace = await colony.trace(trace_id)

    assert [(sent.chat_id, sent.text) for sent in server.sent] == [(7, "you said so")]
    assert (trace.cause, trace.outputs, trace.entry) == ("completed", 1, "/bot")


async def test_a_cell_that_is_gone_makes_no_more(redis_url: str, server: TelegramServer) -> None:
    async with Harness(redis_url, conversation(server)) as colony:

        async def polled() -> bool:
            return bool(server.polls)

        await until(polled)
        await colony.publication.publish(TopologySpec())
        await colony.publication.refresh()

        async def released() -> bool:
            return not await colony.link.command("EXISTS", colony.keys.lease("/bot"))

        await until(released)
        server.say("is anybody there?")
        assert await colony.run() == 0

    assert server.sent == []


# Two hosts


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


@pytest.fixture
def fleet(nursery: Nursery, redis_url: str) -> Iterator[Fleet]:
    environment = {"COLONY_CLAIM_IDLE_S": "1"}
    with Fleet(nursery, redis_url, "test", environment=environment) as started:
        yield started


def laid_out(tree: Path, server: TelegramServer) -> Path:
    spec = conversation(server)
    edges = [edge.model_dump(by_alias=True, exclude_defaults=True) for edge in spec.edges]
    hive = {"cell": {"type": "hive"}, "params": {"graph": {"edges": edges}}}
    files = {"": hive, **{cell.path: _config(cell) for cell in spec.cells}}
    for path, content in files.items():
        folder = tree / "main" / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(content))
    return tree


def _config(cell: CellSpec) -> dict[str, Any]:
    return {"cell": {"type": cell.cell.type}, "params": cell.params}


async def ended(link: Link) -> int:
    return int(await link.command("ZCARD", KEYS.ended_traces()))


async def open_traces(link: Link) -> int:
    return int(await link.command("ZCARD", KEYS.open_traces()))


async def test_when_the_leader_is_killed_another_process_takes_over(
    fleet: Fleet, link: Link, server: TelegramServer, tmp_path: Path
) -> None:
    await fleet.publish(laid_out(tmp_path, server))
    fleet.router()
    leader = await fleet.worker().serving()

    async def polled() -> bool:
        return bool(server.polls)

    await until(polled)
    await fleet.worker().serving()
    before = [server.say("before", chat_id=chat) for chat in (1, 2)]

    async def settled() -> bool:
        return await ended(link) == len(before)

    await until(settled)
    leader.kill()
    await leader.ended()
    after = [server.say("after", chat_id=chat) for chat in (3, 4)]

    async def all_settled() -> bool:
        return await ended(link) == len(before + after)

    await until(all_settled)
    assert sorted(sent.chat_id for sent in server.sent) == [1, 2, 3, 4]
    assert await open_traces(link) == 0
    assert "Conflict: terminated by other getUpdates request" not in server.refused


@pytest.mark.parametrize("point", ["before_birth_marked", "after_birth_marked", "after_raise_mark"])
async def test_a_process_that_dies_around_a_birth_loses_and_doubles_nothing(
    fleet: Fleet, link: Link, server: TelegramServer, tmp_path: Path, point: str
) -> None:
    await fleet.publish(laid_out(tmp_path, server))
    fleet.router()
    for chat in (1, 2, 3):
        server.say("hello", chat_id=chat)
        server.push({"message": {"message_id": 1, "chat": {"id": chat}, "photo": []}})
    dying = fleet.worker(armed=f"{point}=crash@2")
    assert await dying.ended() == -9

    again: Process = fleet.again(dying)
    await again.serving()

    async def settled() -> bool:
        return await ended(link) == 3 and not server.unconfirmed

    await until(settled)
    assert {sent.chat_id for sent in server.sent} == {1, 2, 3}
    assert await open_traces(link) == 0


async def test_a_leader_that_was_frozen_finds_another_in_its_place(
    fleet: Fleet, link: Link, server: TelegramServer, tmp_path: Path
) -> None:
    await fleet.publish(laid_out(tmp_path, server))
    fleet.router()
    frozen = await fleet.worker().serving()

    async def polled() -> bool:
        return bool(server.polls)

    await until(polled)
    await fleet.worker().serving()
    frozen.freeze()
    await frozen.stands_still()
    server.say("while it stood still", chat_id=1)

    async def settled() -> bool:
        return await ended(link) == len(chats)

    chats = [1]
    await until(settled)
    frozen.resume()
    server.say("when it woke", chat_id=2)
    chats.append(2)
    await until(settled)

    assert {sent.chat_id for sent in server.sent} == {1, 2}
    assert await open_traces(link) == 0
