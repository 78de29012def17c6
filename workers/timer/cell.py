"""The cell type `timer`: a message at each tick of its schedules, which calls may change."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field

from colony.cell import Cell
from colony.envelope import Emission, Envelope
from colony.host import Host, Source
from colony.topology.model import ToolDeclaration
from workers.timer.firing import Firing
from workers.timer.operations import Decision, Operation, decide
from workers.timer.schedule import Schedule, ScheduleId
from workers.tool_call import Answer, answer

JOURNAL = "operation"
SCOPE = "cell"


def now_ms() -> int:
    """Milliseconds since the epoch, on this host."""
    return time.time_ns() // 1_000_000


class Timer(Cell):
    """Fire the `schedules` of the tree and those that calls add; a tick fires once, however many
    processes host the timer."""

    class Params(Cell.Params):
        """The schedules of the tree by id; how old a missed tick may be and still fire; how often
        it is looked whether calls changed something."""

        schedules: dict[ScheduleId, Schedule] = Field(default_factory=dict)
        catch_up_ms: Annotated[int, Field(ge=0)] = 300_000
        poll_ms: Annotated[int, Field(ge=10)] = 1_000
        external_timeout_ms: Annotated[int, Field(ge=1)] = 10_000

    default_tool = ToolDeclaration(
        name="timer",
        description="Have a message sent later, once or again and again; list, change or stop it.",
        parameters=Operation.schema_of_tool(),
    )
    params: Params

    def __init__(self, params: Params, *, clock: Callable[[], int] = now_ms) -> None:
        super().__init__(params)
        self._clock = clock

    async def run(self, source: Source) -> None:
        """Fire until cancelled."""
        firing = Firing(self.params.schedules, catch_up_ms=self.params.catch_up_ms)
        while True:
            next_ms = await firing.fire(source)
            poll_ms = self.params.poll_ms
            await asyncio.sleep(min(poll_ms, poll_ms if next_ms is None else next_ms) / 1000)

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """Answer one operation."""

        async def do(wanted: Operation) -> Answer:
            return Answer((await self._do(wanted, envelope, host)).text)

        answers = await answer(
            envelope,
            do,
            host=host,
            operation="timer",
            arguments=Operation,
            timeout_ms=self.params.external_timeout_ms,
        )
        return [_marked(emission) for emission in answers]

    async def _do(self, wanted: Operation, envelope: Envelope, host: Host) -> Decision:
        """Decide once, however often the envelope is handled, and do what was decided."""
        leaves = await host.state(SCOPE)
        recorded = await host.recall(JOURNAL)
        if recorded is None:
            schedules = self.params.schedules
            made = decide(wanted, schedules, leaves, key=envelope.id, now=self._clock())
            recorded = await host.record(JOURNAL, made.model_dump_json().encode())
        decision = Decision.model_validate_json(recorded)
        # A repeat must not undo what another call has changed since.
        if (decision.put or decision.remove) and decision.stands(leaves):
            await host.update_state(SCOPE, decision.put, decision.remove)
        return decision


def _marked(emission: Emission) -> Emission:
    kind = "timer_op_error" if "error_code" in emission.hop else "timer_op_ack"
    return emission.model_copy(update={"hop": {**emission.hop, "msg_type": kind}})
