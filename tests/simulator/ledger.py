"""The ledger: what was seen to happen, against which the state of the server is held at the end."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from colony.codec import decode_head
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import Call
from tests.simulator.turns import Turns, published


@dataclass(frozen=True)
class Ending:
    """How much a trace had at its end; nothing is added to it afterwards."""

    cause: str
    records: int
    outputs: int


@dataclass(frozen=True)
class Violation:
    """Something that must never be."""

    what: str
    trace_id: str | None = None


@dataclass
class Ledger:
    """What the server answered, as far as it still stands.

    A server that lost its newest writes has undone some of it: then only what must hold of any
    state is asked.
    """

    link: Link
    keys: Keys
    counted: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    endings: dict[str, Ending] = field(default_factory=dict)
    attempts: dict[str, tuple[str, int]] = field(default_factory=dict)
    replayed: dict[str, str] = field(default_factory=dict)
    replayed_heads: Counter[str] = field(default_factory=Counter)
    replayed_turns: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    cut: bool = False
    news: int = 0

    def __post_init__(self) -> None:
        self.turns = Turns(self.link, self.keys)

    @property
    def fenced(self) -> set[str]:
        """The traces of which nothing may be handled any more."""
        return {id for id, ending in self.endings.items() if ending.cause != "completed"}

    def complain(self, what: str, trace_id: str | None = None) -> None:
        """Note a violation."""
        self.violations.append(Violation(what, trace_id))

    def forget(self) -> None:
        """The server may have lost some of what it answered."""
        self.cut = True
        for noted in (self.endings, self.attempts, self.replayed):
            noted.clear()

    async def witness(self, call: Call, answer: Any) -> None:
        """Note what a script answered."""
        told = _told(call)
        self.news += 1
        match call.script.name:
            case "commit":
                self._committed(call, answer)
            case "birth":
                self.counted[f"birth {answer[0].decode()}"] += 1
                if answer[0] == b"born":
                    self.turns.place(told["trace_id"], told["session"])
            case "park":
                self.counted[f"park {answer[0].decode()}"] += 1
                await self.turns.joined(told["trace_id"])
            case "end_trace" | "end_quiet":
                await self._ended(call.script.name, told, answer)
            case "attempt":
                self._attempted(told, answer)
            case "replay":
                self._replayed(told, answer)
            case name:
                self.counted[f"{name} {answer[0].decode()}"] += 1

    def _committed(self, call: Call, answers: list[list[Any]]) -> None:
        for answer, heads in zip(answers, published(call), strict=True):
            self.counted[answer[0].decode()] += 1
            for head in heads if answer[0] == b"committed" else ():
                # What nobody knows of any more is waited for no longer than it takes to notice.
                jumped = [id for id in self.turns.jumped(head) if id not in self.gone]
                if jumped:
                    self.complain(f"it goes on before {jumped}", head.trace_id)
            if answer[0] == b"committed" and answer[1] < 0:
                self.complain(f"a trace has {answer[1]} live envelopes")

    async def _ended(self, name: str, told: Mapping[str, Any], answer: list[Any]) -> None:
        trace_id, token = told["trace_id"], answer[0]
        self.counted[f"{name} {token.decode()}"] += 1
        before = self.endings.get(trace_id)
        if token == b"before" and before and before.cause != answer[1].decode():
            self.complain(f"it ended {before.cause}, then {answer[1].decode()}", trace_id)
        if token != b"ended":
            return
        self.turns.over.add(trace_id)
        cause = told["cause"] if name == "end_trace" else answer[1].decode()
        if before:
            self.complain(f"it ended {before.cause}, and again {cause}", trace_id)
        records = await self.link.command("XLEN", self.keys.log(trace_id))
        outputs = await self.link.command("LLEN", self.keys.outputs(trace_id))
        self.endings[trace_id] = Ending(cause, records, outputs)
        live = await self.link.command("HGET", self.keys.trace(trace_id), "live")
        if name == "end_quiet" and live != b"0":
            self.complain(f"it ended by itself with {live!r} envelopes under way", trace_id)

    def _attempted(self, told: Mapping[str, Any], answer: list[Any]) -> None:
        if answer[0] != b"begun":
            return
        last = self.attempts.get(told["envelope"])
        begun = int(answer[1])
        if last and last[0] == told["token"] and last[1] != begun:
            self.complain(f"one attempt was counted as number {last[1]} and {begun}")
        self.attempts[told["envelope"]] = (told["token"], begun)

    def _replayed(self, told: Mapping[str, Any], answer: list[Any]) -> None:
        token, trace_id, letter = answer[0], answer[1].decode(), told["letter"]
        self.counted[f"replay {token.decode()}"] += 1
        if token == b"replayed":
            if letter in self.replayed:
                self.complain("a dead letter was replayed twice", trace_id)
            self.replayed[letter] = trace_id
            head = decode_head(told["head"])
            self.replayed_heads[head.id] += 1
            self.turns.replayed |= {head.id, told["fresh_id"]}
            self.replayed_turns.add(str(head.context.get("turn_id")))
            if trace_id == told["fresh_id"]:
                self.opened.add(trace_id)
                self.turns.place(trace_id, told["session"])
        elif self.replayed.get(letter, trace_id) != trace_id:
            self.complain("a replay has two answers", trace_id)


def _told(call: Call) -> dict[str, Any]:
    return dict(zip(call.script.arguments, call.arguments, strict=False))
