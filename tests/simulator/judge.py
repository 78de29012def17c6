"""The judge: what must hold of a server at any moment, and once everything has come to rest."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from colony.codec import decode_head, length_of
from colony.dead_letters import Buried, DeadLetters
from colony.envelope import digest
from colony.errors import TraceNotFound
from colony.keys import Keys
from colony.link import Link
from colony.operations import Select
from colony.records import HopRecord
from colony.schema import Schema
from colony.store.tables import StoreTables
from colony.traces import Trace, Traces
from tests.simulator.actors import Message
from tests.simulator.ledger import Ledger
from tests.simulator.tree import (
    CLASSIC,
    FAN_NOTES,
    LOOPS,
    NOTES,
    OUTPUTS,
    REVIVALS,
    SETTLE,
    TABLES,
)

# What may come of a message here, as a dead letter.
CODES = frozenset(("delivery_limit", "cell_inactive"))
FIRED_ROUNDS = 2
COLUMNS = ("turn_id", "iter", "role", "call_id", "turn", "fired")

Row = Mapping[str, Any]


class Judge:
    """Holds what is in Redis against what was asked for and what was answered."""

    def __init__(self, ledger: Ledger, messages: Sequence[Message], cells: Iterable[str]) -> None:
        self.ledger = ledger
        self.link: Link = ledger.link
        self.keys: Keys = ledger.keys
        self._messages = {message.trace_id: message for message in messages}
        self._streams = [self.keys.router(), *map(self.keys.cell, cells)]
        self._traces = Traces(self.link, self.keys)

    async def look(self) -> None:
        """What holds at any moment: counts are right, nothing rests unreported, nothing living
        expires."""
        await self._judge_sessions()
        under_way = await self._under_way()
        reported = await self._reported()
        for trace in await self._records():
            live = under_way[trace.id]
            if trace.live != live:
                self._complain(f"live is {trace.live}, and {live} are under way", trace.id)
            if trace.state == "quiet" and live:
                self._complain("it is quiet with envelopes under way", trace.id)
            lives = await self._lifetimes(trace.id)
            if live or not trace.ended:
                for key, expires in lives.items():
                    if expires:
                        self._complain(f"it lives, and {key} expires", trace.id)
            elif not all(lives.values()) and trace.id not in reported:
                kept = [key for key, expires in lives.items() if not expires]
                self._complain(f"it ended, nobody knows, and {kept} stay for ever", trace.id)
            if not live and not trace.ended and trace.id not in reported:
                self._complain("it is at rest, and nobody was told", trace.id)

    async def judge(self) -> None:
        """What holds at the end: everything ended, once, in a way that can be explained."""
        await self.look()
        await self._judge_streams()
        records = {trace.id: trace for trace in await self._records()}
        letters = await DeadLetters(self.link, self.keys).list(limit=10_000)
        await self._judge_births(records)
        fires: dict[tuple[str, int], set[str]] = defaultdict(set)
        for trace in records.values():
            log = await self._traces.log(trace.id)
            outputs = await self._traces.outputs(trace.id)
            self._judge_record(trace, log, len(outputs), letters)
            self._judge_log(trace.id, log)
            for key, ids in _fires(log).items():
                fires[key] |= ids
            self._judge_outcome(trace, outputs)
        for (turn, number), ids in fires.items():
            if len(ids) > 1:
                self._complain(f"round {number} of {turn} fired {len(ids)} times")
        for hive in (SETTLE, CLASSIC):
            await self._judge_threads(hive.removesuffix("/prep"), records)
        await self._judge_notes()
        for letter in letters:
            if letter.code not in CODES:
                detail = letter.facts["detail"]
                self._complain(f"a dead letter says {letter.code}: {detail}", letter.trace_id)

    # Streams and births

    async def _judge_streams(self) -> None:
        for stream in (*self._streams, self.keys.quiet()):
            left = await self.link.command("XLEN", stream)
            if left:
                self._complain(f"{left} entries stay on {stream}")
        for trace_id in await self._traces.ids("open", limit=1000):
            if trace_id not in self.ledger.gone:
                self._complain("it is listed as open for ever", trace_id)

    async def _judge_births(self, records: Mapping[str, Trace]) -> None:
        for message in self._messages.values():
            known = message.trace_id in records
            if message.trace_id in self.ledger.gone:
                if known:
                    self._complain("its record was gone, and came back", message.trace_id)
            elif not known:
                if message.told and not self.ledger.cut:
                    self._complain("it was admitted, and there is nothing of it", message.trace_id)
                keys = [key for key in await self._belongings(message.trace_id) if key]
                if await self.link.command("EXISTS", *keys):
                    self._complain("it was never born, and left keys", message.trace_id)

    # Traces

    def _judge_record(
        self,
        trace: Trace,
        log: Sequence[HopRecord],
        outputs: int,
        letters: Sequence[Buried],
        *,
        revivals: int = REVIVALS,
    ) -> None:
        if not trace.ended or trace.live:
            self._complain(f"it is {trace.state} with {trace.live} live at the end", trace.id)
        dead = sum(letter.trace_id == trace.id for letter in letters)
        if dead != trace.dead:
            self._complain(f"it counts {trace.dead} dead letters of {dead}", trace.id)
        if outputs != trace.outputs:
            self._complain(f"it counts {trace.outputs} outputs of {outputs}", trace.id)
        if trace.revivals > revivals:
            self._complain(f"it was revived {trace.revivals} times", trace.id)
        ending = self.ledger.endings.get(trace.id)
        if ending is None:
            return
        if ending.cause != trace.cause:
            self._complain(f"it ended {ending.cause} and is {trace.cause}", trace.id)
        if (len(log), outputs) != (ending.records, ending.outputs) and ending.cause != "completed":
            self._complain(
                f"after its end as {ending.cause} came {len(log) - ending.records} hops and "
                f"{outputs - ending.outputs} outputs",
                trace.id,
            )

    def _judge_log(self, trace_id: str, log: Sequence[HopRecord]) -> None:
        for message_id, count in Counter(record.head.id for record in log).items():
            if count > 1 + self.ledger.replayed_heads[message_id]:
                self._complain(f"{message_id} was published {count} times", trace_id)

    def _judge_outcome(self, trace: Trace, outputs: Sequence[Mapping[str, Any]]) -> None:
        if trace.cause == "cancelled" or trace.reason == "trace_timeout":
            return
        if trace.cause == "failed" and (not trace.dead or trace.outputs or not trace.reason):
            self._complain("it failed without a reason", trace.id)
        message = self._messages.get(trace.id)
        if message is None or message.turn in self.ledger.replayed_turns:
            return
        if message.target in OUTPUTS:
            self._judge_count(trace, OUTPUTS[message.target])
        elif not trace.dead:
            texts = [output["body"]["messages"][-1]["text"] for output in outputs]
            if texts != ["done"] or trace.revivals:
                self._complain(
                    f"nothing of it died, and it said {texts} after {trace.revivals} revivals",
                    trace.id,
                )
        elif trace.outputs != 1 and not (trace.outputs == 0 and trace.revivals == REVIVALS):
            self._complain(
                f"it gave {trace.outputs} answers after {trace.revivals} revivals", trace.id
            )

    def _judge_count(self, trace: Trace, most: int) -> None:
        if trace.outputs > most or (not trace.dead and trace.outputs < most):
            self._complain(f"{trace.outputs} of {most} came out of it", trace.id)

    # Sessions

    async def _judge_sessions(self) -> None:
        """Places are as they were given, and what waits is known of and waits for somebody."""
        parked = await self._parked()
        found = await self.link.command("ZRANGE", self.keys.waiting(), 0, -1, "WITHSCORES")
        waiting = {session.decode(): int(count) for session, count in _pairs(found)}
        turns = self.ledger.turns
        for session in {*turns.places, *waiting}:
            await self._judge_places(session, parked)
            count = sum(trace_id in parked for trace_id in turns.places[session])
            if waiting.get(session) != (count or None):
                self._complain(f"{count} wait in {session}, and {waiting.get(session)} are listed")
        for trace_id in parked:
            if trace_id in turns.over or turns.session(trace_id) is None:
                self._complain("it is parked for ever", trace_id)

    async def _judge_places(self, session: str, parked: Mapping[str, int]) -> None:
        found = await self.link.command("ZRANGE", self.keys.order(digest(session)), 0, -1)
        placed = [trace_id.decode() for trace_id in found]
        # Nobody ends a trace whose record is gone: its place is looked for when another one waits.
        known = [trace_id for trace_id in placed if trace_id not in self.ledger.gone]
        due = [id for id in self.ledger.turns.due(session) if id not in self.ledger.gone]
        if known != due:
            self._complain(f"the order of {session} is {known}, and should be {due}")
        if placed and placed[0] in parked:
            self._complain("it is its turn, and it stays parked", placed[0])

    # Threads

    async def _judge_threads(self, hive: str, records: Mapping[str, Trace]) -> None:
        threads: dict[str, list[Row]] = defaultdict(list)
        for row in await self._rows(f"{hive}/memory", "thread", TABLES, COLUMNS):
            threads[row["turn_id"]].append(row)
        for message in self._messages.values():
            trace = records.get(message.trace_id)
            if trace is None or not trace.outputs or message.turn in self.ledger.replayed_turns:
                continue
            if message.target in LOOPS and message.target.startswith(hive):
                self._judge_thread(trace, threads[message.turn])

    def _judge_thread(self, trace: Trace, rows: Sequence[Row]) -> None:
        said = {row["iter"]: row for row in rows if row["role"] == "assistant"}
        if not any(row["role"] == "user" for row in rows):
            # Its question was lost: no round of it can be gone on with, and the answer said so.
            return
        told = Counter((r["iter"], r["call_id"]) for r in rows if r["role"] == "tool")
        for number, row in said.items():
            for entry in json.loads(row["turn"]):
                if entry["type"] == "tool_call" and told[number, entry["id"]] != 1:
                    count = told[number, entry["id"]]
                    self._complain(f"call {entry['id']} of {number} has {count} results", trace.id)
        fired = sum(row["fired"] == 1 for row in said.values())
        if not trace.dead and fired != FIRED_ROUNDS:
            self._complain(f"{fired} rounds were claimed", trace.id)

    async def _judge_notes(self) -> None:
        rows = await self._rows("/notes/memory", "notes", NOTES, ("id", "trace_id"))
        for trace_id, count in Counter(row["trace_id"] for row in rows).items():
            message = self._messages.get(trace_id)
            if message is None or message.turn in self.ledger.replayed_turns:
                continue
            if count > FAN_NOTES:
                self._complain(f"{count} notes of {FAN_NOTES} were taken", trace_id)

    async def _rows(
        self, path: str, table: str, schema: Mapping[str, JsonValue], columns: tuple[str, ...]
    ) -> list[Row]:
        if not await self.link.command("EXISTS", self.keys.store_cells(path, table)):
            return []
        tables = StoreTables(
            self.link,
            self.keys,
            path=path,
            schema=Schema.model_validate({"tables": schema}),
            trace_id="judge",
            envelope_id="judge",
        )
        reply = await tables.execute(Select(table=table, columns=columns))
        assert reply.error_code is None, reply.detail
        return [*(reply.rows or ())]

    # Sight

    async def _under_way(self) -> Counter[str]:
        found = await asyncio.gather(
            *(self.link.command("XRANGE", stream, "-", "+") for stream in self._streams)
        )
        heads = [decode_head(fields[1]) for entries in found for _, fields in entries]
        return Counter(head.trace_id for head in heads) + await self._parked()

    async def _parked(self) -> Counter[str]:
        """How many envelopes wait for the turn of each trace."""
        found = await self.link.command("HGETALL", self.keys.parked())
        return Counter({id.decode(): length_of(data) for id, data in _pairs(found)})

    async def _reported(self) -> set[str]:
        entries = await self.link.command("XRANGE", self.keys.quiet(), "-", "+")
        return {fields[1].decode() for _, fields in entries}

    async def _records(self) -> list[Trace]:
        known = sorted({*self._messages, *self.ledger.opened})
        found = await asyncio.gather(*map(self._record, known))
        return [trace for trace in found if trace is not None]

    async def _record(self, trace_id: str) -> Trace | None:
        try:
            return await self._traces.get(trace_id)
        except TraceNotFound:
            return None

    async def _belongings(self, trace_id: str) -> list[str]:
        keys = self.keys
        listed = await self.link.command("SMEMBERS", keys.belongings(trace_id))
        return [
            keys.trace(trace_id),
            keys.log(trace_id),
            keys.outputs(trace_id),
            keys.receipts(trace_id),
            keys.journal(trace_id),
            keys.attempts(trace_id),
            keys.belongings(trace_id),
            *(key.decode() for key in listed),
        ]

    async def _lifetimes(self, trace_id: str) -> dict[str, bool]:
        """Which keys of a trace there are, and whether each expires."""
        keys = await self._belongings(trace_id)
        left = await asyncio.gather(*(self.link.command("PTTL", key) for key in keys))
        return {key: ms >= 0 for key, ms in zip(keys, left, strict=True) if ms != -2}

    def _complain(self, what: str, trace_id: str | None = None) -> None:
        self.ledger.complain(what, trace_id)


def _pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _fires(log: Sequence[HopRecord]) -> dict[tuple[str, int], set[str]]:
    """The ids of what went back to the model, by turn and round."""
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for record in log:
        head = record.head
        if head.hop.get("route") == "fire" and head.sender.endswith("/collector"):
            found[str(head.context["turn_id"]), int(str(head.context["iter"]))].add(head.id)
    return found
