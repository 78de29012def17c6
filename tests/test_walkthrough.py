"""The walkthrough: one round with two tools, played in a fixed order and written down hop by hop.

`docs/walkthrough.md` holds the prose; what stands between its markers is made here. After a change
that is meant, `COLONY_WRITE_DOCS=1 pytest tests/test_walkthrough.py` writes it anew.
"""

import json
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from colony.body import Body, Entry
from colony.codec import decode_body
from colony.operations import Select
from colony.records import HopRecord
from colony.schema import Schema
from colony.store.tables import StoreTables
from colony.streams import Delivery
from colony.testing.harness import Harness
from colony.topology.load import load
from colony.trees import shipped
from workers.store import Store

PAGE = Path(__file__).parents[1] / "docs" / "walkthrough.md"
WRITE = "COLONY_WRITE_DOCS"

QUESTION = "When did Dalén invent the sun valve, and how does it work?"
SCRIPT = [
    {
        "tool_calls": [
            {"id": "call-search", "name": "web_search", "arguments": {"query": "sun valve"}},
            {
                "id": "call-read",
                "name": "web_fetch",
                "arguments": {"url": "file:///dalen-sun-valve.md"},
            },
        ]
    },
    {"text": "In 1907 [source: file:///dalen-sun-valve.md]."},
]
COLUMNS = ("turn_id", "iter", "role", "call_id", "fired", "turn")
WIDTH = 96
# Different in every run.
MEASURED = ("duration_ms",)
# What the hop is with which each part of the page begins.
PARTS: Mapping[str, Callable[["Hop"], bool]] = {
    "question": lambda hop: True,
    "calls": lambda hop: hop.target == "/dispatch",
    "results": lambda hop: hop.sender in ("/reader", "/searcher"),
    "claim": lambda hop: hop.route == "cguard",
    "answer": lambda hop: hop.route == "fire",
}


@dataclass
class Hop:
    """An envelope that arrived at a cell, and what the thread held once the cell had handled it."""

    number: int
    record: HopRecord
    before: dict[str, JsonValue]
    body: Body
    thread: list[dict[str, Any]] = field(default_factory=list)

    @property
    def sender(self) -> str:
        return self.record.head.sender

    @property
    def target(self) -> str:
        return self.record.head.target or ""

    @property
    def route(self) -> JsonValue:
        return self.record.head.hop.get("route")


def reader_is_quicker(harness: Harness, pending: Sequence[Delivery]) -> Delivery:
    """Everything in the order it was published, but that the reader overtakes the searcher."""
    owners = [harness.owner(delivery) for delivery in pending]
    if "/colony" in owners:
        return pending[owners.index("/colony")]
    if owners[0] == "/searcher" and "/reader" in owners:
        return pending[owners.index("/reader")]
    return pending[0]


async def play(redis_url: str) -> list[Hop]:
    """The hops of the question, in the order in which cells handled them."""
    root = shipped("research")
    spec = load(root, environment={}).publishable()
    cells = tuple(
        cell.model_copy(update={"params": {"provider": "scripted", "script": SCRIPT}})
        if cell.path == "/planner"
        else cell
        for cell in spec.cells
    )
    spec = spec.model_copy(update={"cells": cells})
    hops: dict[str, Hop] = {}
    async with Harness(redis_url, spec, environment={}, root=root) as harness:
        trace = await harness.ask("/prep", QUESTION, context={"turn_id": "t-7"})
        while pending := await harness.pending():
            delivery = reader_is_quicker(harness, pending)
            if harness.owner(delivery) == "/colony":
                await harness.step(delivery)
                continue
            records = {record.head.id: record for record in await harness.hops(trace)}
            head = delivery.head
            parent = hops.get(head.parent_message_id or "")
            hop = Hop(
                number=len(hops) + 1,
                record=records[head.id],
                before=parent.record.head.context if parent else {},
                body=decode_body(delivery.body),
            )
            hops[head.id] = hop
            await harness.step(delivery)
            hop.thread = await rows(harness, trace)
        await harness.finish()
        assert (await harness.trace(trace)).cause == "completed"
        assert await harness.letters() == []
    return list(hops.values())


async def rows(harness: Harness, trace: str) -> list[dict[str, Any]]:
    """The thread table of the question, in the order in which its rows were added."""
    (memory,) = [cell for cell in harness.spec.cells if cell.path == "/memory"]
    tables = StoreTables(
        harness.link,
        harness.keys,
        path="/memory",
        schema=Schema(tables=Store.Params.model_validate(memory.params).tables),
        trace_id=trace,
        envelope_id="walkthrough",
    )
    reply = await tables.execute(Select(table="thread", columns=COLUMNS))
    return [dict(row) for row in reply.rows or ()]


# Writing down


def parts(hops: Sequence[Hop]) -> Iterator[tuple[str, str]]:
    """The parts of the page that are made here, by name."""
    starts = [next(n for n, hop in enumerate(hops) if begins(hop)) for begins in PARTS.values()]
    thread: list[dict[str, Any]] = []
    for name, start, end in zip(PARTS, starts, [*starts[1:], len(hops)], strict=True):
        part = hops[start:end]
        shown = [written(hop) for hop in part]
        if part[-1].thread != thread:
            thread = part[-1].thread
            shown += ["", table(thread)]
        yield name, "\n".join(shown)
    yield "numbers", numbers(hops)


def written(hop: Hop) -> str:
    """A hop as the page shows it."""
    head = hop.record.head
    way = f"{head.sender} → {head.target}"
    edge = hop.record.condition or ("none: admitted" if hop.number == 1 else "no condition")
    hop_keys = ", ".join(f"{key} = {value_of(key, value)}" for key, value in head.hop.items())
    lines = [f"{hop.number:>2}  {way:<{WIDTH - 10}}ttl {head.ttl}"]
    for name, text in (
        ("edge", edge),
        ("context", ", ".join(changes(hop.before, head.context)) or "as before"),
        ("hop", hop_keys or "empty"),
        ("body", said(hop.body)),
        ("thread", " | ".join(held(row) for row in hop.thread) or "empty"),
    ):
        lines += textwrap.wrap(
            text,
            WIDTH,
            initial_indent=f"    {name:<9}",
            subsequent_indent=" " * 13,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def changes(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> list[str]:
    """What an edge did to the context it found."""
    changed = [f"{k} = {value_of(k, v)}" for k, v in after.items() if before.get(k) != v]
    return changed + [f"{key} deleted" for key in before if key not in after]


def value_of(key: str, value: JsonValue) -> str:
    """A header value, those that are long or measured in short."""
    return "…" if key in MEASURED else short(json.dumps(value, ensure_ascii=False), 40)


def said(body: Body) -> str:
    """What a body carries, each part in a few words."""
    parts = [f"system.{slot}" for slot in body.system or {}]
    limit = 88 if len(body.entries) == 1 else 44
    for entry in body.entries:
        name = {"tool_call": "call", "tool_result": "result"}.get(entry.type, entry.origin)
        named = " ".join(filter(None, (name, symbolic(entry.id or ""))))
        parts.append(f"{named}: {content(entry, limit)}")
    return " | ".join(parts) or "no messages"


def content(entry: Entry, limit: int) -> str:
    """The text of an entry; what is asked of the store, and what it answers, in other words."""
    text = entry.text or ""
    value = json.loads(text) if text[:1] in ("{", "[") else None
    if isinstance(value, dict) and "operation" in value:
        return operation(value)
    if isinstance(value, list):
        return f"{len(value)} row{'s' * (len(value) != 1)}"
    return short(symbolic(text), limit)


def operation(asked: Mapping[str, Any]) -> str:
    """What is asked of the store; of a row, what tells it apart."""
    told = [f"{asked['operation']} {asked['table']}"]
    for slot in ("row", "set", "where"):
        columns = {k: v for k, v in asked.get(slot, {}).items() if k in COLUMNS and k != "turn"}
        if columns:
            named = ", ".join(f"{k} = {json.dumps(v)}" for k, v in columns.items())
            told.append(f"{slot} {named}")
    return ", ".join(told)


def held(row: Mapping[str, Any]) -> str:
    """A row of the thread in a word or two."""
    name = str(row["call_id"] if row["role"] == "tool" else row["role"])
    return name if row["fired"] is None else f"{name} (fired {row['fired']})"


def table(thread: Sequence[Mapping[str, Any]]) -> str:
    """The rows of the thread as the store has them."""
    shape = "{:<9}{:<6}{:<11}{:<13}{:<7}{}"
    lines = [shape.format(*COLUMNS)]
    for row in thread:
        told = ["null" if row[column] is None else row[column] for column in COLUMNS]
        lines.append(shape.format(*told[:-1], short(str(told[-1]), WIDTH - 46)))
    return "\n".join(lines)


def numbers(hops: Sequence[Hop]) -> str:
    """What the round cost."""
    by_id = {hop.record.head.id: hop for hop in hops}
    (answered,) = [hop for hop in hops if hop.target == "/sink"]
    chain = [answered]
    while parent := by_id.get(chain[-1].record.head.parent_message_id or ""):
        chain.append(parent)
    claims = [hop for hop in hops if hop.record.head.hop.get("operation") == "update"]
    won = [hop for hop in claims if hop.record.head.hop["rows_affected"] == 1]
    fired = [hop for hop in hops if hop.route == "fire"]
    return "\n".join(
        f"{name:<44}{count:>4}"
        for name, count in (
            ("hops in all", len(hops)),
            ("hops on the chain that ended at the sink", len(chain)),
            ("claims", len(claims)),
            ("claims won", len(won)),
            ("times the planner was asked again", len(fired)),
            ("lowest ttl on the way", min(hop.record.head.ttl for hop in hops)),
            ("ttl the answer arrived with", answered.record.head.ttl),
        )
    )


def short(text: str, limit: int) -> str:
    """A text on one line, cut to `limit` characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def symbolic(text: str) -> str:
    """The text with a name in place of every id that is made anew in each run."""
    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>", text)
    return re.sub(r"\barchive-[0-9a-f]{8}\b", "archive-<id>", text)


def filled(page: str, made: Mapping[str, str]) -> str:
    """The page with what was made between its markers; raises KeyError for a marker of nothing."""

    def fill(marker: re.Match[str]) -> str:
        return f"{marker[1]}\n```text\n{made[marker[2]]}\n```\n<!-- end -->"

    return re.sub(r"(<!-- run: (\w+) -->).*?<!-- end -->", fill, page, flags=re.DOTALL)


async def test_walkthrough_shows_what_happens(redis_url: str) -> None:
    made = dict(parts(await play(redis_url)))
    page = PAGE.read_text()

    written_anew = filled(page, made)

    if os.environ.get(WRITE) == "1":
        PAGE.write_text(written_anew)
    assert re.findall(r"<!-- run: (\w+) -->", page) == list(made)
    assert PAGE.read_text() == written_anew
