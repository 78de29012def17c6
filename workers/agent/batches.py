"""Batches: the calls of one answer as the run keeps them, in the groups in which they are made.

Calls that only read stand together as long as nothing else comes between them; any other call is
alone. One group after the other is made, never two at once.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from pydantic import JsonValue

from colony.agent.in_hand import RunInHand
from colony.body import Entry, Frozen
from colony.envelope import Emission
from colony.topology.model import ToolDeclaration
from workers.toolloop.calls import ToolCall

# The field of a run that has all calls of its turn.
CALLS = "calls"


class BatchedCall(Frozen):
    """One call of a turn. `batch` is the number of its group in the run, from 0.

    One with a `problem` is not made; `note` is added to its result.
    """

    id: str
    name: str
    arguments: str
    batch: int
    problem: str = ""
    note: str = ""

    def entry(self) -> Entry:
        """The call as the model made it."""
        function = {"name": self.name, "arguments": self.arguments}
        text = json.dumps(function, ensure_ascii=False)
        return Entry(origin="assistant", type="tool_call", id=self.id, text=text)


def in_batches(
    calls: Sequence[ToolCall], tools: Mapping[str, ToolDeclaration], *, first: int
) -> list[BatchedCall]:
    """The calls of an answer in their groups, the first of which has this number."""
    found: list[BatchedCall] = []
    number, together = first - 1, False
    for call in calls:
        tool = tools.get(call.name)
        reads = tool is not None and tool.read_only
        if not (reads and together):
            number += 1
        together = reads
        problem = f"{call.problem.code}: {call.problem.detail}" if call.problem else ""
        found.append(
            BatchedCall(
                id=call.id, name=call.name, arguments=call.arguments, batch=number, problem=problem
            )
        )
    return found


def calls_of(run: RunInHand) -> list[BatchedCall]:
    """All calls of the turn that the run is in."""
    kept = json.loads(run.record.fields.get(CALLS) or "[]")
    return [BatchedCall.model_validate(call) for call in kept]


def kept(calls: Iterable[BatchedCall]) -> str:
    """Calls as the run keeps them."""
    found: list[JsonValue] = [call.model_dump(exclude_defaults=True) for call in calls]
    return json.dumps(found, ensure_ascii=False)


def batch(calls: Sequence[BatchedCall], number: int) -> Emission:
    """One group on its way to be let out."""
    entries = [call.entry() for call in calls if call.batch == number]
    return Emission.of(*entries, route="batch", batch=number)


def question_of(run_id: str, number: int) -> str:
    """What names a group among the rows of the store."""
    return f"{run_id}:{number}"
