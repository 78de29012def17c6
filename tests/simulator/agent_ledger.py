"""The ledger of agents: after each script, what it answered and what it wrote agree."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from colony.agent.events import Event
from colony.codec import decode_head
from colony.lua.registry import Call
from colony.runs.reading import texts
from tests.simulator.agent_book import RunLog, SessionBook
from tests.simulator.agent_standing import Standing, standing
from tests.simulator.agent_tree import SESSIONS
from tests.simulator.ledger import Ending, Ledger

# Scripts that change a run or its session.
WRITERS = frozenset(
    ("begin_run", "commit", "file_asks", "finish_run", "resolve_ask", "end_run", "steer_run")
)


@dataclass
class AgentLedger(Ledger):
    """What the server answered of runs, beside what it answered of traces."""

    books: dict[str, SessionBook] = field(default_factory=dict)
    steered: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What was said to runs and accepted: to which session and run."""
    released: Counter[str] = field(default_factory=Counter)
    frozen: dict[str, dict[str, str]] = field(default_factory=dict)
    """The records of runs that have ended."""
    _releases: set[tuple[str, bytes]] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._open_books()

    @property
    def runs(self) -> dict[str, RunLog]:
        """Every run that began."""
        return {id: run for book in self.books.values() for id, run in book.runs.items()}

    def forget(self) -> None:
        """The server may have lost some of what it answered."""
        super().forget()
        for noted in (self.steered, self.released, self.frozen):
            noted.clear()
        self._releases.clear()
        self._open_books()

    async def witness(self, call: Call, answer: Any) -> None:
        """Note what a script answered, and hold it against what it left."""
        await super().witness(call, answer)
        told = dict(zip(call.script.arguments, call.arguments, strict=False))
        match call.script.name:
            case "begin_run":
                self._begun(told, answer[0].decode())
            case "finish_run":
                self._finished(told, answer[0].decode())
            case "steer_run" if answer[0] == b"accepted":
                self._steered(call, told, answer[1].decode())
        if call.script.name in WRITERS:
            for session in SESSIONS:
                await self.follow(session)
        if call.script.name == "resolve_ask":
            await self._resolved(call, told, answer)
        if call.script.name in ("finish_run", "end_run") and answer[0] == b"ended":
            await self._ended_run(told)

    async def follow(self, session: str) -> None:
        """Read what is new in the log of a session, and look how the session stands."""
        book = self.books[session]
        log = self.keys.session_events(session)
        for entry, fields in await self.link.command("XRANGE", log, book.last, "+"):
            book.read(Event.logged(entry, fields))
        found = await standing(self.link, self.keys, book)
        for what in found.problems(book):
            newest = book.newest.id if book.newest else None
            self.complain(f"session {session[:8]}: {what}", newest)
        self._judge_steers(book, found)

    async def record(self, run_id: str) -> dict[str, str]:
        """The record of a run as it is now. A server tells the fields in any order."""
        return texts(await self.link.command("HGETALL", self.keys.run(run_id)))

    def _open_books(self) -> None:
        self.books = {session: SessionBook(session, self.complain) for session in SESSIONS}

    def _begun(self, told: Mapping[str, Any], token: str) -> None:
        run_id, book = told["trace_id"], self.books.get(told["session_id"])
        if book is None:
            return
        newest = book.newest
        owed = newest is not None and newest.owes
        to_repeat = newest is not None and newest.is_to_repeat
        may = not book.live and (to_repeat if told["kind"] == "retry" else not owed)
        if token == "born" and not may:
            self.complain(f"a {told['kind']} began where it may not", run_id)
        if token in ("busy", "awaiting") and not book.live:
            self.complain(f"it was refused as {token}, and nothing is under way", run_id)
        if token in ("retry_pending", "ineligible") and (book.live or may):
            self.complain(f"it was refused as {token}, and it may begin", run_id)
        if token == "repeated" and run_id not in book.runs:
            self.complain("it is repeated, and never began", run_id)

    def _finished(self, told: Mapping[str, Any], token: str) -> None:
        if token == "steered" and told["state"] == "failed":
            self.complain("it failed, and goes on", told["trace_id"])

    def _steered(self, call: Call, told: Mapping[str, Any], run_id: str) -> None:
        book = next(b for b in self.books.values() if self._is_of(b, call))
        text, live = str(told["text"]), book.live.id if book.live else None
        if not self.cut and text not in self.steered and live != run_id:
            self.complain("it was steered, and is not under way", run_id)
        _, first = self.steered.setdefault(text, (book.session, run_id))
        if first != run_id:
            self.complain(f"{text} was first said to {first}", run_id)

    def _is_of(self, book: SessionBook, call: Call) -> bool:
        return self.keys.agent_session(book.session) in call.keys

    def _judge_steers(self, book: SessionBook, found: Standing) -> None:
        for text, (session, run_id) in self.steered.items():
            if session != book.session:
                continue
            run = book.runs[run_id]
            count = run.steers[text] + run.dropped[text] + found.steers.count(text)
            if count != 1:
                self.complain(f"{text} is known {count} times", run_id)

    async def _resolved(self, call: Call, told: Mapping[str, Any], answer: Any) -> None:
        """What the last answer releases, and nothing before it, is on the way."""
        if answer[0] == b"repeated" and told["token"] == "":
            self.complain("an answer of nobody was taken for another's", told["run_id"])
        stream = str(call.keys[6])
        newest = await self.link.command("XREVRANGE", stream, "+", "-", "COUNT", 1)
        book = self.books.get(told["session_id"])
        if book is None:
            return
        found = await standing(self.link, self.keys, book)
        groups = {ask: group for ask, (group, _) in found.asks.items()}
        group = groups.get(told["ask_id"])
        for entry, fields in newest:
            head = decode_head(fields[1])
            if head.id not in groups.values() or (stream, entry) in self._releases:
                continue
            self._releases.add((stream, entry))
            self.released[head.id] += 1
            if self.released[head.id] > 1:
                self.complain("what waited was released twice", head.trace_id)
            if head.id == group and found.undecided(head.id):
                self.complain("what waits was released before all is answered", head.trace_id)
        if answer[0] == b"resolved" and group and not found.undecided(group):
            if not self.released[group]:
                self.complain("all is answered, and what waited is not released", told["run_id"])

    async def _ended_run(self, told: Mapping[str, Any]) -> None:
        run_id = told.get("run_id") or told["trace_id"]
        cause = told.get("cause") or told["state"]
        before = self.endings.get(run_id)
        if before:
            self.complain(f"it ended {before.cause}, and again {cause}", run_id)
        records = await self.link.command("XLEN", self.keys.log(run_id))
        self.endings[run_id] = Ending(cause, records, 0)
        self.frozen[run_id] = await self.record(run_id)
        live = await self.link.command("HGET", self.keys.trace(run_id), "live")
        if told.get("only") == "quiet" and live != b"0":
            self.complain(f"it ended by itself with {live!r} envelopes under way", run_id)
