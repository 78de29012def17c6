"""The audit: every count is right again after a loss, and no count is touched without one."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.codec import encode_body, encode_head
from colony.counts import Counts
from colony.dead_letters import DeadLetters
from colony.envelope import DeadLetter
from colony.errors import EnvelopeError, ServerChanged, ServerUnavailable
from colony.inbox import Inbox
from colony.keeping import audit as audit_module
from colony.keeping.audit import LOST, Audit
from colony.keeping.keeper import Keeper
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.publication import Publication
from colony.records import write_record
from colony.routing import Leg
from colony.slots import Slots
from colony.streams import Broken, Delivery, Outgoing, Step, Streams
from colony.testing.redis_server import RedisServer
from colony.topology.model import (
    QUIET,
    CellSettings,
    CellSpec,
    ColonySettings,
    EdgeSpec,
    TopologySpec,
)
from colony.traces import Trace, Traces

KEYS = Keys("test")
A, B, ROUTER = KEYS.cell("/a"), KEYS.cell("/b"), KEYS.router()
HELLO = Body.of(Entry.say("user", "hello"))
CELLS = tuple(CellSpec(path=path, cell=CellSettings(type="sink")) for path in ("/a", "/b"))
LANE = EdgeSpec(source=QUIET, target="/b", condition="has(hop.error_code)")

Act = Callable[[], Awaitable[object]]


class Colony:
    """Streams with envelopes under way, and a keeper that audits them."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.streams = Streams(link, KEYS, Blobs(link, KEYS))
        self.publication = Publication(link, KEYS)
        self.traces = Traces(link, KEYS)
        self.keeper = Keeper(self.streams, self.publication)
        self.letters = DeadLetters(link, KEYS)

    async def apply(self, *edges: EdgeSpec, **settings: Any) -> None:
        spec = TopologySpec(settings=ColonySettings(**settings), cells=CELLS, edges=edges)
        await self.publication.publish(spec)
        await self.publication.refresh()

    async def take(self, stream: str, consumer: str = "worker-0") -> Delivery:
        (delivery,) = await Inbox(self.link, consumer).read([stream], count=1, block_ms=None)
        assert isinstance(delivery, Delivery)
        return delivery

    async def move(self, delivery: Delivery, *streams: str) -> str:
        """Settle a delivery, with an envelope for each of the streams; returns the token."""
        head = delivery.head
        heads = [
            head.model_copy(update={"id": f"{head.id}.{n}", "target": "/a", "ttl": head.ttl - 1})
            for n in range(len(streams))
        ]
        published = [
            Outgoing(stream, encode_head(child), encode_body(HELLO))
            for stream, child in zip(streams, heads, strict=True)
        ]
        records = [write_record(Leg(child, None), None) for child in heads]
        (outcome,) = await self.streams.commit([Step(delivery, published, records)])
        return outcome.token

    async def under_way(self, *streams: str) -> str:
        """A trace with an envelope in each of these streams, undelivered."""
        born = await self.traces.birth("/a", HELLO, ttl=9, context={"k": 1})
        await self.move(await self.take(ROUTER, "router-0"), *streams)
        return born.trace_id

    async def newest(self, stream: str) -> bytes:
        ((entry, _),) = await self.link.command("XREVRANGE", stream, "+", "-", "COUNT", 1)
        return bytes(entry)

    async def delete(self, stream: str) -> None:
        """Delete the newest entry, as a stranger does."""
        assert await self.link.command("XDEL", stream, await self.newest(stream)) == 1

    async def look(self) -> list[str]:
        """What a keeper does that starts now."""
        await self.link.command("DEL", KEYS.audit())
        return await Keeper(self.streams, self.publication).audit.look()

    async def finish(self, trace_id: str) -> Trace:
        await self.keeper.attend(trace_id)
        return await self.traces.get(trace_id)

    async def count(self, name: str) -> int:
        return (await Counts(self.link, KEYS).read())[name]

    async def buried(self) -> list[tuple[str, str]]:
        return [(letter.code, letter.trace_id) async for letter in _each(self.letters)]


async def _each(letters: DeadLetters) -> AsyncIterator[Any]:
    for entry, _ in await letters.link.command("XRANGE", KEYS.dead(), "-", "+"):
        yield await letters.get(entry.decode())


@pytest.fixture
async def colony(redis_url: str) -> AsyncIterator[Colony]:
    link = Link(redis_url)
    colony = Colony(link)
    await colony.apply()
    yield colony
    await link.close()


class Interrupted(Audit):
    """An audit during which something happens, at a point of the test's choice."""

    def __init__(self, colony: Colony, **acts: Act) -> None:
        keeper = colony.keeper
        super().__init__(colony.link, KEYS, colony.publication, keeper.attend)
        self.acts = acts

    async def _act(self, point: str) -> None:
        if act := self.acts.pop(point, None):
            await act()

    async def _tally(self, ids: set[str], server: str) -> Counter[str]:
        await self._act("before_search")
        found = await super()._tally(ids, server)
        await self._act("after_search")
        return found

    async def _heads(self, source: str, server: str) -> AsyncIterator[bytes]:
        await self._act(f"before {source}")
        async for head in super()._heads(source, server):
            yield head

    async def _last_hop(self, trace_id: str, server: str) -> Any:
        hop = await super()._last_hop(trace_id, server)
        await self._act("before_correction")
        return hop


# What is found, and what becomes of it


async def test_traces_whose_pending_entries_were_trimmed_end_with_that_reason(
    colony: Colony, caplog: pytest.LogCaptureFixture
) -> None:
    traces = sorted([await colony.under_way(A) for _ in range(3)])
    for _ in traces:
        await colony.take(A)
    await colony.link.command("XTRIM", A, "MAXLEN", 0)

    with caplog.at_level(logging.ERROR):
        found = await Inbox(colony.link, "worker-1").reclaim(A, idle_ms=0, count=64)
        corrected = await colony.look()

    assert found == []
    assert (await colony.link.command("XPENDING", A, GROUP))[0] == 0
    assert await colony.count("entries_lost") == 3
    assert corrected == traces
    assert await colony.count("traces_corrected") == 3
    assert sorted(await colony.buried()) == [(LOST, trace_id) for trace_id in traces]
    told = [line.split()[0] for line in caplog.messages]
    assert (told.count("entry_lost"), told.count(LOST)) == (3, 3)
    for trace_id in traces:
        trace = await colony.finish(trace_id)
        assert (trace.state, trace.cause, trace.reason) == ("ended", "failed", LOST)
        assert (trace.live, trace.dead) == (0, 1)


@pytest.mark.parametrize("stream", [ROUTER, A, B])
async def test_an_entry_that_was_deleted_before_anybody_read_it_is_found(
    colony: Colony, stream: str
) -> None:
    trace_id = await colony.under_way(stream)
    await colony.delete(stream)

    assert await colony.look() == [trace_id]

    assert (await colony.finish(trace_id)).reason == LOST


async def test_a_trace_that_lost_one_of_several_goes_on(colony: Colony) -> None:
    trace_id = await colony.under_way(A, B, ROUTER)
    await colony.delete(A)

    assert await colony.look() == [trace_id]

    trace = await colony.traces.get(trace_id)
    assert (trace.state, trace.live, trace.dead, trace.error_code) == ("open", 2, 1, LOST)
    assert await colony.link.command("XLEN", KEYS.quiet()) == 0
    await colony.move(await colony.take(B))
    await colony.move(await colony.take(ROUTER))
    assert (await colony.traces.get(trace_id)).state == "quiet"


async def test_each_envelope_that_is_lost_has_its_letter_which_cannot_be_replayed(
    colony: Colony,
) -> None:
    trace_id = await colony.under_way(A, A, B)
    await colony.link.command("XTRIM", A, "MAXLEN", 0)

    await colony.look()

    assert await colony.buried() == [(LOST, trace_id)] * 2
    letter = await anext(_each(colony.letters))
    told = letter.to_json()
    assert (told["trace_id"], told["message_id"], letter.head) == (trace_id, None, None)
    assert "one of 2" in str(told["detail"])
    assert "@external to /a" in str(told["detail"])
    with pytest.raises(EnvelopeError):
        await colony.letters.replay(letter.id, ttl=9)


async def test_the_quiet_lane_is_told_of_the_loss_and_keeps_the_context(colony: Colony) -> None:
    await colony.apply(LANE)
    trace_id = await colony.under_way(A)
    await colony.delete(A)
    await colony.look()

    trace = await colony.finish(trace_id)

    assert (trace.state, trace.live, trace.revivals) == ("open", 1, 1)
    head = (await colony.take(ROUTER)).head
    assert head.context == {"k": 1}
    assert head.hop == {"route": "quiet", "entry": "/a", "outputs": 0, "error_code": LOST}


async def test_without_any_hop_the_lane_has_no_context(colony: Colony) -> None:
    await colony.apply(LANE)
    born = await colony.traces.birth("/a", HELLO, ttl=9)
    await colony.delete(ROUTER)
    await colony.look()

    assert (await colony.finish(born.trace_id)).state == "open"
    assert (await colony.take(ROUTER)).head.context == {}


async def test_the_loss_of_a_broken_entry_is_corrected_once_it_is_buried(colony: Colony) -> None:
    trace_id = await colony.under_way(A)
    entry = await colony.newest(A)
    await colony.link.command("XDEL", A, entry)
    await colony.link.command("XADD", A, "*", "head", b"\xc1", "body", "b")
    (broken,) = await Inbox(colony.link, "worker-0").read([A], count=9, block_ms=None)
    assert isinstance(broken, Broken)

    await colony.streams.bury(broken, target="/a")
    await colony.streams.bury(broken, target="/a")

    assert await colony.count("entries_broken") == 1
    assert await colony.count("stale_commits") == 1
    assert await colony.look() == [trace_id]
    assert [code for code, _ in await colony.buried()] == ["envelope_invalid", LOST]


async def test_a_trace_that_ended_is_retired_though_an_envelope_was_lost(colony: Colony) -> None:
    """It leaves no letter: what it had under way would have been dropped."""
    trace_id = await colony.under_way(A, B)
    await colony.traces.end(trace_id, "cancelled", "why")
    await colony.link.command("ZADD", KEYS.ended_traces(), 1, trace_id)
    await colony.delete(A)

    assert await colony.look() == [trace_id]

    assert await colony.buried() == []
    await colony.move(await colony.take(B))
    trace = await colony.finish(trace_id)
    assert (trace.state, trace.cause, trace.live, trace.dead) == ("ended", "cancelled", 0, 0)
    assert await colony.link.command("PTTL", KEYS.trace(trace_id)) > 0


async def test_a_quiet_trace_whose_report_was_deleted_is_attended_to(colony: Colony) -> None:
    trace_id = await colony.under_way()
    await colony.delete(KEYS.quiet())
    assert (await colony.traces.get(trace_id)).state == "quiet"

    assert await colony.look() == []

    assert (await colony.traces.get(trace_id)).ended


async def test_a_record_that_is_none_keeps_nobody_waiting(colony: Colony) -> None:
    trace_id = await colony.under_way(A)
    await colony.delete(A)
    await colony.link.command("SET", KEYS.trace("bad"), "no hash")
    await colony.link.command("HSET", KEYS.trace("worse"), "live", "many")
    await colony.link.command("ZADD", KEYS.open_traces(), 1, "bad", 2, "worse", 3, "gone")

    assert await colony.look() == [trace_id]


async def test_a_record_of_a_time_without_steps_is_corrected(colony: Colony) -> None:
    trace_id = await colony.under_way(A)
    await colony.link.command("HDEL", KEYS.trace(trace_id), "steps")
    await colony.delete(A)

    assert await colony.look() == [trace_id]


async def test_what_is_there_is_never_taken_for_lost(colony: Colony) -> None:
    """Pending, waiting, held by nobody, at a cell that is gone, many pages deep."""
    traces = [await colony.under_way(A, A, B, B) for _ in range(120)]
    for n in range(10):
        await colony.take(A, f"worker-{n}")
    await colony.link.command("XGROUP", "DELCONSUMER", A, GROUP, "worker-0")
    await colony.link.command("XGROUP", "DESTROY", B, GROUP)
    await colony.publication.publish(TopologySpec())

    assert await colony.look() == []

    assert {(await colony.traces.get(trace_id)).live for trace_id in traces} == {4}
    assert await colony.buried() == []


# Who comes across a loss first


async def test_the_commit_of_a_deleted_entry_is_stale_and_counts_the_loss(colony: Colony) -> None:
    trace_id = await colony.under_way(A)
    delivery = await colony.take(A)
    await colony.delete(A)

    assert await colony.move(delivery, B) == "stale"
    assert await colony.move(delivery, B) == "stale"

    assert (await colony.count("entries_lost"), await colony.count("stale_commits")) == (1, 1)
    assert await colony.link.command("XLEN", B) == 0
    assert await colony.look() == [trace_id]


async def test_a_second_commit_of_one_delivery_is_no_loss(colony: Colony) -> None:
    await colony.under_way(A)
    delivery = await colony.take(A)
    assert await colony.move(delivery, B) == "committed"

    assert await colony.move(delivery, B) == "stale"

    assert (await colony.count("entries_lost"), await colony.count("stale_commits")) == (0, 1)


async def test_a_commit_after_the_group_was_made_again_is_no_loss(colony: Colony) -> None:
    """Both hold the entry now; the first that commits publishes, the other is stale."""
    trace_id = await colony.under_way(A)
    before = await colony.take(A)
    await colony.link.command("XGROUP", "DESTROY", A, GROUP)
    inbox = Inbox(colony.link, "worker-1")
    assert await inbox.read([A], count=9, block_ms=None) == []
    (after,) = await inbox.read([A], count=9, block_ms=None)
    assert isinstance(after, Delivery)

    assert await colony.move(before, B) == "committed"
    assert await colony.move(after, B) == "stale"

    assert await colony.count("entries_lost") == 0
    assert (await colony.traces.get(trace_id)).live == 1
    assert await colony.link.command("XLEN", B) == 1


async def test_a_renewal_of_a_deleted_entry_counts_the_loss_and_lets_it_go(
    colony: Colony,
) -> None:
    await colony.under_way(A, A)
    slots = Slots(colony.link, KEYS, "worker")
    await slots.lease({})
    first, second = [await colony.take(A, slots.consumer) for _ in range(2)]
    await colony.link.command("XDEL", A, first.entry)

    for _ in range(2):
        held = await slots.renew(A, [first.entry, second.entry], server=first.server)
        assert held == {second.entry}

    assert await colony.count("entries_lost") == 1


async def test_handing_back_a_deleted_entry_counts_the_loss(colony: Colony) -> None:
    await colony.under_way(A)
    delivery = await colony.take(A)
    await colony.delete(A)

    for _ in range(2):
        back = await colony.streams.hand_back(delivery, consumer="worker-0", attempt="")
        assert not back

    assert await colony.count("entries_lost") == 1


# What moves is left alone


async def moved(colony: Colony, trace_id: str, point: str, act: Act) -> None:
    """During the audit, `act` changes what a trace has under way: nothing may be corrected then,
    and nothing afterwards, because nothing is lost."""
    audit = Interrupted(colony, **{point: act})

    assert await audit.look() == []
    assert audit.acts == {}, "the point was not reached"
    await colony.link.command("DEL", KEYS.audit())
    assert await audit.look() == []

    assert await colony.buried() == []
    assert await colony.count("traces_corrected") == 0
    trace = await colony.traces.get(trace_id)
    assert trace.live == await under_way(colony, trace_id)


async def under_way(colony: Colony, trace_id: str) -> int:
    streams: Iterable[str] = (ROUTER, A, B)
    pages = [await colony.link.command("XRANGE", stream, "-", "+") for stream in streams]
    return sum(trace_id.encode() in fields[1] for page in pages for _, fields in page)


@pytest.mark.parametrize("point", ["before_search", f"before {B}", "after_search"])
async def test_an_envelope_that_moves_behind_the_search_is_not_lost(
    colony: Colony, point: str
) -> None:
    """It goes from a stream that is searched later to one that was searched already."""
    trace_id = await colony.under_way(B)
    delivery = await colony.take(B)

    await moved(colony, trace_id, point, lambda: colony.move(delivery, ROUTER))


async def test_an_envelope_that_moves_just_before_the_correction_is_not_lost(
    colony: Colony,
) -> None:
    """The one is lost for sure, the other moves: the count is that of a moment that is gone."""
    trace_id = await colony.under_way(A, B)
    delivery = await colony.take(B)
    await colony.delete(A)
    audit = Interrupted(colony, before_correction=lambda: colony.move(delivery, ROUTER, A))

    assert await audit.look() == []
    assert (await colony.traces.get(trace_id)).live == 3

    await colony.link.command("DEL", KEYS.audit())
    assert await audit.look() == [trace_id]
    assert (await colony.traces.get(trace_id)).live == 2


async def test_a_trace_that_went_quiet_and_was_revived_meanwhile_counts_the_same_and_moved(
    colony: Colony,
) -> None:
    await colony.apply(EdgeSpec(source=QUIET, target="/a"))
    trace_id = await colony.under_way(B)
    delivery = await colony.take(B)

    async def quiet_and_back() -> None:
        await colony.move(delivery)
        await colony.keeper.attend(trace_id)
        trace = await colony.traces.get(trace_id)
        assert (trace.live, trace.revivals) == (1, 1)

    await moved(colony, trace_id, f"before {B}", quiet_and_back)


async def test_a_trace_into_which_a_letter_was_replayed_meanwhile_moved(colony: Colony) -> None:
    trace_id = await colony.under_way(A, B)
    dying, living = await colony.take(A), await colony.take(B)
    letter = DeadLetter("cell_failed", "why", "/a", "/b", "/b", dying.head, dying.body)
    await colony.streams.commit([Step(dying, letters=[letter])])
    ((entry, _),) = await colony.link.command("XRANGE", KEYS.dead(), "-", "+")

    async def settle_and_replay() -> None:
        await colony.move(living)
        assert await colony.letters.replay(entry.decode(), ttl=9) == trace_id

    audit = Interrupted(colony, **{f"before {B}": settle_and_replay})
    assert await audit.look() == []

    assert (await colony.traces.get(trace_id)).live == 1
    assert await colony.count("traces_corrected") == 0


async def test_a_trace_that_is_born_during_the_search_is_left_alone(colony: Colony) -> None:
    trace_id = await colony.under_way(A)
    await moved(colony, trace_id, "before_search", lambda: colony.under_way(ROUTER))


async def test_a_trace_that_ends_during_the_search_is_taken_off_the_count_without_a_letter(
    colony: Colony,
) -> None:
    trace_id = await colony.under_way(A)
    await colony.delete(A)
    end = colony.traces.end
    audit = Interrupted(colony, before_correction=lambda: end(trace_id, "cancelled", "why"))

    assert await audit.look() == [trace_id]

    assert await colony.buried() == []
    trace = await colony.finish(trace_id)
    assert (trace.state, trace.cause, trace.live) == ("ended", "cancelled", 0)
    assert await colony.link.command("PTTL", KEYS.trace(trace_id)) > 0


async def test_keepers_that_found_the_same_correct_it_once(colony: Colony) -> None:
    """Both have searched before either corrects."""
    trace_id = await colony.under_way(A, B)
    await colony.delete(A)
    other = Interrupted(colony)
    audit = Interrupted(colony, before_correction=lambda: other.search({trace_id}))

    assert await audit.look() == []

    trace = await colony.traces.get(trace_id)
    assert (trace.live, trace.dead) == (1, 1)
    assert await colony.count("traces_corrected") == 1


async def test_keepers_that_race_correct_each_trace_once(colony: Colony) -> None:
    traces = {await colony.under_way(A) for _ in range(20)}
    await colony.link.command("XTRIM", A, "MAXLEN", 0)

    found = await asyncio.gather(*(Interrupted(colony).search({*traces}) for _ in range(5)))

    assert sorted(trace_id for corrected, _ in found for trace_id in corrected) == sorted(traces)
    assert len(await colony.buried()) == 20


@pytest.mark.parametrize("point", ["before_search", "before_correction"])
async def test_what_was_searched_on_one_server_corrects_nothing_on_another(
    redis_binary: Path, point: str
) -> None:
    with RedisServer.start(redis_binary, fsync="always") as server:
        link = Link(server.url)
        colony = Colony(link)
        await colony.apply()
        trace_id = await colony.under_way(A)
        await colony.delete(A)

        async def restart() -> None:
            await asyncio.to_thread(server.restart)
            await link.drop("another server")

        with pytest.raises((ServerChanged, ServerUnavailable)):
            await Interrupted(colony, **{point: restart}).look()

        assert (await colony.traces.get(trace_id)).live == 1
        assert await colony.look() == [trace_id]
        await link.close()


async def test_a_correction_by_another_and_a_step_that_make_up_for_each_other_are_noticed(
    colony: Colony,
) -> None:
    """The count is what it was again, and every envelope that it counts is there."""
    trace_id = await colony.under_way(A, B)
    delivery = await colony.take(B)
    await colony.delete(A)

    async def correct_and_step() -> None:
        assert await Interrupted(colony).search({trace_id}) == ([trace_id], set())
        await colony.move(delivery, A, ROUTER)
        assert (await colony.traces.get(trace_id)).live == 2

    audit = Interrupted(colony, before_correction=correct_and_step)

    assert await audit.search({trace_id}) == ([], {trace_id})
    assert (await colony.traces.get(trace_id)).live == 2


async def test_a_count_that_an_older_version_changed_without_a_step_is_left_alone(
    colony: Colony,
) -> None:
    trace_id = await colony.under_way(A)
    await colony.delete(A)
    record = KEYS.trace(trace_id)
    raised = colony.link.command
    audit = Interrupted(colony, before_correction=lambda: raised("HINCRBY", record, "live", 1))

    assert await audit.search({trace_id}) == ([], {trace_id})


async def test_every_script_that_changes_what_is_under_way_is_a_step(colony: Colony) -> None:
    await colony.apply(EdgeSpec(source=QUIET, target="/a"))

    async def steps(trace_id: str) -> int:
        return int(await colony.link.command("HGET", KEYS.trace(trace_id), "steps"))

    born = await colony.traces.birth("/a", HELLO, ttl=9)
    first = await colony.take(ROUTER)
    assert await steps(born.trace_id) == 1
    letter = DeadLetter("cell_failed", "why", "/a", "/b", "/b", first.head, first.body)
    await colony.streams.commit([Step(first, letters=[letter])])
    assert await steps(born.trace_id) == 2
    await colony.keeper.attend(born.trace_id)
    assert await steps(born.trace_id) == 3
    ((entry, _),) = await colony.link.command("XRANGE", KEYS.dead(), "-", "+")
    await colony.letters.replay(entry.decode(), ttl=9)
    assert await steps(born.trace_id) == 4
    await colony.delete(ROUTER)
    await colony.look()
    assert await steps(born.trace_id) == 5
    await colony.traces.end(born.trace_id, "cancelled", "why")
    assert await colony.move(await colony.take(ROUTER)) == "fenced"
    assert await steps(born.trace_id) == 6


# When a search begins


async def searches(colony: Colony, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many traces were in doubt at each search of `audit` from now on."""
    begun: list[int] = []
    search = audit.search

    async def noted(doubted: set[str]) -> tuple[list[str], set[str]]:
        begun.append(len(doubted))
        return await search(doubted)

    monkeypatch.setattr(audit, "search", noted)
    return begun


async def again(colony: Colony, audit: Audit) -> list[str]:
    await colony.link.command("DEL", KEYS.audit())
    return await audit.look()


async def test_a_loss_is_looked_into_at_once_and_only_once(
    colony: Colony, monkeypatch: pytest.MonkeyPatch
) -> None:
    await colony.under_way(A, B)
    audits = [Interrupted(colony), Interrupted(colony)]
    begun = [await searches(colony, audit, monkeypatch) for audit in audits]
    for audit in audits:
        await again(colony, audit)
    assert begun == [[1], [1]], "each searches when it starts"

    await colony.move(await colony.take(B), B)
    delivery = await colony.take(A)
    await colony.delete(A)
    await colony.move(delivery)

    assert len(await again(colony, audits[0])) == 1
    assert await again(colony, audits[1]) == []
    assert begun == [[1, 1], [1]]


async def test_all_keepers_together_begin_one_search_at_a_time(
    colony: Colony, monkeypatch: pytest.MonkeyPatch
) -> None:
    await colony.under_way(A)
    await colony.delete(A)
    audits = [Interrupted(colony) for _ in range(5)]
    begun = [await searches(colony, audit, monkeypatch) for audit in audits]

    found = await asyncio.gather(*(audit.look() for audit in audits))

    assert sum(map(len, begun)) == 1
    assert sum(map(len, found)) == 1
    assert 0 < await colony.link.command("PTTL", KEYS.audit()) <= audit_module.PAUSE_MS


async def test_without_a_loss_only_a_trace_that_did_not_move_is_searched_for(
    colony: Colony, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that was deleted unread is noticed by nobody: its trace just stands still."""
    lost, moving = await colony.under_way(A), await colony.under_way(B)
    monkeypatch.setattr(audit_module, "REST_S", 0)
    audit = Interrupted(colony)
    assert await again(colony, audit) == []
    begun = await searches(colony, audit, monkeypatch)
    await colony.move(await colony.take(B), B)
    await colony.delete(A)

    assert await again(colony, audit) == [lost]

    assert begun == [1]
    assert (await colony.traces.get(moving)).live == 1


async def test_between_the_rounds_nothing_is_read_but_the_counts(
    colony: Colony, monkeypatch: pytest.MonkeyPatch
) -> None:
    await colony.under_way(A)
    audit = Interrupted(colony)
    await again(colony, audit)
    await colony.link.command("CONFIG", "RESETSTAT")

    for _ in range(5):
        assert await audit.look() == []

    stats = (await colony.link.command("INFO", "commandstats")).decode()
    told = {line.partition(":")[0] for line in stats.splitlines() if "cmdstat_" in line}
    assert told == {"cmdstat_hmget", "cmdstat_config|resetstat"}


async def test_counts_that_fell_behind_in_a_failover_hide_no_loss(colony: Colony) -> None:
    """This keeper knew of five losses; the server that was promoted knows of none."""
    await colony.link.command("HSET", KEYS.repairs(), "entries_lost", 5)
    audit = Interrupted(colony)
    await again(colony, audit)
    await colony.link.command("DEL", KEYS.repairs())
    trace_id = await colony.under_way(A)
    delivery = await colony.take(A)
    await colony.delete(A)
    await colony.move(delivery)

    assert await again(colony, audit) == [trace_id]
