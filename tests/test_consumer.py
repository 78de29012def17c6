"""Routers and workers that run: what is read is settled once, whoever stops, crashes or stalls."""

import asyncio
import importlib
import logging
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from colony import faults
from colony.body import Body, Entry
from colony.counts import Counts
from colony.dead_letters import DeadLetters
from colony.envelope import Emission, Envelope
from colony.errors import CellError, ServerUnavailable
from colony.host import Host
from colony.inbox import Inbox
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.pace import Pace
from colony.publication import Publication
from colony.roles import Router, Worker
from colony.slots import holders
from colony.testing.claims import eventually
from colony.testing.redis_server import RedisServer
from colony.topology.model import CellSettings, CellSpec, ColonySettings, EdgeSpec, TopologySpec
from colony.traces import Trace, Traces

KEYS = Keys("test")
PACE = Pace(claim_idle_ms=60_000, renew_ms=50, reclaim_ms=30, drain_ms=5_000, block_ms=50)
SOURCE = KEYS.cell("/a")

Role = Router | Worker
Acts = dict[str, Any]


class Colony:
    """Roles of one colony in this process: `/a` does what a test says, `/sink` keeps it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.link = Link(url)
        self.traces = Traces(self.link, KEYS)
        self.letters = DeadLetters(self.link, KEYS)
        self._running: dict[int, asyncio.Task[None]] = {}

    async def apply(self, *more: CellSpec, concurrency: int = 4, **settings: Any) -> None:
        """Publish a tree in which `/a` hands on to `/sink`."""
        params = {"act": "a", "max_concurrency": concurrency}
        cells = (
            CellSpec(path="/a", cell=CellSettings(type="probe"), params=params),
            CellSpec(path="/sink", cell=CellSettings(type="sink")),
            *more,
        )
        edges = [EdgeSpec(source="/a", target="/sink")]
        edges += [EdgeSpec(source=cell.path, target="/sink") for cell in more]
        spec = TopologySpec(settings=ColonySettings(**settings), cells=cells, edges=tuple(edges))
        await Publication(self.link, KEYS).publish(spec)

    async def send(self, text: str = "hello", *, target: str = "/a") -> str:
        body = Body.of(Entry.say("user", text))
        return (await self.traces.birth(target, body, ttl=9)).trace_id

    def start(self, role: Role) -> Role:
        self._running[id(role)] = asyncio.create_task(role.serve())
        return role

    def router(self, pace: Pace = PACE) -> Role:
        return self.start(Router(self.url, KEYS, pace))

    def worker(self, pace: Pace = PACE, **more: Any) -> Role:
        return self.start(Worker(self.url, KEYS, pace, environment={}, **more))

    async def stop(self, role: Role) -> None:
        """End it as SIGTERM does."""
        role.stop()
        async with asyncio.timeout(20):
            await self._running.pop(id(role))

    async def crash(self, role: Role) -> None:
        """End it so that it settles nothing and gives nothing back."""
        task = self._running.pop(id(role))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for task in self._running.values():
            if task.done():
                await task
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self.link.close()

    async def ended(self, *trace_ids: str) -> list[Trace]:
        """The records of these traces, once all have ended."""

        async def all_ended() -> bool:
            return all([(await self.traces.get(i)).ended for i in trace_ids])

        await eventually(all_ended)
        return [await self.traces.get(i) for i in trace_ids]

    async def pending(self, source: str = SOURCE) -> list[tuple[str, int]]:
        """Owner and number of deliveries of every entry that is held."""
        found = await self.link.command("XPENDING", source, GROUP, "-", "+", 99)
        return [(owner.decode(), times) for _, owner, _, times in found]


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> Acts:
    """What cells of the type `probe` do, by the name their params give."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "probe"))
    found: Acts = importlib.import_module("colony_probe").Probe.ACTS
    found.clear()
    return found


@pytest.fixture
async def colony(redis_url: str, acts: Acts) -> AsyncIterator[Colony]:
    colony = Colony(redis_url)
    await colony.apply()
    yield colony
    faults.arm("")
    await colony.close()


class Handles:
    """A cell whose handles are counted and held until they are let go."""

    def __init__(self, acts: Acts, *, held: bool = True, name: str = "a") -> None:
        self.begun: list[str] = []
        self.broken_off: list[str] = []
        self.running = self.most = 0
        self._go = asyncio.Event()
        if not held:
            self._go.set()
        acts[name] = self.act

    async def act(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        self.begun.append(envelope.trace_id)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self._go.wait()
        except asyncio.CancelledError:
            self.broken_off.append(envelope.trace_id)
            raise
        finally:
            self.running -= 1
        return [Emission(hop={"route": "on"}, body=envelope.body)]

    def let_go(self) -> None:
        self._go.set()

    def hold(self) -> None:
        self._go.clear()

    async def began(self, count: int = 1) -> None:
        async def enough() -> bool:
            return len(self.begun) >= count

        await eventually(enough)


@pytest.mark.parametrize("claim_idle_s", [12, 60, 600])
def test_a_dead_connection_is_given_up_in_time_to_renew_over_another(claim_idle_s: float) -> None:
    pace = Pace.of(claim_idle_s=claim_idle_s, drain_s=25)

    assert pace.renew_ms + pace.silence_ms < pace.claim_idle_ms


def test_what_was_handed_back_is_soon_found_however_long_a_claim_is() -> None:
    pace = Pace.of(claim_idle_s=600, drain_s=25)

    assert pace.reclaim_ms == Pace().reclaim_ms == 2_000


def test_a_read_that_waits_is_no_dead_connection_however_short_a_claim_is() -> None:
    pace = Pace.of(claim_idle_s=0.1, drain_s=25)

    assert pace.silence_ms > 2 * pace.block_ms


async def test_many_traces_run_through_and_commits_come_in_batches(colony: Colony) -> None:
    traces = await asyncio.gather(*(colony.send(str(n)) for n in range(300)))
    await colony.link.command("CONFIG", "RESETSTAT")
    # Reclaiming is a script as well.
    pace = replace(PACE, renew_ms=3_600_000, reclaim_ms=3_600_000)
    colony.router(pace)
    colony.worker(pace)

    ended = await colony.ended(*traces)

    assert {(t.cause, t.outputs, t.live) for t in ended} == {("completed", 1, 0)}
    assert await colony.letters.count() == 0
    for source in (SOURCE, KEYS.router(), KEYS.cell("/sink")):
        assert await colony.link.command("XLEN", source) == 0
    stats = (await colony.link.command("INFO", "commandstats")).decode()
    calls = int(stats.partition("cmdstat_evalsha:calls=")[2].partition(",")[0])
    # The keeper takes two for each trace; four steps of each are committed.
    assert calls < 2 * 300 + 4 * 300 / 3


async def test_the_hops_of_a_trace_are_its_legs(colony: Colony) -> None:
    colony.router()
    colony.worker()
    trace_id = await colony.send()
    await colony.ended(trace_id)

    legs = [(hop.head.sender, hop.head.target) for hop in await colony.traces.log(trace_id)]

    assert legs == [("@external", "/a"), ("/a", "/sink")]


async def test_a_stop_finishes_what_is_in_hand(colony: Colony, acts: Acts) -> None:
    handles = Handles(acts)
    colony.router()
    worker = colony.worker()
    trace_id = await colony.send()
    await handles.began()

    stopping = asyncio.create_task(colony.stop(worker))
    await asyncio.sleep(0)
    handles.let_go()
    await stopping

    assert (handles.begun, handles.broken_off) == ([trace_id], [])
    assert await colony.pending() == []


async def test_a_drain_hands_back_what_it_cannot_finish_and_blames_nobody(
    colony: Colony, acts: Acts
) -> None:
    """Six deployments over one healthy long call, at most two deliveries."""
    await colony.apply(max_deliveries=2)
    handles = Handles(acts)
    colony.router()
    trace_id = await colony.send()
    for deployment in range(1, 7):
        worker = colony.worker(replace(PACE, drain_ms=20))
        await handles.began(deployment)
        await colony.stop(worker)
        assert len(handles.broken_off) == deployment

    assert [times for _, times in await colony.pending()] == [0]
    handles.let_go()
    colony.worker()
    (trace,) = await colony.ended(trace_id)

    assert (trace.cause, trace.outputs) == ("completed", 1)
    assert await colony.letters.count() == 0
    assert await colony.link.command("EXISTS", KEYS.attempts(trace_id)) == 0


async def test_a_worker_under_another_name_takes_up_at_once_what_was_handed_back(
    colony: Colony, acts: Acts
) -> None:
    handles = Handles(acts)
    colony.router()
    worker = colony.worker(replace(PACE, drain_ms=20))
    trace_id = await colony.send()
    await handles.began()
    other = colony.worker(patterns=("/sink", "/a"))

    async def two() -> bool:
        return bool(await colony.link.command("HLEN", KEYS.slots("worker")) == 2)

    await eventually(two)
    await colony.stop(worker)
    await handles.began(2)
    handles.let_go()

    (trace,) = await colony.ended(trace_id)
    assert trace.outputs == 1
    await colony.stop(other)


async def test_a_poisonous_envelope_alone_is_given_up_and_its_neighbours_are_not(
    colony: Colony, acts: Acts
) -> None:
    await colony.apply(concurrency=16, max_deliveries=3)
    crashing = asyncio.Event()
    handled: list[str] = []

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        handled.append(envelope.trace_id)
        if envelope.body.entries[0].text == "poison":
            crashing.set()
            await asyncio.Event().wait()
        # Neighbours of the first delivery are held until the process dies with them.
        if len(handled) <= 16:
            await asyncio.Event().wait()
        return []

    acts["a"] = act
    colony.router()
    neighbours = [await colony.send("healthy") for _ in range(8)]
    poison = await colony.send("poison")
    neighbours += [await colony.send("healthy") for _ in range(7)]

    async def all_there() -> bool:
        return bool(await colony.link.command("XLEN", SOURCE) == 16)

    await eventually(all_there)
    crashes = 0
    while not (await colony.traces.get(poison)).ended:
        crashing.clear()
        worker = colony.worker(replace(PACE, claim_idle_ms=100))
        done = asyncio.create_task(colony.ended(poison))
        crash = asyncio.create_task(crashing.wait())
        await asyncio.wait([done, crash], return_when=asyncio.FIRST_COMPLETED)
        if crash.done():
            if crashes == 0:

                async def all_begun() -> bool:
                    return len(handled) == 16

                await eventually(all_begun)
            crashes += 1
            await colony.crash(worker)
        done.cancel()
        crash.cancel()
        await asyncio.gather(done, crash, return_exceptions=True)

    (letter,) = await colony.letters.list()
    assert (letter.code, letter.trace_id) == ("delivery_limit", poison)
    assert crashes == 3
    assert {trace.cause for trace in await colony.ended(*neighbours)} == {"completed"}


async def test_renewal_keeps_the_delivery_of_a_long_handler(colony: Colony, acts: Acts) -> None:
    handles = Handles(acts)
    pace = replace(PACE, claim_idle_ms=300, renew_ms=50)
    colony.router()
    for _ in range(2):
        colony.worker(pace)
    trace_id = await colony.send()
    await handles.began()

    begun = asyncio.get_running_loop().time()

    async def three_times_the_idle() -> bool:
        return asyncio.get_running_loop().time() - begun > 0.9

    await eventually(three_times_the_idle)
    handles.let_go()
    await colony.ended(trace_id)

    assert handles.begun == [trace_id]
    assert handles.broken_off == []


async def test_an_owner_that_was_paused_and_lost_its_claim_publishes_nothing(
    colony: Colony, acts: Acts, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Handles(acts), Handles({}, held=False)
    colony.router()
    paused = colony.worker(replace(PACE, renew_ms=3_600_000, reclaim_ms=3_600_000))
    trace_id = await colony.send()
    await first.began()
    acts["a"] = second.act
    colony.worker(replace(PACE, claim_idle_ms=50))
    (trace,) = await colony.ended(trace_id)

    first.let_go()
    await colony.stop(paused)

    assert (first.begun, second.begun) == ([trace_id], [trace_id])
    assert (await colony.traces.get(trace_id)).outputs == trace.outputs == 1
    assert len(await colony.traces.log(trace_id)) == 2
    (late,) = lines(caplog, "late")
    assert f"trace={trace_id}" in late
    assert (await counted(colony))["stale_commits"] == 1


class Wedged:
    """A worker in a thread of its own, whose handler stands in the way of its event loop."""

    def __init__(self, url: str, pace: Pace) -> None:
        self.begun = threading.Event()
        self._go = threading.Event()
        self._role = Worker(url, KEYS, pace, environment={}, patterns=("/a",))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wake it, and end it as SIGTERM does."""
        self.wake()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._role.stop)
        await asyncio.to_thread(self._thread.join, 20)
        assert not self._thread.is_alive()

    @property
    def here(self) -> bool:
        """Whether it is this worker that asks."""
        return threading.current_thread() is self._thread

    def wedge(self) -> None:
        """Stand in the way until `wake`."""
        self.begun.set()
        self._go.wait(60)

    def wake(self) -> None:
        self._go.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._role.serve()


@pytest.mark.parametrize("committed", [False, True], ids=["is at it", "has committed"])
async def test_a_handler_that_blocks_the_loop_loses_its_delivery_to_an_owner_that(
    colony: Colony, acts: Acts, caplog: pytest.LogCaptureFixture, committed: bool
) -> None:
    handles = Handles({})
    wedged = Wedged(colony.url, replace(PACE, claim_idle_ms=1_500, reclaim_ms=3_600_000))

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        if wedged.here:
            wedged.wedge()
            return [Emission.say("of the wedged one"), Emission.say("and once more")]
        return await handles.act(envelope, host)

    acts["a"] = act
    colony.router()
    async with wedged:
        trace_id = await colony.send()
        await eventually(lambda: is_set(wedged.begun))
        asleep_since = asyncio.get_running_loop().time()
        colony.worker(replace(PACE, claim_idle_ms=50))
        await handles.began()
        if committed:
            handles.let_go()
            await colony.ended(trace_id)
        await eventually(lambda: passed(asleep_since + 2))
        # Its lease is renewed by the same loop: whoever looks sees that it is not there.
        assert len(await holders(colony.link, KEYS, "worker")) < 2

        wedged.wake()

        await eventually(lambda: lost_claims(colony, 1))
    handles.let_go()
    (trace,) = await colony.ended(trace_id)
    assert (handles.begun, handles.broken_off) == ([trace_id], [])
    assert (trace.outputs, len(await colony.traces.log(trace_id))) == (1, 2)
    assert lines(caplog, "late") == []
    assert (await counted(colony))["stale_commits"] == 0


async def counted(colony: Colony) -> Mapping[str, int]:
    """What was found broken."""
    return await Counts(colony.link, KEYS).read()


async def lost_claims(colony: Colony, count: int) -> bool:
    return (await counted(colony))["claims_lost"] == count


async def is_set(event: threading.Event) -> bool:
    return event.is_set()


async def passed(moment: float) -> bool:
    return asyncio.get_running_loop().time() > moment


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """The lines that tell of `event`."""
    return [line for line in caplog.messages if line.split(" ", 1)[0] == event]


@pytest.mark.parametrize("point", ["before_commit", "after_commit", "before_renew", "after_renew"])
async def test_a_lost_reply_is_asked_for_again_and_nothing_is_late(
    colony: Colony, acts: Acts, caplog: pytest.LogCaptureFixture, point: str
) -> None:
    handles = Handles(acts)
    colony.router()
    colony.worker()
    faults.arm(f"{point}=drop")
    traces = [await colony.send() for _ in range(4)]
    await handles.began(4)

    async def lost() -> bool:
        return not faults.armed

    await eventually(lost)
    handles.let_go()

    ended = await colony.ended(*traces)
    assert {(trace.outputs, trace.dead) for trace in ended} == {(1, 0)}
    assert len(handles.begun) == 4
    assert lines(caplog, "late") == []


async def test_a_mistake_of_colonys_own_leaves_the_delivery_to_others(
    colony: Colony, acts: Acts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Held on to, it would be renewed for ever and worked on by nobody."""
    handles = Handles(acts, held=False)
    count = Traces.attempt
    tries = 0

    async def attempt(self: Traces, *args: Any, **more: Any) -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("nobody thought of this")
        return await count(self, *args, **more)

    monkeypatch.setattr(Traces, "attempt", attempt)
    colony.router()
    trace_id = await colony.send()
    await eventually(lambda: waits(colony))
    await Inbox(colony.link, "gone").read([SOURCE], count=1, block_ms=None)
    colony.worker(replace(PACE, claim_idle_ms=50))

    (trace,) = await colony.ended(trace_id)

    assert (trace.outputs, tries, handles.begun) == (1, 2, [trace_id])
    assert any("nobody thought of this" in line for line in lines(caplog, "left_pending"))


async def waits(colony: Colony) -> bool:
    return bool(await colony.link.command("XLEN", SOURCE))


async def test_a_delivery_that_was_moved_often_and_never_handled_is_not_blamed(
    colony: Colony, acts: Acts
) -> None:
    """Ten restarts that took it up and did not come to it, at most five deliveries."""
    await colony.apply(max_deliveries=5)
    handles = Handles(acts, held=False)
    router = colony.router()
    trace_id = await colony.send()
    await eventually(lambda: waits(colony))
    inbox = Inbox(colony.link, "worker-0")
    await inbox.read([SOURCE], count=1, block_ms=None)
    for _ in range(10):
        await inbox.history(SOURCE)
    assert (await colony.pending())[0][1] > 10

    colony.worker()

    (trace,) = await colony.ended(trace_id)
    assert (trace.outputs, trace.dead, handles.begun) == (1, 0, [trace_id])
    await colony.stop(router)


async def test_what_is_committed_while_it_is_renewed_was_not_lost(
    colony: Colony, acts: Acts, caplog: pytest.LogCaptureFixture
) -> None:
    handles = Handles(acts)
    colony.router(replace(PACE, renew_ms=3_600_000))
    worker = colony.worker()
    trace_id = await colony.send()
    await handles.began()

    async def reached() -> bool:
        return "before_renew" not in faults.armed

    async def answered() -> bool:
        return not faults.armed

    faults.arm("before_renew=delay:0.5,after_renew=delay:0")
    await eventually(reached)
    handles.let_go()
    await colony.ended(trace_id)
    await eventually(answered)
    await colony.stop(worker)

    assert lines(caplog, "claim_lost") == []


class Stubborn:
    """A handler that goes on whoever cancels it, until it is released."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.released = asyncio.Event()
        self.cancelled = 0

    async def act(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        self.begun.set()
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        return [Emission.say("too late")]


async def test_a_handler_past_its_time_is_not_renewed_even_if_it_goes_on(
    colony: Colony, acts: Acts
) -> None:
    await colony.apply(message_timeout_default_ms=100)
    stubborn = Stubborn()
    acts["a"] = stubborn.act
    colony.router()
    worker = colony.worker()

    (trace,) = await colony.ended(await colony.send())

    assert (trace.cause, trace.reason, stubborn.cancelled) == ("failed", "message_timeout", 1)
    assert await colony.pending() == []
    stubborn.released.set()
    await colony.stop(worker)
    assert (await colony.traces.get(trace.id)).outputs == 0
    assert len(await colony.traces.log(trace.id)) == 1


async def test_a_handler_that_goes_on_after_its_claim_was_lost_publishes_nothing(
    colony: Colony, acts: Acts, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn = Stubborn()
    acts["a"] = stubborn.act
    colony.router()
    worker = colony.worker()
    trace_id = await colony.send()
    await stubborn.begun.wait()
    ((entry, _),) = await colony.link.command("XRANGE", SOURCE, "-", "+")
    await colony.link.command("XCLAIM", SOURCE, GROUP, "somebody-else", 0, entry, "JUSTID")
    await eventually(lambda: lost_claims(colony, 1))
    assert len(lines(caplog, "claim_lost")) == 1

    stubborn.released.set()
    await colony.stop(worker)

    assert await colony.pending() == [("somebody-else", 1)]
    assert len(await colony.traces.log(trace_id)) == 1
    assert (await colony.traces.get(trace_id)).live == 1


async def test_an_owner_that_lost_its_claim_stops_when_it_renews(
    colony: Colony, acts: Acts
) -> None:
    handles = Handles(acts)
    colony.router()
    colony.worker()
    trace_id = await colony.send()
    await handles.began()
    ((entry, _),) = await colony.link.command("XRANGE", SOURCE, "-", "+")
    await colony.link.command("XCLAIM", SOURCE, GROUP, "somebody-else", 0, entry, "JUSTID")

    async def stopped() -> bool:
        return handles.broken_off == [trace_id]

    await eventually(stopped)
    assert await colony.pending() == [("somebody-else", 1)]


async def test_a_delivery_that_comes_back_while_it_is_handled_is_not_handled_twice(
    colony: Colony, acts: Acts
) -> None:
    """The only worker does not renew, so that it reclaims what it is working on."""
    handles = Handles(acts)
    colony.router()
    colony.worker(replace(PACE, claim_idle_ms=20, renew_ms=3_600_000, reclaim_ms=20))
    trace_id = await colony.send()
    await handles.began()

    async def reclaimed() -> bool:
        return (await colony.pending())[0][1] >= 4

    await eventually(reclaimed)
    handles.let_go()
    (trace,) = await colony.ended(trace_id)

    assert (handles.begun, trace.outputs) == ([trace_id], 1)


async def test_what_was_delivered_before_is_handled_alone(colony: Colony, acts: Acts) -> None:
    handles = Handles(acts)
    colony.router()
    crashed = colony.worker()
    before = [await colony.send() for _ in range(3)]
    await handles.began(3)
    assert handles.most == 3
    await colony.crash(crashed)
    handles.most = 0
    handles.let_go()
    after = await colony.send()
    colony.worker(replace(PACE, claim_idle_ms=50))

    await colony.ended(*before, after)

    assert handles.most == 1


async def test_what_waits_to_be_handled_alone_is_taken_by_who_has_time(
    colony: Colony, acts: Acts
) -> None:
    """Nobody works on it, so nobody renews it."""
    handles = Handles(acts)
    colony.router()
    crashed = colony.worker()
    traces = [await colony.send() for _ in range(3)]
    await handles.began(3)
    await colony.crash(crashed)
    pace = replace(PACE, claim_idle_ms=1_000)
    busy = colony.worker(pace)
    await handles.began(4)
    other = colony.worker(pace)

    await handles.began(5)

    assert handles.begun[3] != handles.begun[4]
    assert handles.broken_off[3:] == []
    handles.let_go()
    ended = await colony.ended(*traces)
    assert {(trace.outputs, trace.dead) for trace in ended} == {(1, 0)}
    assert sorted(handles.begun[3:]) == sorted(traces)
    await colony.stop(busy)
    await colony.stop(other)
    assert (await counted(colony))["stale_commits"] == 0


async def test_a_new_holder_of_a_name_takes_up_what_the_name_holds(
    colony: Colony, acts: Acts
) -> None:
    handles = Handles(acts)
    colony.router()
    crashed = colony.worker()
    trace_id = await colony.send()
    await handles.began()
    await colony.crash(crashed)
    await colony.link.command("DEL", KEYS.slots("worker"))
    handles.let_go()

    colony.worker(replace(PACE, reclaim_ms=3_600_000))

    await colony.ended(trace_id)
    assert handles.begun == [trace_id] * 2


async def test_a_reply_that_was_lost_is_read_again_after_reconnecting(colony: Colony) -> None:
    colony.worker(replace(PACE, reclaim_ms=3_600_000))

    async def leased() -> bool:
        return bool(await colony.link.command("EXISTS", KEYS.slots("worker")))

    await eventually(leased)
    router = colony.router()
    trace_id = await colony.send()
    await colony.ended(trace_id)
    await colony.stop(router)
    lost = await colony.send()
    # As if the worker had asked, and the answer had not arrived.
    ((entry, fields),) = await colony.link.command("XRANGE", KEYS.router(), "-", "+")
    await colony.link.command("XDEL", KEYS.router(), entry)
    script = (
        "redis.call('XADD', KEYS[1], '*', unpack(ARGV)) "
        "redis.call('XREADGROUP', 'GROUP', 'colony', 'worker-0', 'STREAMS', KEYS[1], '>')"
    )
    await colony.link.command("EVAL", script, 1, SOURCE, *fields)
    await colony.link.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def handled() -> bool:
        return bool(await colony.link.command("XLEN", SOURCE) == 0)

    await eventually(handled)
    assert (await colony.traces.get(lost)).live == 1


async def test_who_lost_its_slot_abandons_what_it_has_and_goes_on_under_another_name(
    colony: Colony, acts: Acts
) -> None:
    handles = Handles(acts)
    colony.router()
    colony.worker(replace(PACE, claim_idle_ms=200))
    trace_id = await colony.send()
    await handles.began()
    await colony.link.command("HSET", KEYS.slots("worker"), 0, "another 99999999999999 {}")

    async def abandoned() -> bool:
        return handles.broken_off == [trace_id]

    await eventually(abandoned)
    handles.let_go()
    (trace,) = await colony.ended(trace_id)

    assert trace.outputs == 1
    assert handles.begun == [trace_id] * 2
    assert await colony.link.command("HEXISTS", KEYS.slots("worker"), 1)


async def test_who_wakes_to_end_hands_nothing_back_that_a_namesake_holds_by_now(
    colony: Colony, acts: Acts
) -> None:
    handles = Handles(acts)
    colony.router()
    never = 3_600_000
    pace = replace(PACE, claim_idle_ms=100, renew_ms=never, reclaim_ms=never, drain_ms=1)
    slept = colony.worker(pace)
    trace_id = await colony.send()
    await handles.began()

    async def idle_for(ms: int) -> list[object]:
        found = await colony.link.command("XPENDING", SOURCE, GROUP, "IDLE", ms, "-", "+", 9)
        return list(found)

    async def overslept() -> bool:
        return len(await idle_for(150)) == 1

    await eventually(overslept)
    await colony.link.command("HSET", KEYS.slots("worker"), 0, "another 99999999999999 {}")
    await Inbox(colony.link, "worker-0").history(SOURCE)
    await colony.stop(slept)

    assert handles.broken_off == [trace_id]
    assert await colony.pending() == [("worker-0", 2)]
    assert await idle_for(never) == []


async def test_after_a_restart_of_the_server_what_was_in_hand_is_handled_again(
    redis_binary: Path, acts: Acts
) -> None:
    with RedisServer.start(redis_binary, fsync="always") as server:
        colony = Colony(server.url)
        await colony.apply()
        handles = Handles(acts)
        colony.router()
        colony.worker()
        trace_id = await colony.send()
        await handles.began()

        server.restart()
        handles.let_go()
        await eventually(lambda: reachable(colony))
        (trace,) = await colony.ended(trace_id)

        assert (trace.cause, trace.outputs) == ("completed", 1)
        assert len(handles.begun) == 2
        await colony.close()


async def reachable(colony: Colony) -> bool:
    try:
        return bool(await colony.link.command("PING"))
    except ServerUnavailable:
        return False


async def test_a_server_that_is_away_is_told_once(
    redis_binary: Path,
    acts: Acts,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("colony.log.Outage._said", -1000.0)
    with RedisServer.start(redis_binary, fsync="always") as server:
        colony = Colony(server.url)
        await colony.apply()
        colony.router()
        colony.worker()
        await colony.ended(await colony.send())
        server.halt()
        with caplog.at_level(logging.ERROR):
            await asyncio.sleep(0)
            server.restart()
            await eventually(lambda: reachable(colony))
            await colony.ended(await colony.send())
        lines = [line for line in caplog.messages if "server_unavailable" in line]
        assert len(lines) == 1
        await colony.close()


async def test_a_failure_that_may_pass_is_tried_again_so_often(colony: Colony, acts: Acts) -> None:
    await colony.apply(max_deliveries=3)
    tries: list[str] = []

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        tries.append(envelope.id)
        if envelope.body.entries[0].text == "never" or len(tries) < 3:
            raise CellError(detail="not yet", retryable=True)
        return [Emission(hop={}, body=envelope.body)]

    acts["a"] = act
    colony.router()
    colony.worker(replace(PACE, claim_idle_ms=20))
    (passing,) = await colony.ended(await colony.send("later"))
    assert (passing.outputs, len(tries)) == (1, 3)

    tries.clear()
    (failing,) = await colony.ended(await colony.send("never"))

    (letter,) = await colony.letters.list()
    assert (letter.code, len(tries)) == ("delivery_limit", 3)
    assert failing.reason == "delivery_limit"


async def test_a_state_of_the_server_is_no_attempt(colony: Colony, acts: Acts) -> None:
    await colony.apply(max_deliveries=2)
    tries = 0

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise CellError(detail="redeliver me", retryable=True)
        if tries < 5:
            raise ServerUnavailable(detail="OOM")
        return [Emission(hop={}, body=envelope.body)]

    acts["a"] = act
    colony.router()
    colony.worker(replace(PACE, claim_idle_ms=20))

    (trace,) = await colony.ended(await colony.send())

    assert (trace.outputs, tries) == (1, 5)
    (count,) = await colony.link.command("HVALS", KEYS.attempts(trace.id))
    assert count.split()[0] == b"1"


async def test_a_full_server_drains_and_is_never_held_against_a_delivery(
    colony: Colony, acts: Acts
) -> None:
    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        return [Emission.say("x" * 100_000)]

    acts["a"] = act
    traces = [await colony.send() for _ in range(20)]
    await colony.link.command("CONFIG", "SET", "maxmemory", 1)
    try:
        colony.router()
        colony.worker()
        assert {t.cause for t in await colony.ended(*traces)} == {"completed"}
        with pytest.raises(ServerUnavailable):
            await colony.send()
    finally:
        await colony.link.command("CONFIG", "SET", "maxmemory", 0)
    assert await colony.letters.count() == 0


async def test_broken_bytes_are_a_dead_letter_and_everything_else_goes_on(colony: Colony) -> None:
    for stream in (KEYS.router(), SOURCE):
        await colony.link.command("XADD", stream, "*", "head", b"\xc1", "body", b"b")
    colony.router()
    colony.worker()

    (trace,) = await colony.ended(await colony.send())

    assert trace.cause == "completed"
    letters = await colony.letters.list()
    assert [letter.code for letter in letters] == ["envelope_invalid"] * 2
    assert {letter.facts["resolved_target"] for letter in letters} == {"/colony", "/a"}


async def test_a_commit_that_is_refused_takes_no_neighbour_along(
    colony: Colony, caplog: pytest.LogCaptureFixture
) -> None:
    bad = CellSpec(path="/bad", cell=CellSettings(type="probe"))
    await colony.apply(bad)
    await colony.link.command("DEL", KEYS.cell("/bad"))
    await colony.link.command("SET", KEYS.cell("/bad"), "not a stream")
    refused = await colony.send(target="/bad")
    fine = [await colony.send() for _ in range(5)]
    colony.router()
    colony.worker(patterns=("/a", "/sink"))

    assert {trace.outputs for trace in await colony.ended(*fine)} == {1}

    assert (await colony.traces.get(refused)).live == 1
    assert any("commit_refused" in line for line in caplog.messages)


async def test_a_colony_survives_the_loss_of_all_keys(colony: Colony) -> None:
    colony.router()
    colony.worker()
    await colony.ended(await colony.send())

    await colony.link.command("FLUSHALL")
    (trace,) = await colony.ended(await colony.send())

    assert trace.outputs == 1


async def test_a_worker_tells_at_once_what_it_hosts(colony: Colony) -> None:
    colony.worker(replace(PACE, renew_ms=3_600_000))
    await colony.apply(CellSpec(path="/new", cell=CellSettings(type="probe")))

    async def told() -> bool:
        found = await holders(colony.link, KEYS, "worker")
        return [h.about["cells"] for h in found] == [["/a", "/new", "/sink"]]

    await eventually(told)


async def test_a_tree_is_followed_live(colony: Colony, acts: Acts) -> None:
    colony.router()
    colony.worker()
    await colony.ended(await colony.send())
    await colony.apply(CellSpec(path="/new", cell=CellSettings(type="probe")))

    async def known() -> bool:
        return bool(await colony.link.command("HGET", KEYS.topology(), "version") == b"2")

    await eventually(known)
    handles = Handles(acts, held=False, name="")
    trace_id = None
    async with asyncio.timeout(10):
        while trace_id not in handles.begun:
            trace_id = await colony.send(target="/new")
            (trace,) = await colony.ended(trace_id)

    assert trace.outputs == 1


async def test_a_drain_breaks_off_what_is_handled_alone_and_takes_the_attempt_back(
    colony: Colony, acts: Acts
) -> None:
    handles = Handles(acts)
    colony.router()
    crashed = colony.worker()
    traces = [await colony.send() for _ in range(2)]
    await handles.began(2)
    await colony.crash(crashed)
    draining = colony.worker(replace(PACE, claim_idle_ms=50, drain_ms=20))
    await handles.began(3)

    await colony.stop(draining)

    assert sorted(times for _, times in await colony.pending()) == [1, 1]
    counts = [await colony.link.command("HVALS", KEYS.attempts(i)) for i in traces]
    assert sorted(counts) == [[], [b"0 "]]


async def test_a_process_that_stops_gives_its_slot_back(colony: Colony) -> None:
    await colony.stop(await started(colony, colony.worker()))
    await colony.stop(await started(colony, colony.router()))

    assert await colony.link.command("EXISTS", KEYS.slots("worker"), KEYS.slots("router")) == 0
    clients = (await colony.link.command("CLIENT", "LIST")).splitlines()
    assert len(clients) == 1


async def started(colony: Colony, role: Role) -> Role:
    async def leased() -> bool:
        key = KEYS.slots("worker" if isinstance(role, Worker) else "router")
        return bool(await colony.link.command("EXISTS", key))

    await eventually(leased)
    return role
