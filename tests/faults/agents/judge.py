"""What may be said of the runs of a session, whatever happened to whoever made them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colony.access.run_follower import Frame
from colony.agent.events import Event
from colony.agent.history import HistoryRow
from tests.faults.agents.tree import ANSWER, LOOKING

TEXTS = (LOOKING, ANSWER)


@dataclass
class Heard:
    """The text that one follower was told, by run and turn, and what was wrong about it."""

    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def hear(self, frame: Frame) -> None:
        """Take down a frame."""
        event = frame.event
        if event is None or event.kind != "message.delta":
            return
        told: Any = event.payload
        before = self.texts.get((event.run_id, event.turn), "")
        if told["offset"] != len(before):
            self.wrong.append(f"text at {told['offset']} behind {len(before)}: {told['text']!r}")
        self.texts[event.run_id, event.turn] = before + told["text"]


def faults_of_log(events: Sequence[Event]) -> list[str]:
    """What is wrong with the log of a session."""
    wrong: list[str] = []
    runs = dict.fromkeys(event.run_id for event in events)
    if [*runs] != _in_order(events):
        wrong.append("runs overlap in the log")
    for run_id in runs:
        own = [event for event in events if event.run_id == run_id]
        kinds = [event.kind for event in own]
        if [event.seq for event in own] != [*range(1, len(own) + 1)]:
            wrong.append(f"{run_id}: numbers {[event.seq for event in own]}")
        if kinds[0] != "session.init" or kinds[-1] != "result" or kinds.count("result") != 1:
            wrong.append(f"{run_id}: {kinds}")
        wrong += _faults_of_asks(run_id, own)
    return wrong


def faults_of_text(events: Sequence[Event], heard: Heard) -> list[str]:
    """Where somebody was told another text than the one that counts, or one twice."""
    wrong = [*heard.wrong]
    logged: dict[tuple[str, int], str] = {}
    for event in events:
        if event.kind == "message.delta":
            told: Any = event.payload
            key = (event.run_id, event.turn)
            logged[key] = logged.get(key, "") + told["text"]
    wrong += [f"logged {text!r}" for text in logged.values() if text not in TEXTS]
    for key, text in heard.texts.items():
        whole = logged.get(key)
        if text != whole and not (whole is None and any(t.startswith(text) for t in TEXTS)):
            wrong.append(f"{key}: heard {text!r}, logged {whole!r}")
    return wrong


def faults_of_history(rows: Iterable[HistoryRow], *, ended: bool) -> list[str]:
    """Where a call is not answered once, at once and in order."""
    wrong: list[str] = []
    owed: list[str] = []
    for number, row in enumerate(rows):
        answered = [entry.id or "" for entry in row.entries if entry.type == "tool_result"]
        if answered != owed[: len(answered)] or (not answered and owed):
            wrong.append(f"row {number} {row.kind}: {answered} where {owed} is owed")
        owed = owed[len(answered) :]
        owed += [entry.id or "" for entry in row.entries if entry.type == "tool_call"]
    if ended and owed:
        wrong.append(f"{owed} is owed at the end")
    return wrong


def faults_of_results(events: Iterable[Event], may_fail: Collection[str]) -> list[str]:
    """Where a tool that may not fail is said to have failed, in a run that nobody cancelled."""
    events = [*events]
    cancelled = {e.run_id for e in events if e.payload.get("state") == "cancelled"}
    return [
        f"{event.run_id}: {event.payload['name']} failed: {event.payload['content']}"
        for event in events
        if event.kind == "tool.result"
        and event.payload["is_error"]
        and event.payload["name"] not in may_fail
        and event.run_id not in cancelled
    ]


def faults_of_changes(journal: Iterable[Mapping[str, Any]]) -> list[str]:
    """Which changes were begun more than once."""
    begun = Counter(line["call"] for line in journal if line["tool"] == "change")
    return [f"{call} was begun {times} times" for call, times in begun.items() if times > 1]


def _faults_of_asks(run_id: str, events: Sequence[Event]) -> list[str]:
    asked = Counter(str(e.payload["ask_id"]) for e in events if e.kind == "permission.ask")
    kinds = ("approval", "permission.expired")
    answered = Counter(str(e.payload["ask_id"]) for e in events if e.kind in kinds)
    wrong = [f"{run_id}: asked {ask} {n} times" for ask, n in asked.items() if n > 1]
    wrong += [f"{run_id}: answered {ask} {n} times" for ask, n in answered.items() if n > 1]
    return wrong + [f"{run_id}: answered {ask}, never asked" for ask in answered - asked]


def _in_order(events: Sequence[Event]) -> list[str]:
    order: list[str] = []
    for event in events:
        if not order or order[-1] != event.run_id:
            order.append(event.run_id)
    return order
