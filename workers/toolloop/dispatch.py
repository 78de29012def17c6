"""Dispatch: how the calls of one answer go out, and what the round then waits for.

What was said leaves first and whole. Each call that can be run leaves under the name of its tool;
the others are answered at once, so that no id of the round stays without a result.
"""

from pydantic import JsonValue

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope, digest
from workers.toolloop.calls import ToolCall, read_calls, spoken
from workers.toolloop.params import HandlerParams, Positive
from workers.toolloop.turns import iteration, question_id


class Params(HandlerParams):
    """How many calls of one answer are run."""

    max_calls: Positive = 16


def dispatch(envelope: Envelope, own: Params) -> list[Emission] | None:
    """The answer for the collector, and one emission for each call; nothing without a call."""

    def name_call(position: int) -> str:
        return f"call_{digest([question_id(envelope), iteration(envelope), position])}"

    calls = read_calls(envelope.body.each("tool_call"), name_call=name_call, limit=own.max_calls)
    if not calls:
        return None
    said = Emission.of(*spoken(envelope.body.entries, calls), route="c_asst")
    run = [_handed_over(call) for call in calls if call.problem is None]
    return [said, *run, *_refused([call for call in calls if call.problem])]


def _handed_over(call: ToolCall) -> Emission:
    return Emission.of(call.handed_over(), route="tool", tool_name=call.name, tool_call_id=call.id)


def _refused(calls: list[ToolCall]) -> list[Emission]:
    """One emission with the result of every call that is not run."""
    problems = [(call, call.problem) for call in calls if call.problem]
    if not problems:
        return []
    results = [
        Entry.result(call.id, f"{problem.code}: {problem.detail}", is_error=True)
        for call, problem in problems
    ]
    hop: dict[str, JsonValue] = {"route": "c_res", "error_code": problems[0][1].code}
    return [Emission(hop=hop, body=Body.of(*results))]
