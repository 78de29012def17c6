"""The fixture of the store-backed tool loop, and what it costs (meclaw, the 76-hop measurement)."""

from collections.abc import Callable, Sequence

import pytest

from colony.streams import Delivery
from colony.testing.harness import at_random

BUDGET = 160


def rounds(count, calls=1):
    return [{"tool_calls": [{"name": "tool-a"}] * calls}] * count + [{"text": "done"}]


async def spent(colony, trace):
    """Hops on the chain that came out at the sink."""
    hops = await colony.harness.hops(trace)
    (ttl,) = [hop.head.ttl for hop in hops if hop.head.target == "/sink"]
    return BUDGET - ttl


class Races:
    """A schedule that lets the assistant's chain or the tool's win each round."""

    def __init__(self, assistant_wins: Callable[[int], bool]) -> None:
        self._assistant_wins = assistant_wins
        self._chains: dict[str, str] = {}

    def __call__(self, pending: Sequence[Delivery]) -> Delivery:
        return min(pending, key=self._rank)

    def _rank(self, delivery: Delivery) -> int:
        head = delivery.head
        started = {"c_asst": "assistant", "tool": "tool"}.get(str(head.hop.get("route")))
        chain = started or self._chains.get(str(head.parent_message_id), "")
        self._chains[head.id] = chain
        if not self._assistant_wins(int(str(head.context.get("iter", 0)))):
            return int(chain == "tool")
        # The tool's row is stored first; what follows from it has to wait for the assistant.
        stored = chain == "tool" and "operation" in head.hop
        return 2 if stored else int(chain == "assistant")


@pytest.mark.parametrize(
    ("assistant_wins", "hops"),
    [(lambda n: True, 75), (lambda n: n != 5, 76), (lambda n: False, 81)],
    ids=["assistant", "tool wins once", "tool"],
)
async def test_six_rounds_cost_what_the_winners_of_their_races_say(start, assistant_wins, hops):
    colony = await start("tool-loop", script=rounds(6), model="/llm")

    trace = await colony.harness.ask("/capture", "six times", ttl=BUDGET)
    await colony.harness.run(Races(assistant_wins))

    assert await spent(colony, trace) == hops
    await colony.harness.finish()
    await colony.assert_clean(trace)


@pytest.mark.parametrize("seed", range(6))
async def test_rounds_cost_twelve_or_thirteen_hops_in_any_order(start, seed):
    count = 1 + seed % 3
    colony = await start("tool-loop", script=rounds(count, calls=1 + seed % 4), model="/llm")

    trace = await colony.harness.ask("/capture", "go", ttl=BUDGET)
    answer = await colony.answer(trace, at_random(seed))

    assert answer == "done"
    assert await colony.fires(trace) == count
    assert 3 + 12 * count <= await spent(colony, trace) <= 3 + 13 * count
    await colony.assert_clean(trace)


async def test_six_rounds_die_on_the_default_budget_and_their_trace_ends(start):
    colony = await start("tool-loop", script=rounds(6), model="/llm")

    trace = await colony.harness.ask("/capture", "six times")
    await colony.harness.finish()

    record = await colony.harness.trace(trace)
    assert (record.state, record.cause, record.error_code) == ("ended", "failed", "ttl_expired")


@pytest.mark.parametrize(("tool_wins", "survives"), [(1, True), (2, False)])
async def test_five_rounds_live_on_the_default_budget_or_die_by_order(start, tool_wins, survives):
    colony = await start("tool-loop", script=rounds(5), model="/llm")

    trace = await colony.harness.ask("/capture", "five times")
    await colony.harness.finish(Races(lambda number: number >= tool_wins))

    assert bool(await colony.harness.outputs(trace)) is survives


@pytest.mark.parametrize("wins", [True, False])
async def test_with_restore_the_answer_arrives_with_62_left(start, wins):
    colony = await start("tool-loop", script=rounds(6), model="/llm", restore=True)

    trace = await colony.harness.ask("/capture", "six times")
    await colony.harness.finish(Races(lambda _: wins))

    hops = await colony.harness.hops(trace)
    assert [hop.head.ttl for hop in hops if hop.head.target == "/sink"] == [62]


async def test_round_of_eight_tools_costs_the_firing_chain_no_more(start):
    colony = await start("tool-loop", script=rounds(2, calls=8), model="/llm")

    trace = await colony.harness.ask("/capture", "eight at once", ttl=BUDGET)
    await colony.harness.run(Races(lambda _: True))

    assert await spent(colony, trace) == 3 + 12 * 2
