"""Threads: what the models of a question were sent, and what the record of it holds.

Both are read as they are: a request byte for byte, a row with its texts unchanged.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from colony.access.answers import Answers
from colony.access.thread_tables import RecordedRow, ThreadTable, thread_tables
from colony.envelope import turn_of
from colony.errors import RequestNotFound, ThreadNotFound, TraceNotFound
from colony.keys import Keys
from colony.link import Link
from colony.requests import Requests, SentRequest
from colony.schema import TRACE
from colony.sessions import Sessions
from colony.store.selection import StoredRow
from colony.traces import Trace, Traces

COLUMNS: Final = frozenset(("turn_id", "iter", "role", "turn"))

WAITING: Final = "it waits for {turn}, an older trace of its session, to end"
NOTHING_KEPT: Final = (
    "none is kept: its cell does not record, did not ask, or the retention of the trace is over"
)


@dataclass(frozen=True, slots=True)
class QuestionThread:
    """What is kept of a question: the requests in the order in which they were first sent, the rows
    in the order in which they were added, and the rows that hold its answer.

    `traces` are those that dealt with it. `waits_for` is the one whose turn it waits for.
    """

    question: str
    requests: Sequence[SentRequest]
    rows: Sequence[RecordedRow]
    answers: Sequence[RecordedRow] = ()
    traces: Sequence[str] = ()
    waits_for: str | None = None

    def chosen(self, iteration: int | None = None, cell: str | None = None) -> SentRequest:
        """The newest request of a cell in an iteration.

        By default the cell is the one that asked first, and the iteration its newest. Raises
        RequestNotFound where there is none.
        """
        if not self.requests:
            waits = self.waits_for is not None
            detail = WAITING.format(turn=self.waits_for) if waits else NOTHING_KEPT
            raise RequestNotFound(question=self.question, detail=detail)
        asking = cell or self.requests[0].cell
        of_cell = [request for request in self.requests if request.cell == asking]
        found = [request for request in of_cell if iteration in (None, request.iteration)]
        if not found:
            raise RequestNotFound(question=self.question, detail=self._instead(asking, iteration))
        return max(found, key=lambda request: (request.iteration, request.at, request.number))

    def beside(self, chosen: SentRequest) -> list[SentRequest]:
        """The other requests of the same iteration: of other cells, and what a retry changed."""
        return [
            request
            for request in self.requests
            if request.iteration == chosen.iteration and request is not chosen
        ]

    def iterations(self) -> dict[str, list[int]]:
        """The iterations of which a request is kept, by cell, the one that asked first before."""
        found: dict[str, set[int]] = {}
        for request in self.requests:
            found.setdefault(request.cell, set()).add(request.iteration)
        return {cell: sorted(numbers) for cell, numbers in found.items()}

    def _instead(self, cell: str, iteration: int | None) -> str:
        said = "; ".join(
            f"{path} in {', '.join(map(str, numbers))}"
            for path, numbers in self.iterations().items()
        )
        asked = cell if iteration is None else f"{cell} in iteration {iteration}"
        return f"{asked} sent nothing that is kept, but {said} did"


class Threads:
    """The threads of one partition."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._traces = Traces(link, keys)
        self._requests = Requests(link, keys)
        self._sessions = Sessions(link, keys)
        self._answers = Answers(link, keys)

    async def find(self, question: str, stores: Iterable[str]) -> QuestionThread:
        """What is kept of a question, which is named by its turn_id or its trace.

        Raises ThreadNotFound where neither a trace nor a row of that name is kept.
        """
        stores = [*stores]
        tables = await thread_tables(self._link, self._keys, stores, columns=COLUMNS)
        rows = await self._rows(tables, question)
        traces = {text.decode() for _, row in rows if (text := row.texts[TRACE]) is not None}
        sent = await self._requests.of_trace(question)
        for trace_id in sorted(traces - {question}):
            of_trace = await self._requests.of_trace(trace_id)
            sent += [request for request in of_trace if request.turn_id == question]
        turns = await self._turns_of(question)
        for turn_id in sorted(turns - {question}):
            rows += await self._rows(tables, turn_id)
        answers = await self._answers.rows({question, *turns}, stores)
        trace = await self._trace(question)
        if not sent and not rows and not answers and trace is None:
            raise ThreadNotFound(what="nothing", question=question)
        sent.sort(key=lambda request: (request.at, request.number))
        return QuestionThread(
            question,
            sent,
            [table.recorded(row) for table, row in rows],
            answers=answers,
            traces=sorted(traces | {request.trace_id for request in sent} | _id_of(trace)),
            waits_for=None
            if trace is None
            else await self._sessions.waits_for(trace.id, trace.session),
        )

    async def outputs(self, found: QuestionThread) -> list[dict[str, JsonValue]]:
        """The outputs of the traces that dealt with a question."""
        return await self._answers.outputs(found.traces)

    async def body(self, request: SentRequest) -> bytes:
        """What was sent, byte for byte; raises RequestNotFound where it went since."""
        return await self._requests.body(request)

    async def _rows(
        self, tables: Sequence[ThreadTable], turn_id: str
    ) -> list[tuple[ThreadTable, StoredRow]]:
        where: dict[str, JsonValue] = {"turn_id": turn_id}
        found = await asyncio.gather(*(table.rows(where, (TRACE,)) for table in tables))
        return [(t, row) for t, rows in zip(tables, found, strict=True) for row in rows]

    async def _turns_of(self, trace_id: str) -> set[str]:
        """The questions that a trace deals with, as its log tells them."""
        named = (turn_of(record.head.context) for record in await self._traces.log(trace_id))
        return {turn_id for turn_id in named if turn_id is not None}

    async def _trace(self, trace_id: str) -> Trace | None:
        try:
            return await self._traces.get(trace_id)
        except TraceNotFound:
            return None


def _id_of(trace: Trace | None) -> set[str]:
    return set() if trace is None else {trace.id}
