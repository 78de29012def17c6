"""The stepped harness: nothing moves by itself, and any order can be played."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from colony.errors import CellError
from colony.testing.harness import Harness, at_random, first_come
from colony.topology.model import (
    QUIET,
    CellSettings,
    CellSpec,
    EdgeSpec,
    TopologySpec,
)


def tree(*edges: tuple[str, str], **params: Any) -> TopologySpec:
    paths = sorted({path for edge in edges for path in edge} - {QUIET})
    return TopologySpec(
        cells=tuple(CellSpec(path=p, cell=CellSettings(type="sink"), params=params) for p in paths),
        edges=tuple(EdgeSpec(source=source, target=target) for source, target in edges),
    )


@pytest.fixture
async def harness(redis_url: str) -> AsyncIterator[Harness]:
    async with Harness(redis_url, tree(("/x", "/a"), ("/x", "/b"))) as harness:
        yield harness


async def test_nothing_moves_until_it_is_stepped(harness: Harness) -> None:
    trace_id = await harness.ask("/a", "hello")

    for _ in range(2):
        (birth,) = await harness.pending()
        assert harness.owner(birth) == "/colony"
    assert (await harness.trace(trace_id)).live == 1

    assert (await harness.step(birth)).token == "committed"
    (delivery,) = await harness.pending()
    assert harness.owner(delivery) == "/a"
    assert harness.steps == 1


async def test_a_target_is_resolved_as_at_an_interface(harness: Harness) -> None:
    trace_id = await harness.ask("x/./", "hello")

    assert (await harness.trace(trace_id)).entry == "/x"


async def test_pending_comes_in_the_order_it_was_published(harness: Harness) -> None:
    ids = [await harness.ask(path, "x") for path in ("/b", "/a", "/b")]

    assert [d.head.id for d in await harness.pending()] == ids


async def test_a_run_ends_when_nothing_is_pending_and_leaves_quiet_traces_alone(
    harness: Harness,
) -> None:
    trace_id = await harness.ask("/a", "x")

    assert await harness.run() == 2
    assert (await harness.trace(trace_id)).state == "quiet"

    assert await harness.attend() == [trace_id]
    assert (await harness.trace(trace_id)).state == "ended"
    assert await harness.attend() == []


async def test_finish_runs_and_attends_until_nothing_moves(redis_url: str) -> None:
    async with Harness(redis_url, tree((QUIET, "/a"))) as harness:
        trace_id = await harness.ask("/a", "x")

        taken = await harness.finish()

        trace = await harness.trace(trace_id)
        assert (trace.state, trace.revivals, trace.outputs) == ("ended", 3, 4)
        assert taken == 2 + 2 * 3


async def test_a_schedule_is_the_same_for_the_same_seed(redis_url: str) -> None:
    async def order(seed: int | None) -> list[str]:
        seen: list[str] = []
        choose = first_come if seed is None else at_random(seed)
        async with Harness(redis_url, tree(("/x", "/a")), name=f"seed-{len(orders)}") as harness:
            names = {await harness.ask("/a", str(n)): str(n) for n in range(6)}
            while pending := await harness.pending():
                chosen = choose(pending)
                seen.append(names[chosen.head.trace_id])
                await harness.step(chosen)
        return seen

    orders: list[list[str]] = []
    for seed in (1, 1, 2, None):
        orders.append(await order(seed))

    assert orders[0] == orders[1] != orders[2]
    assert orders[3] == [*"012345", *"012345"]


async def test_a_decision_that_is_not_committed_leaves_the_delivery(harness: Harness) -> None:
    await harness.ask("/a", "x")
    (birth,) = await harness.pending()

    lost = await harness.decide(birth)
    assert [d.entry for d in await harness.pending()] == [birth.entry]

    again = await harness.decide(birth)
    outcomes = await harness.commit(again, lost)
    assert [outcome.token for outcome in outcomes] == ["committed", "stale"]
    assert len(await harness.pending()) == 1


async def test_what_is_dropped_is_settled_without_a_trace(harness: Harness) -> None:
    trace_id = await harness.ask("/a", "x")
    (birth,) = await harness.pending()

    assert (await harness.drop(birth)).live == 0

    assert await harness.hops(trace_id) == []
    assert await harness.pending() == ()


async def test_broken_bytes_are_buried(harness: Harness) -> None:
    await harness.link.command("XADD", harness.keys.router(), "*", "head", b"\xc1", "body", b"b")

    assert await harness.pending() == ()
    assert [letter.code for letter in await harness.letters()] == ["envelope_invalid"]


async def test_a_tree_that_cannot_start_is_refused(redis_url: str) -> None:
    with pytest.raises(CellError, match="/a"):
        async with Harness(redis_url, tree(("/x", "/a"), nonsense=1)):
            pass


async def test_a_run_that_does_not_end_is_an_error(harness: Harness) -> None:
    await harness.ask("/a", "x")

    with pytest.raises(AssertionError, match="still moving"):
        await harness.run(limit=1)


async def test_hops_and_outputs_tell_what_happened(harness: Harness) -> None:
    trace_id = await harness.ask("/a", "hello", context={"k": 1}, hop={"h": 2}, ttl=5)

    await harness.finish()

    (hop,) = await harness.hops(trace_id)
    assert (hop.head.target, hop.head.ttl, hop.head.context) == ("/a", 4, {"k": 1})
    (output,) = await harness.outputs(trace_id)
    assert (output["path"], output["hop"]) == ("/a", {"h": 2})
