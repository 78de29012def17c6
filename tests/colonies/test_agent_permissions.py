"""Permissions, hooks and the guardrail in an agent as a whole, one step at a time."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from colony.agent.asks import Decision
from colony.body import Body, Entry
from colony.codec import encode_body, encode_head
from colony.envelope import derived_id
from colony.errors import AskNotPending, SessionAwaiting, StaleRunControl
from colony.keeping.audit import Audit
from colony.runs.asks import PendingAsk, RunAsks
from colony.streams import Delivery
from colony.testing.harness import Harness, at_random
from colony.topology.load import load
from colony.traces import Traces
from tests.colonies.agent_colony import AGENT, AgentColony, agent_tree, rounds, says

Start = Callable[..., Awaitable[AgentColony]]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def start(redis_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts an agent with these values for its template, and more cells and edges around it."""
    async with AsyncExitStack() as stack:

        async def start(
            *,
            cells: Mapping[str, Any] | None = None,
            edges: Mapping[str, str] | None = None,
            **handed: Any,
        ) -> AgentColony:
            spec = agent_tree(tmp_path, permissions=handed.pop("permissions", {}), **handed)
            if cells:
                spec = load(_extended(tmp_path, cells, edges or {}), environment={}).publishable()
            harness = Harness(redis_url, spec, root=ROOT)
            await stack.enter_async_context(harness)
            return AgentColony(harness)

        yield start


def _extended(root: Path, cells: Mapping[str, Any], edges: Mapping[str, str]) -> Path:
    """The tree with more cells, and with other ends for the edges out of these."""
    for name, params in cells.items():
        (root / "main" / name).mkdir()
        cell = {"cell": {"type": "code"}, "params": params}
        (root / "main" / name / "config.json").write_text(json.dumps(cell))
    path = root / "main" / "config.json"
    config = json.loads(path.read_text())
    graph = config["params"]["graph"]
    graph["edges"] = [edge for edge in graph["edges"] if edge["from"] not in edges]
    graph["edges"] += [{"from": start, "to": end} for start, end in edges.items()]
    path.write_text(json.dumps(config))
    return root


def calling(*calls: tuple[str, Mapping[str, Any]], number: int = 0) -> dict[str, Any]:
    """An answer of a script that makes these calls."""
    made = [
        {"id": f"c{number}-{n}", "name": name, "arguments": dict(arguments)}
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"tool_calls": made}


def asks_of(colony: AgentColony) -> RunAsks:
    return RunAsks(colony.harness.link, colony.harness.keys)


async def pending(colony: AgentColony) -> list[PendingAsk]:
    return await asks_of(colony).pending_of(await colony.session())


async def decide(
    colony: AgentColony, asked: PendingAsk, verdict: Any = "allow_once", **of: Any
) -> None:
    """Answer an ask, and let the run go on as far as it does."""
    rule = asked.ask.rule if verdict == "allow_always" else ""
    decision = Decision(verdict=verdict, learned=bool(rule), **of)
    await asks_of(colony).decide(asked, decision, token=asked.ask.id, rule=rule)
    await colony.harness.finish()


async def results(colony: AgentColony, run: str) -> list[tuple[str, str, bool]]:
    """Id, text and whether it is an error of every result in the log."""
    payloads = [e.payload for e in await colony.events(run) if e.kind == "tool.result"]
    return [(p["call_id"], p["content"], p["is_error"]) for p in payloads]  # type: ignore[misc]


async def handled(colony: AgentColony, run: str, cell: str) -> int:
    """How often a cell was handed something of a run."""
    return sum(hop.head.target == cell for hop in await colony.harness.hops(run))


SAME = [calling(("change", {"path": "x"}), number=n) for n in range(2)]


async def test_call_that_is_allowed_once_runs_once_and_asks_again(start: Start) -> None:
    colony = await start(script=[*SAME, says("Done.")])
    run = await colony.run()
    (first,) = await pending(colony)

    await decide(colony, first)

    assert await handled(colony, run, "/change") == 1
    (second,) = await pending(colony)
    assert second.ask.id != first.ask.id
    with pytest.raises(AskNotPending):
        await asks_of(colony).decide(first, Decision(verdict="allow_once"), token="another")
    assert await pending(colony) == [second]
    await decide(colony, second)
    assert (await colony.result(run))["stop"] == "end_turn"
    assert await handled(colony, run, "/change") == 2


async def test_call_that_is_always_allowed_is_not_asked_about_again_in_its_session(
    start: Start,
) -> None:
    other = calling(("change", {"path": "y"}), number=2)
    colony = await start(script=[*SAME, other, says("Done.")])
    run = await colony.run()
    (first,) = await pending(colony)

    await decide(colony, first, "allow_always")

    assert (await colony.session()).learned == ("change(x)",)
    assert await handled(colony, run, "/change") == 2
    (asked,) = await pending(colony)
    assert asked.ask.args == {"path": "y"}
    await decide(colony, asked, "deny")
    before, colony.session_id = colony.session_id, ""
    await colony.run()
    assert [ask.ask.args for ask in await pending(colony)] == [{"path": "x"}]
    colony.session_id = before
    again = await colony.run()
    assert await handled(colony, again, "/change") == 2


async def test_nothing_is_learned_where_nothing_tells_the_calls_apart(start: Start) -> None:
    colony = await start(script=rounds([["change"], ["change"]]))
    await colony.run()
    (first,) = await pending(colony)

    await decide(colony, first, "allow_always")

    assert (await colony.session()).learned == ()
    assert len(await pending(colony)) == 1


async def test_configured_ask_stands_above_what_was_learned(start: Start) -> None:
    colony = await start(script=[*SAME, says("Done.")], permissions={"ask": ["change(x)"]})
    await colony.run()
    (first,) = await pending(colony)

    await decide(colony, first, "allow_always")

    assert len(await pending(colony)) == 1


async def test_denied_call_never_runs_and_counts_as_a_failure(start: Start) -> None:
    colony = await start(script=[SAME[0], says("Then not.")])
    run = await colony.run()

    await decide(colony, (await pending(colony))[0], "deny", reason="too risky")

    ((_, content, is_error),) = await results(colony, run)
    assert (content, is_error) == ("permission denied: denied by user: too risky", True)
    assert (await colony.result(run))["text"] == "Then not."
    assert (await colony.record(run)).failures == 1
    assert await handled(colony, run, "/change") == 0


async def test_denied_by_a_rule_asks_nobody(start: Start) -> None:
    colony = await start(script=[SAME[0], says("Done.")], permissions={"deny": ["change"]})

    run = await colony.run()

    ((_, content, _),) = await results(colony, run)
    assert content == "permission denied: deny by change (settings)"
    assert "permission.ask" not in await colony.kinds(run)


async def test_edited_call_runs_as_edited(start: Start) -> None:
    colony = await start(script=[calling(("change", {"path": "x"})), says("Done.")])
    run = await colony.run()

    await decide(colony, (await pending(colony))[0], args={"path": "y"})

    hops = await colony.harness.hops(run)
    (out,) = [hop for hop in hops if hop.head.target == "/change"]
    (approval,) = [e.payload for e in await colony.events(run) if e.kind == "approval"]
    assert out.head.hop["args_hash"] == approval["args_hash"]


@pytest.mark.parametrize("seed", range(3))
async def test_batch_waits_until_all_of_it_is_decided(start: Start, seed: int) -> None:
    paths = ("a", "secret", "b")
    script = [calling(*(("look", {"path": path}) for path in paths)), says("Done.")]
    colony = await start(script=script, permissions={"ask": ["look(secret)"]})
    run = await colony.begin()
    await colony.harness.finish(at_random(seed))

    assert await handled(colony, run, "/look") == 0
    await decide(colony, (await pending(colony))[0], "deny")

    assert [(c, e) for c, _, e in await results(colony, run)] == [
        ("c0-0", False), ("c0-1", True), ("c0-2", False)
    ]  # fmt: skip
    assert await handled(colony, run, "/look") == 2


async def test_asks_of_a_batch_are_answered_in_any_order(start: Start) -> None:
    script = [calling(*(("look", {"path": path}) for path in "abc")), says("Done.")]
    colony = await start(script=script, permissions={"ask": ["look"]})
    run = await colony.run()
    a, b, c = sorted(await pending(colony), key=lambda asked: asked.ask.call_id)
    assert (await colony.session()).pending == 3

    await decide(colony, c)
    await decide(colony, a, "deny")

    assert (await colony.session()).state == "awaiting"
    assert await handled(colony, run, "/look") == 0
    await decide(colony, b)
    assert [e for _, _, e in await results(colony, run)] == [True, False, False]
    assert (await colony.result(run))["stop"] == "end_turn"


async def test_cancelled_run_makes_no_call_that_it_asked_about(start: Start) -> None:
    colony = await start(script=[SAME[0], says("never")])
    run = await colony.run()
    (asked,) = await pending(colony)
    with pytest.raises(SessionAwaiting):
        await colony.begin("More.")

    await colony.cancel(run)

    with pytest.raises(StaleRunControl):
        await asks_of(colony).decide(asked, Decision(verdict="allow_once"), token="late")
    await colony.harness.finish()
    assert await handled(colony, run, "/change") == 0
    assert "approval" not in await colony.kinds(run)
    assert await pending(colony) == []
    assert (await colony.result(run))["stop"] == "cancelled"


async def test_pending_call_runs_once_though_every_step_is_lost_once(start: Start) -> None:
    colony = await start(script=[SAME[0], says("Done.")])
    run = await colony.begin()
    while waiting := await colony.harness.pending():
        await colony.harness.decide(waiting[0])
        await colony.harness.step(waiting[0])
    (asked,) = await pending(colony)
    await asks_of(colony).decide(asked, Decision(verdict="allow_once"), token="t")

    while waiting := await colony.harness.pending():
        await colony.harness.decide(waiting[0])
        await colony.harness.step(waiting[0])

    kinds = await colony.kinds(run)
    assert [kinds.count(kind) for kind in ("permission.ask", "approval", "tool.result")] == [
        1,
        1,
        1,
    ]
    assert await handled(colony, run, "/change") == 1
    assert (await colony.result(run))["stop"] == "end_turn"


@pytest.mark.parametrize("cap", [1, 3])
async def test_no_more_calls_are_out_than_may_be(start: Start, cap: int) -> None:
    script = [calling(*(("look", {"path": str(n)}) for n in range(7))), says("Done.")]
    colony = await start(script=script, max_parallel_tools=cap)
    run = await colony.begin()
    look = colony.harness.keys.cell("/look")
    most = 0
    while waiting := await colony.harness.pending():
        out = [delivery for delivery in waiting if delivery.source == look]
        most = max(most, len(out))
        # The tools answer last, so as many are out as can be.
        await colony.harness.step(next((d for d in waiting if d.source != look), waiting[0]))

    assert most == cap
    assert [c for c, _, _ in await results(colony, run)] == [f"c0-{n}" for n in range(7)]


# What stands before the tools, and behind them.

HOOK = {"handler": "workers.agent.hooks:refuse_calls", "refuse": {"keys": r"\.ssh/"}}
GUARD = {"handler": "workers.agent.guardrail:guardrail", "hold": {"trick": "trick"}}


async def hooked(start: Start, **handed: Any) -> AgentColony:
    return await start(
        cells={"hook": HOOK}, edges={"./hook": f".{AGENT}/permit"}, before_tool="../hook", **handed
    )


async def guarded(start: Start, **handed: Any) -> AgentColony:
    edges = {"./look": "./guard", "./guard": f".{AGENT}/collector"}
    return await start(cells={"guard": GUARD}, edges=edges, **handed)


async def test_hook_refuses_a_call_and_lets_the_others_of_its_batch_pass(start: Start) -> None:
    script = [
        calling(("look", {"path": "a"}), ("look", {"path": "x/.ssh/y"}), ("look", {"path": "b"})),
        says("Done."),
    ]
    colony = await hooked(start, script=script)

    run = await colony.run()

    assert [e for _, _, e in await results(colony, run)] == [False, True, False]
    assert (await results(colony, run))[1][1] == "refused by a hook: its arguments have keys"
    assert await handled(colony, run, "/look") == 2
    kinds = [kind for kind in await colony.kinds(run) if kind in ("tool.call", "hook")]
    assert kinds == ["tool.call", "tool.call", "hook", "tool.call"]


async def test_every_batch_passes_the_hook(start: Start) -> None:
    colony = await hooked(
        start, script=rounds([["look", "change", "look"]]), permissions={"allow": ["change"]}
    )

    run = await colony.run()

    assert await handled(colony, run, "/hook") == 3
    assert [e for _, _, e in await results(colony, run)] == [False] * 3


async def test_hook_that_fails_refuses_all_that_it_was_given(start: Start) -> None:
    colony = await start(script=rounds([["look", "look"]]), seams={"before_tool": "fails"})

    run = await colony.run()

    assert all("refused by a hook" in text for _, text, _ in await results(colony, run))
    assert await handled(colony, run, "/look") == 0
    assert (await colony.result(run))["text"] == "Done."


async def test_call_that_a_hook_changes_is_judged_as_changed(start: Start) -> None:
    script = [calling(("look", {"path": "x"})), says("Done.")]
    colony = await start(
        script=script, seams={"before_tool": "elsewhere"}, permissions={"ask": ["look(/else/*)"]}
    )
    run = await colony.run()
    (asked,) = await pending(colony)

    assert asked.ask.args == {"path": "/else/x"}
    await decide(colony, asked)

    ((_, content, is_error),) = await results(colony, run)
    assert ('saw {"path": "/else/x"}' in content, is_error) == (True, False)
    assert (await colony.kinds(run)).count("hook") == 1


async def test_call_that_a_hook_sends_twice_is_made_and_asked_about_once(start: Start) -> None:
    script = [*SAME[:1], calling(("look", {}), number=1), says("Done.")]
    colony = await start(script=script, seams={"before_tool": "twice"})
    run = await colony.run()
    (asked,) = await pending(colony)
    assert (await colony.session()).pending == 1

    await decide(colony, asked)

    assert (await handled(colony, run, "/change"), await handled(colony, run, "/look")) == (1, 1)
    assert (await colony.result(run))["stop"] == "end_turn"


async def until_two_permit(colony: AgentColony) -> list[Delivery]:
    """Both deliveries of a batch that a hook has sent twice."""
    harness = colony.harness
    while True:
        waiting = await harness.pending()
        found = [d for d in waiting if d.source == harness.keys.cell("/assistant/permit")]
        if len(found) == 2:
            return found
        await harness.step(next(d for d in waiting if d not in found))


@pytest.mark.parametrize("name", ["look", "change"])
async def test_two_workers_that_permit_a_batch_at_once_make_and_ask_about_it_once(
    start: Start, name: str
) -> None:
    """Both have decided before either commits: neither sees in the record what the other does."""
    permissions = {"allow": ["look"], "ask": ["change"]}
    script = rounds([[name]])
    colony = await start(script=script, seams={"before_tool": "twice"}, permissions=permissions)
    run = await colony.begin()
    harness = colony.harness
    steps = [await harness.decide(delivery) for delivery in await until_two_permit(colony)]
    for step in steps:
        await harness.commit(step)
    await harness.finish()

    if name == "change":
        assert (await colony.session()).pending == 1
        (asked,) = await pending(colony)
        await asks_of(colony).decide(asked, Decision(verdict="allow_once"), token="t")
        await harness.finish()

    assert await handled(colony, run, f"/{name}") == 1
    assert (await colony.result(run))["stop"] == "end_turn"
    assert (await colony.session()).pending == 0
    trace = await harness.trace(run)
    assert (trace.ended, trace.live) == (True, 0)


async def test_an_ask_is_not_taken_for_lost_however_long_it_waits(start: Start) -> None:
    """A keeper that starts doubts every trace, and one that rests those that have not moved."""
    colony = await start(script=rounds([["change"]]), permissions={"ask": ["change"]})
    run = await colony.run()
    harness = colony.harness

    async def attend(trace_id: str) -> None:
        raise AssertionError(f"{trace_id} waits for no keeper")

    audit = Audit(harness.link, harness.keys, harness.publication, attend)
    assert await audit.search({run}) == ([], set())
    (asked,) = await pending(colony)
    await decide(colony, asked)

    assert await handled(colony, run, "/change") == 1
    assert (await colony.result(run))["state"] == "completed"


async def test_an_envelope_that_is_lost_beside_one_that_waits_is_found(start: Start) -> None:
    colony = await start(script=rounds([["change"]]), permissions={"ask": ["change"]})
    run = await colony.run()
    harness = colony.harness
    await harness.link.command("HINCRBY", harness.keys.trace(run), "live", 1)

    async def attend(trace_id: str) -> None:
        raise AssertionError(f"{trace_id} waits for no keeper")

    audit = Audit(harness.link, harness.keys, harness.publication, attend)
    assert await audit.search({run}) == ([run], set())
    assert (await harness.trace(run)).live == 1


async def test_a_run_that_ends_while_it_asks_takes_the_ask_back(start: Start) -> None:
    colony = await start(script=rounds([["change"]]), permissions={"ask": ["change"]})
    run = await colony.run()
    (asked,) = await pending(colony)
    finishing = await Traces(colony.harness.link, colony.harness.keys).log(run)
    body = encode_body(Body.of(Entry.say("assistant", "x")))
    head = finishing[-1].head.model_copy(
        update={
            "id": derived_id(run, "beside"),
            "target": "/assistant/finish",
            "hop": {"route": "end", "stop": "end_turn"},
        }
    )
    # A branch of the tree that ends the run by itself.
    stream = colony.harness.keys.cell("/assistant/finish")
    await colony.harness.link.command("XADD", stream, "*", "head", encode_head(head), "body", body)
    await colony.harness.link.command("HINCRBY", colony.harness.keys.trace(run), "live", 1)
    await colony.harness.finish()

    kinds = await colony.kinds(run)
    assert kinds[-2:] == ["permission.retract", "result"]
    assert await asks_of(colony).pending() == []
    session = await colony.session()
    assert (session.state, session.pending) == ("completed", 0)
    with pytest.raises(StaleRunControl):
        await asks_of(colony).decide(asked, Decision(verdict="allow_once"), token="t")
    trace = await colony.harness.trace(run)
    assert (trace.ended, trace.live) == (True, 0)


@pytest.mark.parametrize(
    ("verdict", "text", "is_error"),
    [("allow_once", "saw", False), ("deny", "result withheld: the result has trick; no!", True)],
)
async def test_held_result_is_shown_to_nobody_before_it_is_released(
    start: Start, verdict: Any, text: str, is_error: bool
) -> None:
    script = [calling(("look", {"path": "a"}), ("look", {"path": "trick"})), says("Done.")]
    colony = await guarded(start, script=script)
    run = await colony.run()
    (asked,) = await pending(colony)
    assert (asked.ask.kind, asked.ask.call_id) == ("result_release", "c0-1")
    assert "tool.result" not in await colony.kinds(run)

    await decide(colony, asked, verdict, reason="no!")

    (_, first, _), (_, second, error) = await results(colony, run)
    assert first.startswith("saw")
    assert (second.startswith(text), error) == (True, is_error)
    # The tool was not called again for it.
    assert await handled(colony, run, "/look") == 2
    assert (await colony.result(run))["stop"] == "end_turn"
