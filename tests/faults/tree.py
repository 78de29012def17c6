"""The tree that is put under faults: what may be asked of it, and what has to come of each.

Two rounds of two parallel tools that are joined by the store, a chain of store operations, a trace
that has to be revived, one that only its deadline ends, and questions of a session in their order.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    "/turn",
    "/sink",
)
ROUNDS: Final = 2
TTL: Final = 1000
OVERDUE_MS: Final = 300

Params = dict[str, JsonValue]
Kind = Literal["rounds", "slow", "large", "ledger", "lull", "overdue", "turns", "talk"]


@dataclass(frozen=True)
class Question:
    """A message of some kind: where it goes, and how its trace has to end.

    `rounds` is how often the model calls both tools. `handled` counts the messages that handlers
    say they had, by sender; None where that depends. Where it has a `session` it waits for its turn
    behind the cell `waits_at`.
    """

    target: str
    text: str
    answer: str | None
    cause: Cause = "completed"
    timeout_ms: int = 0
    rounds: int = 0
    handled: Mapping[str, int] | None = None
    session: str = ""
    waits_at: str = ""


def looping(text: str, rounds: int = ROUNDS) -> Question:
    """A question whose answer takes so many rounds."""
    return Question("/prep", text, "42", rounds=rounds, handled={"/dispatch": 2 * rounds})


_LEDGER: Final = "insert:1 update:1 upsert:1 select:1 newest:1 delete:1"

QUESTIONS: Final[Mapping[Kind, Question]] = {
    "rounds": looping("go"),
    "slow": looping("slow"),
    "large": looping("go" + " on" * 1000),
    "ledger": Question("/ledger", "go", _LEDGER, handled={"@external": 1, "/memory": 6}),
    "lull": Question("/lull", "go", "woken", handled={"@external": 1, "/colony/quiet": 1}),
    # It has a place in a session while others of it wait.
    "overdue": Question("/linger", "go", None, "failed", OVERDUE_MS, session="talk"),
    "turns": Question("/turn", "go", "in turn", handled={"@external": 1}, session="one",
                      waits_at="/turn"),
    "talk": replace(looping("go"), session="talk", waits_at="/prep"),
}  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """When a trace was born into its session, went on there and ended, in ms of the server."""

    session: str
    born: int
    passed: int
    ended: int
    trace_id: str


@dataclass
class Sums:
    """What became of accepted messages. `repeats` are handles that came to nothing new."""

    accepted: int = 0
    ended: int = 0
    lost: int = 0
    doubled: int = 0
    stalled: int = 0
    repeats: int = 0
    disordered: int = 0
    turns: list[Turn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every message ended exactly once, as it had to and when it was its turn."""
        wrong = self.lost or self.doubled or self.stalled or self.disordered
        return self.accepted == self.ended and not wrong

    def judge_order(self) -> None:
        """Count the traces that went on before an older one of their session had ended."""
        sessions: dict[str, list[Turn]] = {}
        for turn in sorted(self.turns, key=lambda turn: (turn.passed, turn.ended)):
            sessions.setdefault(turn.session, []).append(turn)
        for turns in sessions.values():
            for before, after in itertools.pairwise(turns):
                if before.ended > after.passed or before.born > after.born:
                    self.disordered += 1
                    self.notes.append(f"out of order: {before}, then {after}")
        self.turns.clear()

    def add(self, other: "Sums") -> None:
        """Count the messages of `other` as well."""
        self.accepted += other.accepted
        self.ended += other.ended
        self.lost += other.lost
        self.doubled += other.doubled
        self.stalled += other.stalled
        self.repeats += other.repeats
        self.disordered += other.disordered
        self.turns += other.turns
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


async def ask(
    link: Link,
    keys: Keys,
    kind: Kind,
    *,
    trace_id: str | None = None,
    session: str | None = None,
) -> str:
    """Admit a question of this kind; the trace that answers it. A repeat admits it once.

    It is of its own session where no other `session` is given.
    """
    question = QUESTIONS[kind]
    session = question.session if session is None else session
    birth = await Traces(link, keys).birth(
        question.target,
        Body.of(Entry.say("user", question.text)),
        ttl=TTL,
        context={"session_id": session} if session else {},
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
    sums.judge_order()
    letters = int(await link.command("XLEN", keys.dead()))
    if letters:
        sums.lost += letters
        sums.notes.append(f"{letters} dead letters")
    return sums


async def judge_traces(
    link: Link, keys: Keys, asked: Mapping[str, Question], journal: Iterable[bytes]
) -> Sums:
    """What became of the traces that these questions opened; their order is left to be judged."""
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
    sums.turns += _turns(question, trace, log)
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


def _turns(question: Question, trace: Trace, log: Sequence[HopRecord]) -> list[Turn]:
    """The turn of a trace; none where it never went on behind the cell at which it waits."""
    passed = [record.at for record in log if record.head.sender == question.waits_at][:1]
    ended = trace.ended_at or trace.created_at
    return [Turn(question.session, trace.created_at, at, ended, trace.id) for at in passed]


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
