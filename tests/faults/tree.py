"""The tree that is put under faults: what may be asked of it, and what has to come of each.

Two rounds of two parallel tools that are joined by the store, a chain of store operations, a trace
that has to be revived, and one that only its deadline ends.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pydantic import JsonValue

from colony.body import Body, Entry
from colony.envelope import new_id
from colony.errors import TraceNotFound
from colony.keys import Keys
from colony.link import Link
from colony.records import HopRecord
from colony.topology.load import load
from colony.topology.model import ColonySettings, TopologySpec
from colony.traces import Cause, Trace, Traces

ROOT: Final = Path(__file__).parent / "loop"
STORE: Final = ("/memory",)
# Every cell but the store.
CELLS: Final = (
    "/prep",
    "/planner",
    "/dispatch",
    "/a",
    "/b",
    "/collector",
    "/ledger",
    "/lull",
    "/wake",
    "/linger",
    "/sink",
)
ROUNDS: Final = 2
TTL: Final = 1000
OVERDUE_MS: Final = 300

Params = dict[str, JsonValue]
Kind = Literal["rounds", "slow", "large", "ledger", "lull", "overdue"]


@dataclass(frozen=True)
class Question:
    """A message of some kind: where it goes, and how its trace has to end.

    `rounds` is how often the model calls both tools. `handled` counts the messages that handlers
    say they had, by sender; None where that depends.
    """

    target: str
    text: str
    answer: str | None
    cause: Cause = "completed"
    timeout_ms: int = 0
    rounds: int = 0
    handled: Mapping[str, int] | None = None


def looping(text: str, rounds: int = ROUNDS) -> Question:
    """A question whose answer takes so many rounds."""
    return Question("/prep", text, "42", rounds=rounds, handled={"/dispatch": 2 * rounds})


_LEDGER: Final = "insert:1 update:1 upsert:1 select:1 delete:1"

QUESTIONS: Final[Mapping[Kind, Question]] = {
    "rounds": looping("go"),
    "slow": looping("slow"),
    "large": looping("go" + " on" * 1000),
    "ledger": Question("/ledger", "go", _LEDGER, handled={"@external": 1, "/memory": 5}),
    "lull": Question("/lull", "go", "woken", handled={"@external": 1, "/colony/quiet": 1}),
    "overdue": Question("/linger", "go", None, "failed", OVERDUE_MS),
}


@dataclass
class Sums:
    """What became of accepted messages. `repeats` are handles that came to nothing new."""

    accepted: int = 0
    ended: int = 0
    lost: int = 0
    doubled: int = 0
    stalled: int = 0
    repeats: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every message ended exactly once, as it had to."""
        return self.accepted == self.ended and not (self.lost or self.doubled or self.stalled)

    def add(self, other: "Sums") -> None:
        """Count the messages of `other` as well."""
        self.accepted += other.accepted
        self.ended += other.ended
        self.lost += other.lost
        self.doubled += other.doubled
        self.stalled += other.stalled
        self.repeats += other.repeats
        self.notes += other.notes


def spec(*, rounds: int = ROUNDS, retention_s: int | None = None) -> TopologySpec:
    """The tree, to be published; with so many rounds.

    With `retention_s` nothing is kept longer than that, and bodies travel as they usually do.
    """
    found = load(ROOT, environment={}).publishable()
    if retention_s is not None:
        settings = ColonySettings(trace_retention_ms=retention_s * 1000)
        found = found.model_copy(update={"settings": settings})
    changed = {
        "/planner": lambda params: _scripted(params, rounds),
        "/memory": lambda params: _forgetful(params, retention_s),
    }
    cells = tuple(
        cell.model_copy(update={"params": changed[cell.path](cell.params)})
        if cell.path in changed
        else cell
        for cell in found.cells
    )
    return found.model_copy(update={"cells": cells})


def _scripted(planner: Params, rounds: int) -> Params:
    script = planner["script"]
    assert isinstance(script, list)
    return {**planner, "script": [*[script[0]] * rounds, script[-1]]}


def _forgetful(memory: Params, retention_s: int | None) -> Params:
    tables = memory["schema"]
    assert isinstance(tables, dict)
    thread = tables["thread"]
    assert isinstance(thread, dict)
    kept: Params = {} if retention_s is None else {"retain_s": retention_s}
    return {**memory, "schema": {**tables, "thread": {**thread, **kept}}}


async def ask(link: Link, keys: Keys, kind: Kind, *, trace_id: str | None = None) -> str:
    """Admit a question of this kind; the trace that answers it. A repeat admits it once."""
    question = QUESTIONS[kind]
    birth = await Traces(link, keys).birth(
        question.target,
        Body.of(Entry.say("user", question.text)),
        ttl=TTL,
        trace_id=trace_id or new_id(),
        timeout_ms=question.timeout_ms,
        inline_max_bytes=1000,
    )
    return birth.trace_id


async def judge(
    link: Link, keys: Keys, asked: Mapping[str, Kind], journal: Iterable[bytes]
) -> Sums:
    """What became of the traces that were asked for, each of a kind, and of nothing else."""
    questions = {trace_id: QUESTIONS[kind] for trace_id, kind in asked.items()}
    sums = await judge_traces(link, keys, questions, journal)
    letters = int(await link.command("XLEN", keys.dead()))
    if letters:
        sums.lost += letters
        sums.notes.append(f"{letters} dead letters")
    return sums


async def judge_traces(
    link: Link, keys: Keys, asked: Mapping[str, Question], journal: Iterable[bytes]
) -> Sums:
    """What became of the traces that these questions opened."""
    traces, handled = Traces(link, keys), _handled(journal)
    sums = Sums(accepted=len(asked))
    for trace_id, question in asked.items():
        try:
            trace = await traces.get(trace_id)
        except TraceNotFound:
            sums.lost += 1
            sums.notes.append(f"{trace_id} to {question.target}: gone")
            continue
        answers = [_text(output) for output in await traces.outputs(trace_id)]
        log = await traces.log(trace_id)
        _judge_one(sums, question, trace, answers, log, handled.get(trace_id, []))
    return sums


def _judge_one(
    sums: Sums,
    question: Question,
    trace: Trace,
    answers: Sequence[str],
    log: Sequence[HopRecord],
    handles: Sequence[tuple[str, str]],
) -> None:
    if not trace.ended or trace.live:
        sums.stalled += 1
        sums.notes.append(f"{trace.id}: {trace.state}, {trace.live} live, entry {trace.entry}")
        return
    sums.ended += 1
    due = {question.answer: 1} if question.answer is not None else {}
    distinct = Counter(sender for _, sender in set(handles))
    sums.repeats += len(handles) - len(set(handles))
    # What has to be there once is counted on both sides: in the log, and in the journal.
    found = [
        ("ended", {str(trace.cause): 1}, {question.cause: 1}),
        ("answers", Counter(answers), due),
        ("handled", distinct, distinct if question.handled is None else question.handled),
        *(_rounds(log, question.rounds) if question.rounds else ()),
    ]
    for what, got, expected in found:
        missing = sum((Counter(expected) - Counter(got)).values())
        extra = sum((Counter(got) - Counter(expected)).values())
        sums.lost += missing
        sums.doubled += extra if not missing else 0
        if missing or extra:
            sums.notes.append(f"{trace.id}: {what} {dict(got)} instead of {dict(expected)}")


def _rounds(
    log: Sequence[HopRecord], rounds: int
) -> list[tuple[str, Mapping[str, int], Mapping[str, int]]]:
    """How often each round was gone on with, and how often each tool gave a result."""
    fires: Counter[str] = Counter()
    results: Counter[str] = Counter()
    for record in log:
        head = record.head
        if head.sender == "/collector" and head.target == "/planner":
            fires[str(head.context["iter"])] += 1
        if head.sender in ("/a", "/b") and head.target == "/collector":
            results[head.sender] += 1
    return [
        ("fired", fires, {str(n): 1 for n in range(1, rounds + 1)}),
        ("results", results, {"/a": rounds, "/b": rounds}),
    ]


def _handled(journal: Iterable[bytes]) -> dict[str, list[tuple[str, str]]]:
    """What handlers said they handled: message and sender, by trace."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in journal:
        told = json.loads(line)
        found.setdefault(told["trace"], []).append((told["message"], told["by"]))
    return found


def _text(output: Mapping[str, JsonValue]) -> str:
    body = output["body"]
    assert isinstance(body, dict)
    return Body.parse(body).entries[0].text or ""
