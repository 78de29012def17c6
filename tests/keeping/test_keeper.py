"""The keeper: every quiet trace is taken up, ended or retired, whoever else does the same."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.dead_letters import DeadLetters
from colony.envelope import DeadLetter, derived_id
from colony.errors import ServerChanged, TopologyError
from colony.inbox import Inbox, make_groups
from colony.keeping.keeper import BATCH, Keeper
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.lua.registry import Call
from colony.publication import Publication
from colony.router import RouterDesk
from colony.sessions import Sessions
from colony.streams import Delivery, Step, Streams
from colony.testing.redis_server import RedisServer
from colony.topology.model import (
    DEFAULTS,
    QUIET,
    CellSettings,
    CellSpec,
    ColonySettings,
    EdgeSpec,
    TopologySpec,
)
from colony.traces import Trace, Traces

KEYS = Keys("test")
HELLO = Body.of(Entry.say("user", "hello"))
SINK = CellSpec(path="/sink", cell=CellSettings(type="sink"))
LANE = EdgeSpec(source=QUIET, target="/sink", condition="hop.outputs == 0 || has(hop.error_code)")


class Colony:
    """A keeper, and what it looks after."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.streams = Streams(link, KEYS, Blobs(link, KEYS, inline_max_bytes=1000))
        self.publication = Publication(link, KEYS)
        self.traces = Traces(link, KEYS)
        self.keeper = Keeper(self.streams, self.publication)

    async def apply(self, *edges: EdgeSpec, **settings: Any) -> None:
        spec = TopologySpec(settings=ColonySettings(**settings), cells=(SINK,), edges=edges)
        await self.publication.publish(spec)
        await self.publication.refresh()

    async def take(self, stream: str) -> Delivery:
        (delivery,) = await Inbox(self.link, "w").read([stream], count=1, block_ms=None)
        assert isinstance(delivery, Delivery)
        return delivery

    async def quiet(self, *, dead: bool = False, kept: bool = False, **birth: Any) -> str:
        """A trace whose one envelope has ended."""
        born = await self.traces.birth("/sink", HELLO, ttl=9, context={"k": 1}, **birth)
        await self.settle(await self.take(KEYS.router()), dead=dead, kept=kept)
        return born.trace_id

    async def settle(self, delivery: Delivery, *, dead: bool = False, kept: bool = False) -> None:
        head = delivery.head
        letter = DeadLetter("cell_failed", "why", "/a", "/b", "/b", head, delivery.body)
        letters, outputs = [letter] if dead else [], [b"kept"] if kept else []
        await self.streams.commit([Step(delivery, letters=letters, kept=outputs)])

    async def attend(self, trace_id: str) -> Trace:
        await self.keeper.attend(trace_id)
        return await self.traces.get(trace_id)

    async def arrived(self) -> Delivery:
        """What the router makes of the envelope of a revival, at its cell."""
        await self.route()
        return await self.take(KEYS.cell("/sink"))

    async def route(self) -> None:
        desk = RouterDesk(KEYS, self.publication, Sessions(self.link, KEYS))
        await self.streams.commit([await desk.decide(await self.take(KEYS.router()))])

    async def waiting(self) -> int:
        streams = (KEYS.router(), KEYS.cell("/sink"))
        return sum([int(await self.link.command("XLEN", stream)) for stream in streams])


@pytest.fixture
async def colony(redis_url: str) -> AsyncIterator[Colony]:
    link = Link(redis_url)
    colony = Colony(link)
    await colony.apply()
    yield colony
    await link.close()


async def until(claim: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while True:
            if await claim():
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(colony: Colony, url: str, consumer: str = "router-0") -> AsyncIterator[None]:
    reader = Link(url)
    task = asyncio.create_task(colony.keeper.run(reader, consumer))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await reader.close()


@pytest.mark.parametrize(
    ("dead", "kept", "cause", "reason"),
    [
        (False, False, "completed", None),
        (False, True, "completed", None),
        (True, True, "completed", None),
        (True, False, "failed", "cell_failed"),
    ],
)
async def test_a_quiet_trace_that_nothing_takes_up_ends(
    colony: Colony, dead: bool, kept: bool, cause: str, reason: str | None
) -> None:
    trace = await colony.attend(await colony.quiet(dead=dead, kept=kept, timeout_ms=60_000))

    assert (trace.state, trace.cause, trace.reason) == ("ended", cause, reason)
    assert await colony.traces.ids("open", limit=9) == []
    assert await colony.traces.ids("ended", limit=9) == [trace.id]
    assert await colony.link.command("ZCARD", KEYS.deadlines()) == 0


async def test_the_quiet_lane_revives_a_trace_with_what_is_known_of_it(colony: Colony) -> None:
    await colony.apply(LANE, message_default_ttl=30)

    trace = await colony.attend(await colony.quiet(dead=True))

    assert (trace.state, trace.live, trace.revivals) == ("open", 1, 1)
    head = (await colony.arrived()).head
    assert head.parent_message_id is None
    assert (head.trace_id, head.reply_to, head.ttl) == (trace.id, None, 29)
    assert head.context == {"k": 1}
    assert head.hop == {
        "route": "quiet",
        "entry": "/sink",
        "outputs": 0,
        "error_code": "cell_failed",
        "dead_target": "/b",
        "dead_message_id": trace.id,
    }
    (hop,) = await colony.traces.log(trace.id)
    assert (hop.head.sender, hop.head.target) == (QUIET, "/sink")


async def test_without_a_dead_letter_the_lane_tells_of_none_and_keeps_the_last_context(
    colony: Colony,
) -> None:
    await colony.apply(LANE)
    await colony.attend(await colony.quiet())

    head = (await colony.arrived()).head

    assert head.hop == {"route": "quiet", "entry": "/sink", "outputs": 0}
    assert head.context == {"k": 1}


async def test_the_envelope_of_a_revival_has_an_id_of_its_number(colony: Colony) -> None:
    """So that keepers that race make the same one."""
    await colony.apply(EdgeSpec(source=QUIET, target="/sink"))
    trace_id = await colony.quiet()
    await colony.attend(trace_id)
    await colony.route()

    (hop,) = await colony.traces.log(trace_id)

    (edge,) = colony.publication.current.edges_from(QUIET)
    assert hop.head.id == derived_id(derived_id(trace_id, "quiet", 1), edge.digest)


async def test_what_dies_on_the_way_down_the_lane_is_a_dead_letter(colony: Colony) -> None:
    await colony.apply(LANE, EdgeSpec(source=QUIET, target="/nowhere"))
    await colony.attend(await colony.quiet())
    await colony.route()

    (letter,) = await DeadLetters(colony.link, KEYS).list()

    assert (letter.code, letter.facts["original_target"]) == ("unresolved_path", "/nowhere")
    assert await colony.waiting() == 1


async def test_a_trace_that_the_lane_does_not_match_ends_without_a_line(
    colony: Colony, caplog: pytest.LogCaptureFixture
) -> None:
    await colony.apply(LANE)

    with caplog.at_level(logging.INFO):
        trace = await colony.attend(await colony.quiet(kept=True))

    assert (trace.cause, trace.revivals) == ("completed", 0)
    assert caplog.messages == []
    assert await DeadLetters(colony.link, KEYS).count() == 0


@pytest.mark.parametrize("most", [0, 1, 3])
async def test_a_trace_is_revived_so_often_and_then_ends(colony: Colony, most: int) -> None:
    await colony.apply(LANE, quiet_revivals=most)
    trace = await colony.attend(await colony.quiet(dead=True))
    for revival in range(1, most + 1):
        assert (trace.state, trace.revivals) == ("open", revival)
        await colony.settle(await colony.arrived())
        trace = await colony.attend(trace.id)

    assert (trace.state, trace.cause, trace.revivals) == ("ended", "failed", most)


async def test_a_letter_that_was_told_of_revives_no_trace_with_an_answer(colony: Colony) -> None:
    await colony.apply(LANE)
    trace = await colony.attend(await colony.quiet(dead=True))
    await colony.settle(await colony.arrived(), kept=True)

    trace = await colony.attend(trace.id)

    assert (trace.state, trace.cause, trace.revivals) == ("ended", "completed", 1)


async def test_a_letter_that_is_new_revives_a_trace_with_an_answer(colony: Colony) -> None:
    await colony.apply(LANE)
    trace = await colony.attend(await colony.quiet(dead=True))
    await colony.settle(await colony.arrived(), dead=True, kept=True)

    trace = await colony.attend(trace.id)

    assert (trace.state, trace.revivals) == ("open", 2)


async def test_keepers_that_race_revive_once(colony: Colony) -> None:
    await colony.apply(LANE)
    trace_id = await colony.quiet()

    await asyncio.gather(*(colony.keeper.attend(trace_id) for _ in range(10)))

    trace = await colony.traces.get(trace_id)
    assert (trace.live, trace.revivals) == (1, 1)
    assert await colony.waiting() == 1


async def test_a_quiet_entry_that_is_stale_after_a_replay_changes_nothing(
    colony: Colony,
) -> None:
    trace_id = await colony.quiet(dead=True)
    letters = DeadLetters(colony.link, KEYS)
    (letter,) = await letters.list()
    assert await letters.replay(letter.id, ttl=64) == trace_id

    trace = await colony.attend(trace_id)

    assert (trace.state, trace.live) == ("open", 1)


async def test_a_replay_between_look_and_deed_wins(colony: Colony) -> None:
    """The keeper read the record, then the operator replays, then the keeper ends the trace."""
    trace_id = await colony.quiet(dead=True)
    seen = await colony.traces.get(trace_id)
    letters = DeadLetters(colony.link, KEYS)
    (letter,) = await letters.list()
    await letters.replay(letter.id, ttl=64)

    await colony.keeper._end(seen)
    await colony.keeper._retire(trace_id)

    trace = await colony.traces.get(trace_id)
    assert (trace.state, trace.live) == ("open", 1)
    assert await colony.link.command("PTTL", KEYS.trace(trace_id)) == -1


async def test_retirement_lets_everything_of_a_trace_expire_and_nothing_else(
    colony: Colony,
) -> None:
    large = Body.of(Entry.say("user", "x" * 2000))
    born = await colony.traces.birth("/sink", large, ttl=9, inline_max_bytes=1000)
    trace_id = born.trace_id
    await colony.link.command("HSET", KEYS.receipts(trace_id), "r", "1")
    await colony.link.command("HSET", KEYS.journal(trace_id), "j", "1")
    await colony.link.command("HSET", KEYS.attempts(trace_id), "a", "1 t")
    await colony.link.command("HSET", KEYS.state("/a", "trace", trace_id), "leaf", "1")
    await colony.link.command(
        "SADD", KEYS.belongings(trace_id), KEYS.state("/a", "trace", trace_id)
    )
    await colony.link.command("XADD", KEYS.log(trace_id), "*", "record", "x")
    before = {key for key in await colony.link.command("KEYS", "*") if b"colony" in key}
    lasting = [await colony.link.command("PTTL", key) for key in before]
    await colony.settle(await colony.take(KEYS.router()), kept=True)

    await colony.attend(trace_id)

    mortal = {
        key
        for key in await colony.link.command("KEYS", "*")
        if 0 < await colony.link.command("PTTL", key) <= DEFAULTS.trace_retention_ms
    }
    own = {
        KEYS.trace(trace_id),
        KEYS.log(trace_id),
        KEYS.outputs(trace_id),
        KEYS.receipts(trace_id),
        KEYS.journal(trace_id),
        KEYS.attempts(trace_id),
        KEYS.belongings(trace_id),
        KEYS.state("/a", "trace", trace_id),
        *(key.decode() for key in before if b":blob:" in key),
    }
    assert {*lasting} == {-1}
    assert {key.decode() for key in mortal} == own
    assert len(own) == 9


async def test_nothing_of_a_trace_with_envelopes_under_way_expires(colony: Colony) -> None:
    born = await colony.traces.birth("/sink", HELLO, ttl=9)
    await colony.traces.end(born.trace_id, "cancelled", "why")

    await colony.attend(born.trace_id)
    assert await colony.link.command("PTTL", KEYS.trace(born.trace_id)) == -1

    await colony.settle(await colony.take(KEYS.router()))
    await colony.attend(born.trace_id)
    assert await colony.link.command("PTTL", KEYS.trace(born.trace_id)) > 0


async def test_a_running_keeper_forgets_what_ended_long_ago(colony: Colony, redis_url: str) -> None:
    await colony.link.command("ZADD", KEYS.ended_traces(), 1, "long ago")
    trace = await colony.attend(await colony.quiet())

    async def forgotten() -> bool:
        return await colony.traces.ids("ended", limit=9) == [trace.id]

    async with running(colony, redis_url):
        await until(forgotten)


async def test_a_trace_past_its_deadline_fails(
    colony: Colony, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    born = await colony.traces.birth("/sink", HELLO, ttl=9, timeout_ms=1)
    later = await colony.traces.birth("/sink", HELLO, ttl=9, timeout_ms=60_000)
    await colony.link.command("ZADD", KEYS.deadlines(), 1, "gone")

    async def overdue() -> bool:
        return (await colony.traces.get(born.trace_id)).ended

    with caplog.at_level(logging.WARNING, "colony.keeper"):
        async with running(colony, redis_url):
            await until(overdue)

    trace = await colony.traces.get(born.trace_id)
    assert (trace.cause, trace.reason) == ("failed", "trace_timeout")
    assert await colony.traces.ids("open", limit=9) == [later.trace_id]
    assert await colony.link.command("ZRANGE", KEYS.deadlines(), 0, -1) == [later.trace_id.encode()]


async def test_a_keeper_attends_to_what_is_reported(colony: Colony, redis_url: str) -> None:
    async with running(colony, redis_url):
        trace_id = await colony.quiet()

        async def attended() -> bool:
            empty = await colony.link.command("XLEN", KEYS.quiet()) == 0
            return empty and (await colony.traces.get(trace_id)).ended

        await until(attended)
    assert (await colony.link.command("XPENDING", KEYS.quiet(), GROUP))[0] == 0


async def test_a_report_stays_if_the_server_forgot_what_was_done_for_it(
    redis_binary: Path,
) -> None:
    """The server is killed after the revival, which is the last thing that it wrote."""
    with RedisServer.start(redis_binary, fsync="no") as server:

        class Forgetful(Link):
            async def run(self, call: Call, *, server: str | None = None) -> Any:
                before = written()
                answer = await super().run(call, server=server)
                if call.script.name == "revive":
                    crash(written() - before)
                    await self.drop("the server was killed")
                return answer

        def written() -> int:
            return server.aof.stat().st_size

        def crash(lost: int) -> None:
            server.kill()
            server.cut_aof(lost)
            server.restart()

        colony = Colony(Forgetful(server.url))
        await colony.apply(LANE)
        trace_id = await colony.quiet()
        read = await colony.link.command(
            "XREADGROUP", "GROUP", GROUP, "router-9", "STREAMS", KEYS.quiet(), ">"
        )

        with pytest.raises(ServerChanged):
            await colony.keeper._attend_all(read[0][1])

        assert (await colony.traces.get(trace_id)).revivals == 0
        assert await colony.link.command("XLEN", KEYS.quiet()) == 1
        await colony.link.close()


async def test_what_a_keeper_left_is_taken_up_by_another(colony: Colony, redis_url: str) -> None:
    trace_id = await colony.quiet()
    await colony.link.command("XADD", KEYS.quiet(), "*", "trace", "deleted")
    read = await colony.link.command(
        "XREADGROUP", "GROUP", GROUP, "router-9", "STREAMS", KEYS.quiet(), ">"
    )
    entries = [entry for entry, _ in read[0][1]]
    await colony.link.command("XDEL", KEYS.quiet(), entries[1])
    await colony.link.command(
        "XCLAIM", KEYS.quiet(), GROUP, "router-9", 0, *entries, "IDLE", 60_000, "JUSTID"
    )

    async def attended() -> bool:
        pending = (await colony.link.command("XPENDING", KEYS.quiet(), GROUP))[0]
        return bool(pending == 0 and (await colony.traces.get(trace_id)).ended)

    async with running(colony, redis_url):
        await until(attended)


async def test_a_quiet_trace_is_attended_to_though_its_report_was_deleted(
    colony: Colony, redis_url: str
) -> None:
    """Whoever held the report is gone, and so is the report: nothing else names the trace."""
    trace_id = await colony.quiet()
    await colony.link.command(
        "XREADGROUP", "GROUP", GROUP, "router-9", "STREAMS", KEYS.quiet(), ">"
    )
    await colony.link.command("XTRIM", KEYS.quiet(), "MAXLEN", 0)

    async def attended() -> bool:
        return (await colony.traces.get(trace_id)).ended

    async with running(colony, redis_url):
        await until(attended)


async def test_an_orphaned_report_is_attended_to(colony: Colony, redis_url: str) -> None:
    trace_id = await colony.quiet()
    await colony.link.command(
        "XREADGROUP", "GROUP", GROUP, "router-9", "STREAMS", KEYS.quiet(), ">"
    )
    await colony.link.command("XGROUP", "DELCONSUMER", KEYS.quiet(), GROUP, "router-9")
    keeper = Keeper(colony.streams, colony.publication, reclaim_idle_ms=50)

    async def settled() -> bool:
        empty = await colony.link.command("XLEN", KEYS.quiet()) == 0
        return empty and (await colony.traces.get(trace_id)).ended

    colony.keeper = keeper
    async with running(colony, redis_url):
        await until(settled)
    assert (await colony.link.command("XPENDING", KEYS.quiet(), GROUP))[0] == 0
    assert await colony.link.command("HGET", KEYS.repairs(), "orphans_adopted") == b"1"
    assert await colony.link.command("HGET", KEYS.repairs(), "entries_lost") is None


async def test_a_keeper_corrects_and_ends_a_trace_whose_envelope_was_deleted_unread(
    colony: Colony, redis_url: str
) -> None:
    born = await colony.traces.birth("/sink", HELLO, ttl=9)
    await colony.link.command("XTRIM", KEYS.router(), "MAXLEN", 0)

    async def ended() -> bool:
        return (await colony.traces.get(born.trace_id)).ended

    async with running(colony, redis_url), running(colony, redis_url, "router-1"):
        await until(ended)
    trace = await colony.traces.get(born.trace_id)
    assert (trace.cause, trace.reason, trace.dead) == ("failed", "envelope_lost", 1)


async def test_a_keeper_survives_the_loss_of_all_keys(colony: Colony, redis_url: str) -> None:
    async with running(colony, redis_url):
        await colony.link.command("FLUSHALL")
        await colony.link.command("XADD", KEYS.router(), "*", "x", "y")
        await colony.link.command("DEL", KEYS.router())
        await colony.apply()
        trace_id = await colony.quiet()

        async def attended() -> bool:
            return (await colony.traces.get(trace_id)).ended

        await until(attended)


async def test_one_trace_that_cannot_be_attended_to_does_not_keep_others_waiting(
    colony: Colony, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await colony.link.command("SET", KEYS.trace("bad"), "not a hash")
    await colony.link.command("XADD", KEYS.quiet(), "*", "trace", "bad")
    trace_id = await colony.quiet()

    async def attended() -> bool:
        return (await colony.traces.get(trace_id)).ended

    with caplog.at_level(logging.ERROR, "colony.keeper"):
        async with running(colony, redis_url):
            await until(attended)

    assert any("quiet_unattended" in line and "bad" in line for line in caplog.messages)
    with pytest.raises(ResponseError):
        await colony.keeper.attend("bad")


async def test_an_entry_that_names_no_trace_is_settled(colony: Colony, redis_url: str) -> None:
    for name in (b"\xff", b"never-born"):
        await colony.link.command("XADD", KEYS.quiet(), "*", "trace", name)

    async def settled() -> bool:
        return int(await colony.link.command("XLEN", KEYS.quiet())) == 0

    async with running(colony, redis_url):
        await until(settled)


UNREADABLE = ("version", 99, "document", '{"from": "the future"}')


async def test_without_a_tree_that_can_be_read_nothing_quiet_is_attended_to(
    redis_url: str,
) -> None:
    """The tree that cannot be read may have a lane: what would end could go on."""
    link = Link(redis_url)
    colony = Colony(link)
    await link.command("HSET", KEYS.topology(), *UNREADABLE)
    await make_groups(link, [KEYS.router(), KEYS.quiet()])
    trace_id = await colony.quiet()
    overdue = (await colony.traces.birth("/sink", HELLO, ttl=9, timeout_ms=1)).trace_id

    with pytest.raises(TopologyError):
        await colony.keeper.attend(trace_id)

    looked: list[int] = []

    async def look() -> None:
        looked.append(colony.publication.current.version)

    colony.keeper.unhosted.look = colony.keeper.audit.look = look  # type: ignore[assignment, method-assign]

    async def ended() -> bool:
        return (await colony.traces.get(overdue)).ended

    async def has_looked() -> bool:
        return bool(looked)

    async def revived() -> bool:
        return (await colony.traces.get(trace_id)).revivals == 1

    async with running(colony, redis_url):
        await until(ended)
        assert (await colony.traces.get(trace_id)).state == "quiet"
        assert await link.command("XLEN", KEYS.quiet()) == 1
        await colony.apply(LANE)
        await until(revived)
        await until(has_looked)
    assert 0 not in looked
    await link.close()


async def test_a_record_that_somebody_else_wrote_to_keeps_no_other_waiting(
    colony: Colony, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd = await colony.quiet()
    await colony.link.command("HSET", KEYS.trace(odd), "created_at", "yesterday")
    trace_id = await colony.quiet()

    async def settled() -> bool:
        ended = (await colony.traces.get(trace_id)).ended
        return ended and await colony.link.command("XLEN", KEYS.quiet()) == 1

    with caplog.at_level(logging.ERROR, "colony.keeper"):
        async with running(colony, redis_url):
            await until(settled)

    assert caplog.messages
    assert all("quiet_unattended" in line and odd in line for line in caplog.messages)


async def test_a_mistake_in_attending_to_one_trace_keeps_no_other_waiting(
    colony: Colony, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, trace_id = await colony.quiet(), await colony.quiet()
    attend = colony.keeper.attend

    async def mistaken(name: str) -> None:
        if name == odd:
            raise ZeroDivisionError
        await attend(name)

    monkeypatch.setattr(colony.keeper, "attend", mistaken)

    async def settled() -> bool:
        ended = (await colony.traces.get(trace_id)).ended
        return ended and await colony.link.command("XLEN", KEYS.quiet()) == 1

    async with running(colony, redis_url):
        await until(settled)


async def test_a_mistake_in_one_of_its_deeds_ends_no_keeper(
    colony: Colony, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def mistaken() -> None:
        raise ZeroDivisionError

    colony.keeper.unhosted.look = mistaken  # type: ignore[assignment, method-assign]

    async def failed() -> bool:
        return any("keeper_failed" in line for line in caplog.messages)

    async def attended() -> bool:
        return (await colony.traces.get(trace_id)).ended

    with caplog.at_level(logging.ERROR, "colony.keeper"):
        async with running(colony, redis_url):
            await until(failed)
            trace_id = await colony.quiet()
            await until(attended)


async def test_all_that_is_overdue_is_ended_at_once(colony: Colony) -> None:
    overdue = [f"t-{n}" for n in range(2 * BATCH + 1)]
    for trace_id in overdue:
        await colony.link.command("HSET", KEYS.trace(trace_id), "state", "open", "live", 1)
        await colony.link.command("ZADD", KEYS.deadlines(), 1, trace_id)

    assert sorted(await colony.keeper.end_overdue()) == sorted(overdue)

    assert await colony.link.command("ZCARD", KEYS.deadlines()) == 0
    assert (await colony.traces.get(overdue[-1])).cause == "failed"


async def test_what_cannot_be_ended_or_had_ended_keeps_nothing_overdue_waiting(
    colony: Colony,
) -> None:
    for n in range(BATCH):
        await colony.link.command("SET", KEYS.trace(f"odd-{n}"), "not a hash")
        await colony.link.command("ZADD", KEYS.deadlines(), 1, f"odd-{n}")
    ended = await colony.attend(await colony.quiet())
    late = (await colony.traces.birth("/sink", HELLO, ttl=9)).trace_id
    await colony.link.command("ZADD", KEYS.deadlines(), 2, ended.id, 3, late, 4, b"\xff")

    await colony.keeper.end_overdue()

    assert (await colony.traces.get(late)).cause == "failed"
    assert (await colony.traces.get(ended.id)).cause == "completed"
    assert await colony.link.command("ZCARD", KEYS.deadlines()) == BATCH
