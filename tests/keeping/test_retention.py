"""Retention: nothing of a living trace expires, and all that ended goes, whoever comes late."""

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from colony.access import Access
from colony.agent.asks import Ask, Decision
from colony.agent.changes import End, RunChanges
from colony.blobs import Blobs
from colony.body import Body, Entry
from colony.codec import encode_body, encode_head
from colony.dead_letters import DeadLetters
from colony.envelope import DeadLetter, Envelope
from colony.errors import Fenced, StaleRunControl
from colony.hosting import LiveHost
from colony.inbox import Inbox, make_groups
from colony.keeping.keeper import Keeper
from colony.keeping.retention import PAGE, Retention
from colony.keys import Keys
from colony.link import Link
from colony.lua.packing import pack
from colony.lua.registry import bind, scripts
from colony.operations import parse_operation
from colony.publication import Publication
from colony.runs.asks import PendingAsk, RunAsks
from colony.runs.ending import end_run
from colony.schema import Schema
from colony.sessions import Sessions
from colony.store.expiry import expire_rows
from colony.store.tables import StoreTables
from colony.streams import Delivery, Outgoing, Step, Streams
from colony.testing.claims import eventually
from colony.topology.model import (
    DEFAULTS,
    CellSettings,
    CellSpec,
    ColonySettings,
    TopologySpec,
)
from colony.traces import Traces

DOCS = Path(__file__).parents[2] / "docs"
KEYS = Keys("test")
LARGE = Body.of(Entry.say("user", "x" * 2000))
MEMORY = CellSpec(path="/memory", cell=CellSettings(type="store"))
KEEP_MS = 2_000
BRIEF = {
    "trace_retention_ms": KEEP_MS,
    "dead_letter_retention_ms": KEEP_MS,
    "idempotency_retention_ms": KEEP_MS,
}
ROUND = {"turn_id": "text", "iter": "int", "role": "text", "call_id": "text", "fired": "int"}
SCHEMA = Schema.model_validate(
    {
        "tables": {
            "thread": {
                "columns": ROUND,
                "unique": [["turn_id", "iter", "role", "call_id"]],
                "index": ["turn_id"],
                "retain_s": 1,
            }
        }
    }
)
ROW = {"turn_id": "q", "iter": 0, "role": "assistant", "call_id": "c", "fired": 0}
TURN = {
    "order": KEYS.order(""),
    "parked": KEYS.parked(),
    "waiting": KEYS.waiting(),
    "router": KEYS.router(),
    "session": "",
}
OPERATIONS: dict[str, dict[str, Any]] = {
    "store_insert": {"operation": "insert", "row": ROW},
    "store_upsert": {"operation": "upsert", "row": ROW},
    "store_update": {"operation": "update", "set": {"fired": 1}, "where": {"turn_id": "q"}},
    "store_delete": {"operation": "delete", "where": {"turn_id": "q"}},
    "settle": {
        "operation": "settle",
        "row": ROW,
        "key": {"turn_id": "q", "iter": 0},
        "expects": ["c"],
        "guard": {"role": "assistant", "fired": 0},
    },
}


class Colony:
    """A partition with a keeper, whose bodies of 1000 bytes and more travel as blobs."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.blobs = Blobs(link, KEYS, inline_max_bytes=1000)
        self.streams = Streams(link, KEYS, self.blobs)
        self.publication = Publication(link, KEYS)
        self.traces = Traces(link, KEYS)
        self.letters = DeadLetters(link, KEYS)
        self.keeper = Keeper(self.streams, self.publication)
        self.retention = Retention(link, KEYS, self.publication)
        self.server = ""

    async def apply(self, **settings: Any) -> None:
        spec = TopologySpec(settings=ColonySettings(**settings), cells=(MEMORY,))
        await self.publication.publish(spec)
        await self.publication.refresh()
        self.server = await self.link.open()

    async def born(self, **birth: Any) -> Delivery:
        """The first envelope of a new trace, in somebody's hands."""
        await self.traces.birth(
            "/memory", LARGE, ttl=9, inline_max_bytes=1000, guard_keep_ms=KEEP_MS, **birth
        )
        return await self.take(KEYS.router())

    async def take(self, stream: str) -> Delivery:
        (delivery,) = await Inbox(self.link, "w").read([stream], count=1, block_ms=None)
        assert isinstance(delivery, Delivery)
        return delivery

    async def worked(self, **birth: Any) -> Delivery:
        """A delivery whose handler did all that a handler may do, and has not committed it."""
        delivery = await self.born(**birth)
        await self.work(delivery)
        await self.streams.commit([self.passed_on(delivery)])
        second = await self.take(KEYS.cell("/memory"))
        await self.work(second)
        return second

    async def work(self, delivery: Delivery) -> None:
        trace_id, envelope_id = delivery.head.trace_id, delivery.head.id
        await self.traces.attempt(trace_id, envelope_id, token="t", server=self.server)
        await self.host(delivery).record("name", b"value")
        await self.host(delivery).record_request(b"{}", provider="p", model="m", attempt=1)
        await self.host(delivery).update_state("trace", {"leaf": "1"}, [])
        row = {**ROW, "turn_id": trace_id, "call_id": envelope_id}
        await self.do(delivery, {"operation": "insert", "row": row})

    def host(self, delivery: Delivery) -> LiveHost:
        head = delivery.head
        return LiveHost(
            link=self.link,
            keys=KEYS,
            spec=MEMORY,
            directory=None,
            tools=(),
            envelope=Envelope(
                id=head.id, trace_id=head.trace_id, target="/memory", ttl=1, body=LARGE
            ),
            server=self.server,
        )

    async def do(self, delivery: Delivery, operation: dict[str, Any]) -> None:
        tables = StoreTables(
            self.link,
            KEYS,
            path="/memory",
            schema=SCHEMA,
            trace_id=delivery.head.trace_id,
            envelope_id=delivery.head.id,
        )
        reply = await tables.execute(parse_operation(json.dumps({"table": "thread", **operation})))
        assert reply.error_code is None, reply.detail

    def passed_on(self, delivery: Delivery, name: str = "") -> Step:
        """What keeps, logs and passes on a large body."""
        trace_id = delivery.head.trace_id
        head = encode_head(delivery.head.model_copy(update={"id": f"{trace_id}-{name}"}))
        large = encode_body(Body.of(Entry.say("user", f"{name} y" * 1000)))
        outgoing = Outgoing(KEYS.cell("/memory"), head, large)
        return Step(delivery, [outgoing], [b"hop record"], kept=[b"output"])

    def died(self, delivery: Delivery) -> Step:
        letter = DeadLetter("c", "why", "/a", "/b", "/memory", delivery.head, delivery.body)
        return Step(delivery, letters=[letter])

    async def commit(self, step: Step) -> str:
        (outcome,) = await self.streams.commit([step])
        return outcome.token

    async def attend(self) -> None:
        """Attend to every report, as a keeper does."""
        await self.keeper._attend_all(
            (await self.link.command("XREADGROUP", "GROUP", "colony", "k", "STREAMS",
                                     KEYS.quiet(), ">") or [[b"", []]])[0][1]
        )  # fmt: skip

    async def keys(self) -> dict[str, int]:
        """Every key, and in how many milliseconds it goes; -1 where it does not."""
        found = await self.link.command("KEYS", "*")
        return {key.decode(): await self.link.command("PTTL", key) for key in sorted(found)}

    async def swept(self, expected: Iterable[str]) -> bool:
        await self.retention.sweep()
        letters = await self.letters.count()
        return set(await self.keys()) == set(expected) and letters == 0


@pytest.fixture
async def colony(redis_url: str) -> AsyncIterator[Colony]:
    link = Link(redis_url)
    colony = Colony(link)
    await colony.apply(**BRIEF)
    await make_groups(link, [KEYS.dead()])
    yield colony
    await link.close()


# Everything that ended goes


async def completed(colony: Colony) -> str:
    delivery = await colony.worked()
    assert await colony.commit(Step(delivery, kept=[b"output"])) == "committed"
    return delivery.head.trace_id


async def under_a_guard(colony: Colony) -> str:
    delivery = await colony.worked(guard="key")
    assert await colony.commit(Step(delivery)) == "committed"
    return delivery.head.trace_id


async def failed(colony: Colony) -> str:
    delivery = await colony.born()
    assert await colony.commit(colony.died(delivery)) == "committed"
    return delivery.head.trace_id


async def cancelled(colony: Colony) -> str:
    delivery = await colony.worked()
    await colony.traces.end(delivery.head.trace_id, "cancelled", "why")
    assert await colony.commit(Step(delivery, kept=[b"late"])) == "fenced"
    return delivery.head.trace_id


async def overdue(colony: Colony) -> str:
    delivery = await colony.worked(timeout_ms=1)

    async def ended() -> bool:
        return delivery.head.trace_id in await colony.keeper.end_overdue()

    await eventually(ended)
    assert await colony.commit(Step(delivery, kept=[b"late"])) == "fenced"
    return delivery.head.trace_id


async def completed_with_envelopes_under_way(colony: Colony) -> str:
    """Its log, outputs and blobs are made after its end."""
    delivery = await colony.born()
    trace_id = delivery.head.trace_id
    await complete(colony, trace_id)
    await colony.keeper.attend(trace_id)
    assert await colony.commit(colony.passed_on(delivery)) == "committed"
    late = await colony.take(KEYS.cell("/memory"))
    await colony.work(late)
    await colony.keeper.attend(trace_id)
    await assert_nothing_expires(colony, trace_id)
    assert await colony.commit(Step(late, kept=[b"output"])) == "committed"
    return trace_id


async def replayed(colony: Colony, *, gone: bool = False) -> str:
    """Its envelope was a dead letter of a trace that ended before."""
    died = await colony.born()
    before = died.head.trace_id
    await colony.commit(colony.died(died))
    await colony.attend()
    dying = {key for key in await belonging(colony, before) if ":blob:" in key}
    assert dying
    (letter,) = [x for x in await colony.letters.list() if x.trace_id == before]
    if gone:
        await forget(colony, before)

    trace_id = await colony.letters.replay(letter.id, ttl=9, keep_ms=KEEP_MS)
    again = await colony.take(KEYS.router())

    assert trace_id != before
    assert await colony.blobs.open(again.body) == LARGE
    passed_on = Outgoing(KEYS.cell("/memory"), encode_head(again.head), again.body)
    assert await colony.commit(Step(again, [passed_on])) == "committed"
    own = {key for key in await belonging(colony, trace_id) if ":blob:" in key}
    assert own
    assert not own & dying
    assert await colony.commit(Step(await colony.take(KEYS.cell("/memory")))) == "committed"
    return trace_id


async def replayed_when_its_trace_is_gone(colony: Colony) -> str:
    return await replayed(colony, gone=True)


async def complete(colony: Colony, trace_id: str) -> None:
    """End a trace as completed while it has envelopes under way, as a run may end."""
    now = (await colony.traces.get(trace_id)).created_at
    await colony.link.command("HSET", KEYS.trace(trace_id), "state", "ended", "cause", "completed")
    await colony.link.command("ZREM", KEYS.open_traces(), trace_id)
    await colony.link.command("ZADD", KEYS.ended_traces(), now, trace_id)


async def forget(colony: Colony, trace_id: str) -> None:
    """What the retention does in the end."""
    mine = [key for key in await colony.keys() if trace_id in key]
    blobs = await colony.link.command("SMEMBERS", KEYS.belongings(trace_id))
    await colony.link.command("DEL", *mine, *blobs)


async def belonging(colony: Colony, trace_id: str) -> dict[str, int]:
    """The keys of a trace, and in how many milliseconds each goes."""
    blobs = await colony.link.command("SMEMBERS", KEYS.belongings(trace_id))
    listed = {blob.decode() for blob in blobs}
    return {k: ms for k, ms in (await colony.keys()).items() if trace_id in k or k in listed}


async def assert_nothing_expires(colony: Colony, trace_id: str) -> None:
    own = await belonging(colony, trace_id)
    assert own
    assert set(own.values()) == {-1}, own


KINDS = (completed, under_a_guard, failed, cancelled, overdue,
         completed_with_envelopes_under_way, replayed, replayed_when_its_trace_is_gone)  # fmt: skip


async def test_every_trace_leaves_the_keys_that_were_there_before(colony: Colony) -> None:
    await completed(colony)  # makes the table
    await colony.attend()
    lasting = {key for key, ms in (await colony.keys()).items() if ms == -1}
    # What is there as long as something is listed, or a row kept.
    lasting -= {KEYS.ended_traces()}
    lasting -= {make("/memory", "thread") for make in (KEYS.store_index, KEYS.store_unique)}
    await eventually(lambda: colony.swept(lasting))

    for kind in KINDS:
        trace_id = await kind(colony)
        await assert_nothing_expires(colony, trace_id)
        await colony.attend()
        own = await belonging(colony, trace_id)
        assert own, kind
        assert all(0 < ms <= KEEP_MS for ms in own.values()), (kind, own)
        assert (await colony.traces.get(trace_id)).ended

    await eventually(lambda: colony.swept(lasting))
    assert {*(await colony.keys()).values()} == {-1}
    assert await colony.link.command("XLEN", KEYS.router()) == 0
    assert await colony.link.command("XLEN", KEYS.cell("/memory")) == 0


async def test_nothing_expires_as_long_as_a_sibling_lives(colony: Colony) -> None:
    first = await colony.born()
    trace_id = first.head.trace_id
    step = colony.passed_on(first, "one")
    step.published += colony.passed_on(first, "two").published
    assert await colony.commit(step) == "committed"
    one = await colony.take(KEYS.cell("/memory"))
    await colony.work(one)
    await colony.commit(Step(one))

    await colony.keeper.attend(trace_id)
    await colony.retention.sweep()

    await assert_nothing_expires(colony, trace_id)
    assert (await colony.traces.get(trace_id)).live == 1


# Whoever comes late leaves nothing


Late = Callable[[Colony, Delivery], Awaitable[object]]


async def late_attempt(colony: Colony, late: Delivery) -> None:
    with pytest.raises(Fenced):
        await colony.traces.attempt(late.head.trace_id, "e", token="t", server=colony.server)


async def late_commit(colony: Colony, late: Delivery) -> None:
    assert await colony.commit(colony.passed_on(late)) == "fenced"


async def late_correction(colony: Colony, late: Delivery) -> None:
    call = bind(
        "correct",
        trace=KEYS.trace(late.head.trace_id),
        quiet=KEYS.quiet(),
        dead=KEYS.dead(),
        repairs=KEYS.repairs(),
        trace_id=late.head.trace_id,
        steps=1,
        live=1,
        found=0,
        code="c",
        facts="f",
        head="",
        empty="e",
    )
    assert await colony.link.run(call) == [b"moved"]


async def late_end(colony: Colony, late: Delivery) -> None:
    call = bind(
        "end_quiet",
        trace=KEYS.trace(late.head.trace_id),
        open=KEYS.open_traces(),
        ended=KEYS.ended_traces(),
        deadlines=KEYS.deadlines(),
        **TURN,
        trace_id=late.head.trace_id,
    )
    assert await colony.link.run(call) == [b"stale"]


async def late_cancel(colony: Colony, late: Delivery) -> None:
    call = bind(
        "end_trace",
        trace=KEYS.trace(late.head.trace_id),
        open=KEYS.open_traces(),
        ended=KEYS.ended_traces(),
        deadlines=KEYS.deadlines(),
        quiet=KEYS.quiet(),
        **TURN,
        trace_id=late.head.trace_id,
        cause="cancelled",
        reason="late",
    )
    assert (await colony.link.run(call))[0] in (b"unknown", b"before")


async def late_parking(colony: Colony, late: Delivery) -> None:
    # It goes on, to a commit that drops it.
    await Sessions(colony.link, KEYS).take_turn(late, "s")


async def late_record(colony: Colony, late: Delivery) -> None:
    with pytest.raises(Fenced):
        await colony.host(late).record("late", b"value")


async def late_request(colony: Colony, late: Delivery) -> None:
    await colony.host(late).record_request(b"{}", provider="p", model="m", attempt=1)


async def late_retirement(colony: Colony, late: Delivery) -> None:
    assert await colony.traces.retire(late.head.trace_id, keep_ms=10**6)


async def late_revival(colony: Colony, late: Delivery) -> None:
    call = bind(
        "revive",
        trace=KEYS.trace(late.head.trace_id),
        stream=KEYS.router(),
        revival=1,
        told=0,
        head="head",
        body="body",
    )
    assert await colony.link.run(call) == [b"stale"]


async def late_state(colony: Colony, late: Delivery) -> None:
    with pytest.raises(Fenced):
        await colony.host(late).update_state("trace", {"late": "1"}, [])


async def late_asks(colony: Colony, late: Delivery) -> None:
    changes = RunChanges("late")
    changes.asks.append(Ask.of_call("late", "call", "tool", {}, turn=0, reason="why"))
    assert await colony.commit(Step(late, run=changes)) == "fenced"


async def late_finish(colony: Colony, late: Delivery) -> None:
    changes = RunChanges("late", end=End("end_turn"))
    assert await colony.commit(Step(late, run=changes)) == "fenced"


async def late_end_of_a_run(colony: Colony, late: Delivery) -> None:
    run_id = late.head.trace_id
    answer = await end_run(colony.link, KEYS, run_id, "late", cause="cancelled", reason="late")
    assert answer[0] == b"unknown"


async def late_answer(colony: Colony, late: Delivery) -> None:
    run_id = late.head.trace_id
    asked = PendingAsk("late", run_id, Ask.of_call(run_id, "c", "tool", {}, turn=0, reason="why"))
    with pytest.raises(StaleRunControl):
        await RunAsks(colony.link, KEYS).decide(asked, Decision(verdict="deny"), token="t")


async def late_showing(colony: Colony, late: Delivery) -> None:
    call = bind(
        "show_run",
        trace=KEYS.trace(late.head.trace_id),
        journal=KEYS.journal(late.head.trace_id),
        run=KEYS.run(late.head.trace_id),
        field="late",
    )
    assert await colony.link.run(call) == [b"fenced"]


async def late_definition(colony: Colony, late: Delivery) -> None:
    call = bind(
        "store_make",
        trace=KEYS.trace(late.head.trace_id),
        catalogue=KEYS.store("/late"),
        cells=KEYS.store_cells("/late", "thread"),
        index=KEYS.store_index("/late", "thread"),
        unique=KEYS.store_unique("/late", "thread"),
        name="thread",
        before="",
        definition=SCHEMA.tables["thread"].definition,
        packed=pack([]),
    )
    assert await colony.link.run(call) == [b"fenced"]


def late_operation(name: str) -> Late:
    async def act(colony: Colony, late: Delivery) -> None:
        with pytest.raises(Fenced):
            await colony.do(late, OPERATIONS[name])

    return act


LATE: dict[str, Late] = {
    "attempt": late_attempt,
    "commit": late_commit,
    "correct": late_correction,
    "end_quiet": late_end,
    "end_run": late_end_of_a_run,
    "file_asks": late_asks,
    "finish_run": late_finish,
    "resolve_ask": late_answer,
    "show_run": late_showing,
    "end_trace": late_cancel,
    "park": late_parking,
    "record": late_record,
    "record_request": late_request,
    "retire": late_retirement,
    "revive": late_revival,
    "store_make": late_definition,
    "update_state": late_state,
    **{name: late_operation(name) for name in OPERATIONS},
}


def test_every_script_that_takes_a_trace_is_tried_late() -> None:
    # Those that open a trace where there is none are tried elsewhere.
    taking = {name for name, script in scripts().items() if "trace" in script.keys}

    assert LATE.keys() == (taking | {"commit"}) - {"begin_run", "birth", "birth_marked", "replay"}


@pytest.mark.parametrize("gone", [False, True], ids=["retired", "gone"])
@pytest.mark.parametrize("name", LATE)
async def test_nothing_late_makes_a_key_of_a_trace_that_goes_or_is_gone(
    redis_url: str, name: str, gone: bool
) -> None:
    """A handler that stood still wakes when another one has done its work long ago."""
    link = Link(redis_url)
    colony = Colony(link)
    await colony.apply()
    await colony.do(await colony.born(), OPERATIONS["store_insert"])
    late = await colony.born()
    trace_id = late.head.trace_id
    await complete(colony, trace_id)
    await link.command("HSET", KEYS.trace(trace_id), "live", 0)
    await colony.keeper.attend(trace_id)
    if gone:
        await forget(colony, trace_id)
    before = await colony.keys()

    await LATE[name](colony, late)

    after = await colony.keys()
    made = {key: ms for key, ms in after.items() if key not in before}
    assert all(":blob:" in key and ms > 0 for key, ms in made.items()), made
    assert all(0 < ms <= before[key] for key, ms in after.items() if before.get(key, -1) > 0)
    await link.close()


async def test_a_stray_envelope_does_not_take_an_ended_trace_below_nothing(colony: Colony) -> None:
    """Else it would never be retired."""
    stray = await colony.born()
    trace_id = stray.head.trace_id
    await colony.link.command("HSET", KEYS.trace(trace_id), "live", 0)
    await colony.traces.end(trace_id, "cancelled", "why")

    assert await colony.commit(Step(stray)) == "fenced"

    assert (await colony.traces.get(trace_id)).live == 0
    await colony.attend()
    assert 0 < await colony.link.command("PTTL", KEYS.trace(trace_id)) <= KEEP_MS


async def test_a_fenced_envelope_is_settled_though_its_blob_went_with_its_trace(
    colony: Colony,
) -> None:
    late = await colony.born()
    await forget(colony, late.head.trace_id)
    passed_on = Outgoing(KEYS.cell("/memory"), encode_head(late.head), late.body)

    assert await colony.commit(Step(late, [passed_on])) == "fenced"


async def test_a_second_retirement_prolongs_nothing(colony: Colony) -> None:
    trace_id = await completed(colony)
    await colony.attend()
    before = await belonging(colony, trace_id)

    assert await colony.traces.retire(trace_id, keep_ms=10**9)

    after = await belonging(colony, trace_id)
    assert all(ms <= before[key] for key, ms in after.items())


async def test_a_retirement_passes_over_a_belonging_that_is_not_there(colony: Colony) -> None:
    trace_id = await completed(colony)
    belongings = KEYS.belongings(trace_id)
    await colony.link.command("SADD", belongings, *(KEYS.blob(name) for name in "abc"))

    await colony.attend()

    own = await belonging(colony, trace_id)
    assert all(0 < ms <= KEEP_MS for ms in own.values()), own


async def test_a_trace_that_ends_while_a_keeper_retires_it_is_retired_whole(
    colony: Colony,
) -> None:
    """One keeper read the list of belongings before the last commit added to it."""
    first = await colony.born()
    trace_id = first.head.trace_id
    slow = asyncio.create_task(colony.traces.retire(trace_id, keep_ms=KEEP_MS))
    assert await colony.commit(colony.passed_on(first)) == "committed"
    assert await colony.commit(Step(await colony.take(KEYS.cell("/memory")))) == "committed"
    await slow

    await colony.attend()

    own = await belonging(colony, trace_id)
    assert len([key for key in own if ":blob:" in key]) == 2
    assert all(0 < ms <= KEEP_MS for ms in own.values()), own


# Sweeping


async def test_a_trace_stays_on_the_list_as_long_as_it_is_kept(colony: Colony) -> None:
    await colony.apply(trace_retention_ms=100_000)
    trace_id = await completed(colony)
    await colony.attend()

    assert await colony.retention.forget_traces() == 0

    assert await colony.traces.ids("ended", limit=9) == [trace_id]


async def test_a_trace_whose_last_report_was_lost_is_retired_by_the_sweep(colony: Colony) -> None:
    trace_id = await completed(colony)
    await complete(colony, trace_id)
    await colony.link.command("XTRIM", KEYS.quiet(), "MAXLEN", 0)

    async def forgotten() -> bool:
        return await colony.retention.forget_traces() == 1

    await eventually(forgotten)
    own = await belonging(colony, trace_id)
    assert all(0 < ms <= KEEP_MS for ms in own.values()), own


async def test_a_sweep_passes_over_what_has_envelopes_under_way(colony: Colony) -> None:
    """However many those are."""
    living = [f"{n:05}" for n in range(PAGE + 1)]
    for name in living:
        await colony.link.command("HSET", KEYS.trace(name), "state", "ended", "live", 1)
    for name in (*living, *(f"gone-{n}" for n in range(PAGE))):
        await colony.link.command("ZADD", KEYS.ended_traces(), 1, name)

    assert await colony.retention.forget_traces() == PAGE

    assert sorted(await colony.traces.ids("ended", limit=9999)) == living
    assert await colony.link.command("PTTL", KEYS.trace(living[0])) == -1


async def rows(colony: Colony) -> int:
    """How many rows the table has."""
    index = KEYS.store_index("/memory", "thread")
    return int(await colony.link.command("ZLEXCOUNT", index, "(\0\0", "(\0\1"))


async def test_rows_go_though_nobody_adds_any(colony: Colony) -> None:
    """More than go with one that comes."""
    delivery = await colony.born()
    tables = StoreTables(colony.link, KEYS, path="/memory", schema=SCHEMA,
                         trace_id=delivery.head.trace_id, envelope_id="e")  # fmt: skip
    for n in range(100):
        row = {**ROW, "iter": n}
        insert = {"operation": "insert", "table": "thread", "row": row}
        await tables.execute(parse_operation(json.dumps(insert)))
    assert await rows(colony) == 100
    cells = KEYS.store_cells("/memory", "thread")
    for n in range(1, 100):
        await colony.link.command("HSET", cells, f"{n:016}:", 1)
    await colony.link.command("HSET", cells, f"{100:016}:", 10**15)

    await colony.retention.sweep()

    assert await rows(colony) == 1
    assert await colony.link.command("HLEN", KEYS.store_unique("/memory", "thread")) == 1
    assert await expire_rows(colony.link, KEYS, "/memory") == 0


async def test_rows_of_a_table_without_a_retention_stay(colony: Colony) -> None:
    lasting = Schema.model_validate({"tables": {"notes": {"a": "text"}}})
    delivery = await colony.born()
    tables = StoreTables(colony.link, KEYS, path="/memory", schema=lasting,
                         trace_id=delivery.head.trace_id, envelope_id="e")  # fmt: skip
    insert = {"operation": "insert", "table": "notes", "row": {"a": "b"}}
    await tables.execute(parse_operation(json.dumps(insert)))
    await colony.link.command("HSET", KEYS.store_cells("/memory", "notes"), f"{1:016}:", 1)

    assert await expire_rows(colony.link, KEYS, "/memory") == 0


@pytest.mark.parametrize("name", BRIEF)
@pytest.mark.parametrize("value", [0, -1, 10**12, 1.5])
def test_a_retention_that_no_server_would_take_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationError):
        ColonySettings(**{name: value})  # type: ignore[arg-type]


async def test_what_a_client_begins_is_kept_as_the_tree_says(
    colony: Colony, redis_url: str
) -> None:
    await colony.commit(colony.died(await colony.born()))
    (letter,) = await colony.letters.list()

    async with Access(redis_url, KEYS.name) as access:
        await access.replay(letter.id)
        await access.admission.admit("/memory", LARGE, guard="key")

    keys = await colony.keys()
    assert 0 < keys[KEYS.guard("key")] <= KEEP_MS
    assert 0 < keys[KEYS.replay(letter.id)] <= KEEP_MS


async def test_nothing_is_swept_before_a_tree_is_known(colony: Colony, redis_url: str) -> None:
    """It may say that things are to be kept for longer than usual."""
    await colony.link.command("ZADD", KEYS.ended_traces(), 1, "long ago")

    await Retention(colony.link, KEYS, Publication(colony.link, KEYS)).sweep()

    assert await colony.traces.ids("ended", limit=9) == ["long ago"]


# What the documents say


def test_the_page_says_of_every_key_when_it_goes() -> None:
    page = (DOCS / "internals.md").read_text()
    table = page.partition("## What is kept, and how long")[2].partition("\n## ")[0]
    told = {key for line in table.splitlines() for key in re.findall(r"`(\S+?)`", _cell(line))}

    keys = Keys("name")
    known = set()
    for name, make in inspect.getmembers(keys, inspect.ismethod):
        if not name.startswith("_"):
            given = [f"<{parameter}>" for parameter in inspect.signature(make).parameters]
            known.add(make(*given).removeprefix("colony:{name:0}:"))

    assert told == known


def _cell(line: str) -> str:
    """The first cell of a row of a table."""
    return line.split("|")[1] if line.startswith("| `") else ""


@pytest.mark.parametrize("name", BRIEF)
def test_the_page_says_how_long_things_are_kept(name: str) -> None:
    default = getattr(DEFAULTS, name)
    hours = {"86400000": "24 hours", "2592000000": "30 days"}[str(default)]

    (row,) = re.findall(rf"^\| `{name}` \|.*$", (DOCS / "topology.md").read_text(), re.MULTILINE)

    assert f"| {default} |" in row
    assert hours in row
