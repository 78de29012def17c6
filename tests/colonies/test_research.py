"""The research assistant, with either join: whatever happens, its user hears of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from colony.body import Body, Entry
from colony.codec import decode_head, encode_head
from colony.envelope import derived_id
from colony.errors import MessageTimeout
from colony.streams import Delivery, Outgoing
from colony.testing.harness import at_random

TREES = pytest.mark.parametrize("tree", ["research", "research-settle"])
DONE = {"text": "done"}


def call(name, arguments=None, **fields):
    return {"name": name, "arguments": {} if arguments is None else arguments, **fields}


def calls(*made, **fields):
    return {"tool_calls": list(made), **fields}


SEARCH = call("web_search", {"query": "sun valve"}, id="s")
FETCH = call("web_fetch", {"url": "file:///dalen-sun-valve.md"}, id="f")


async def results(colony, trace):
    """What the model was told of each call, by its id."""
    rows = await colony.rows("thread", trace_id=trace)
    return {row["call_id"]: row["turn"] for row in rows if row["role"] == "tool"}


async def step_through(colony, act: Callable[[str, Delivery], str | None]) -> None:
    """Run, and lose or double the deliveries for which `act` says so."""
    harness = colony.harness
    while pending := await harness.pending():
        delivery = pending[0]
        match act(harness.owner(delivery), delivery):
            case "lose":
                await harness.drop(delivery)
            case "double":
                step = await harness.decide(delivery)
                again = [_said_again(outgoing) for outgoing in step.published]
                await harness.commit(replace(step, published=step.published + again))
            case _:
                await harness.step(delivery)


def _said_again(outgoing: Outgoing) -> Outgoing:
    """The same emission as another one: what carries one id twice is a redelivery."""
    head = decode_head(outgoing.head)
    again = head.model_copy(update={"id": derived_id(head.id, "again")})
    return replace(outgoing, head=encode_head(again))


def once(path: str, what: str, **hop: str) -> Callable[[str, Delivery], str | None]:
    """Does it to the first delivery for `path` with these hop keys."""
    done = False

    def act(owner: str, delivery: Delivery) -> str | None:
        nonlocal done
        fits = owner == path and hop.items() <= delivery.head.hop.items()
        if done or not fits:
            return None
        done = True
        return what

    return act


@TREES
async def test_question_about_the_documents_is_answered_with_citations(start, tree):
    colony = await start(tree)

    trace = await colony.harness.ask("/prep", "When did Gustaf Dalén invent the sun valve?")
    answer = await colony.answer(trace)

    assert "“The third was the sun valve, in 1907.” [source: file:///dalen-sun-valve.md]" in answer
    await colony.assert_clean(trace)
    (archived,) = await colony.rows("answers", trace_id=trace)
    assert archived["answer"] == answer
    assert archived["question"] == "When did Gustaf Dalén invent the sun valve?"


@TREES
@pytest.mark.parametrize("seed", range(3))
async def test_parallel_rounds_fire_once_each_in_any_order(start, tree, seed):
    colony = await start(tree, script=[calls(SEARCH, FETCH), calls(FETCH), DONE])

    trace = await colony.harness.ask("/prep", "go")
    answer = await colony.answer(trace, at_random(seed))

    assert answer == "done"
    assert await colony.fires(trace) == 2
    await colony.assert_clean(trace)
    rows = await colony.rows("thread", trace_id=trace)
    assert sorted((row["iter"], row["role"], row["call_id"]) for row in rows) == [
        (0, "assistant", ""),
        (0, "tool", "f"),
        (0, "tool", "s"),
        (0, "user", "@question"),
        (1, "assistant", ""),
        (1, "tool", "f"),
    ]
    assert [row["fired"] for row in rows if row["role"] == "assistant"] == [1, 1]


@TREES
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (call("teleport", {"to": "Bell Rock"}), "unknown_tool"),
        (call("web_search", '{"query": '), "invalid_arguments"),
        (call("web_search", "[1]"), "invalid_arguments"),
        (call("web_search", {"wrong": 1}), "invalid_arguments"),
        (call("web_fetch", {"url": "file:///../../config.json"}), "target_blocked"),
        (call(""), "missing_name"),
        (call("remember", {"operation": "delete", "table": "thread"}), "invalid_arguments"),
    ],
)
async def test_call_that_fails_is_told_to_the_model_beside_the_others(start, tree, made, told):
    colony = await start(tree, script=[calls(FETCH, {**made, "id": "x"}), DONE])

    trace = await colony.harness.ask("/prep", "go")

    assert await colony.answer(trace) == "done"
    found = await results(colony, trace)
    assert told in found["x"]
    assert "Dalén" in found["f"]
    await colony.assert_clean(trace)


@TREES
async def test_note_is_remembered_and_its_round_goes_on(start, tree):
    note = call("remember", {"text": "It has a black rod."}, id="n")
    colony = await start(tree, script=[calls(FETCH, note), DONE])

    trace = await colony.harness.ask("/prep", "How does it work?")

    assert await colony.answer(trace) == "done"
    (kept,) = await colony.rows("notes", trace_id=trace)
    assert kept == {"question": "How does it work?", "text": "It has a black rod."}
    assert set(await results(colony, trace)) == {"f", "n"}
    await colony.assert_clean(trace)


@TREES
@pytest.mark.parametrize(
    ("last", "kind", "told"),
    [
        ({"text": "It has a", "finish_reason": "length"}, "length", "It has a\n\n[The answer was"),
        ({"text": "No.", "finish_reason": "content_filter"}, "content_filter", "withheld"),
        (calls(FETCH, finish_reason="length"), "length", "cut off"),
        ({"error": "rate_limited"}, "rate_limited", "rate_limited"),
        ({"error": "context_length"}, "context_length", "context_length"),
    ],
)
@pytest.mark.parametrize("before", [[], [calls(SEARCH)]], ids=["at once", "after a round"])
async def test_model_that_cannot_go_on_still_ends_in_an_answer(
    start, tree, last, kind, told, before
):
    colony = await start(tree, script=[*before, last])

    trace = await colony.harness.ask("/prep", "go")

    assert told in await colony.answer(trace)
    (error,) = await colony.rows("errors", trace_id=trace)
    assert (error["kind"], error["question"]) == (kind, "go")
    await colony.assert_clean(trace)


@TREES
async def test_loop_that_finds_no_end_is_bounded_and_answered(start, tree):
    colony = await start(tree, script=[calls(call("web_search", {"query": "x"}))])

    trace = await colony.harness.ask("/prep", "go")

    assert "more rounds" in await colony.answer(trace)
    hops = await colony.harness.hops(trace)
    assert sum(hop.head.target == "/planner" for hop in hops) == 13
    (error,) = await colony.rows("errors", trace_id=trace)
    assert error["kind"] == "iteration_limit"
    await colony.assert_clean(trace)


@TREES
async def test_calls_beyond_the_budget_are_told_and_the_others_run(start, tree):
    many = [call("web_fetch", {"url": "file:///boston-light.md"}, id=f"c{n}") for n in range(18)]
    colony = await start(tree, script=[calls(*many), DONE])

    trace = await colony.harness.ask("/prep", "go")

    assert await colony.answer(trace) == "done"
    found = await results(colony, trace)
    assert len(found) == 18
    assert {key for key, turn in found.items() if "call_budget_exceeded" in turn} == {"c16", "c17"}
    await colony.assert_clean(trace)


@TREES
async def test_two_calls_of_one_id_are_two_calls_and_an_exact_repeat_is_one(start, tree):
    other = {**FETCH, "id": "s"}
    colony = await start(tree, script=[calls(SEARCH, SEARCH, other), DONE])

    trace = await colony.harness.ask("/prep", "go")

    assert await colony.answer(trace) == "done"
    found = await results(colony, trace)
    assert len(found) == 2
    assert "s" in found
    await colony.assert_clean(trace)


@TREES
@pytest.mark.parametrize("path", ["/searcher", "/reader", "/dispatch", "/planner", "/prep"])
async def test_what_is_said_twice_counts_once(start, tree, path):
    colony = await start(tree, script=[calls(SEARCH, FETCH), DONE])

    trace = await colony.harness.ask("/prep", "go", context={"turn_id": "t-7"})
    await step_through(colony, once(path, "double"))

    rows = await colony.rows("thread", trace_id=trace)
    unique = {(row["iter"], row["role"], row["call_id"]) for row in rows}
    assert len(rows) == len(unique) == 4
    await colony.harness.finish()
    assert await colony.fires(trace) == 1
    assert await colony.harness.letters() == []


@TREES
@pytest.mark.parametrize("path", ["/searcher", "/reader"])
async def test_lost_call_becomes_an_error_result_and_its_round_goes_on(start, tree, path):
    colony = await start(tree, script=[calls(SEARCH, FETCH), calls(FETCH), DONE])

    trace = await colony.harness.ask("/prep", "go")
    await step_through(colony, once(path, "lose"))
    assert await colony.harness.outputs(trace) == []

    assert await colony.answer(trace) == "done"
    rows = await colony.rows("thread", trace_id=trace)
    lost = [(row["iter"], row["call_id"]) for row in rows if "was lost" in row["turn"]]
    assert lost == [(0, {"/searcher": "s", "/reader": "f"}[path])]
    assert await colony.fires(trace) == 2
    await colony.assert_clean(trace)


@TREES
async def test_lost_call_of_a_later_round_is_closed_in_that_round(start, tree):
    colony = await start(tree, script=[calls(SEARCH), calls(SEARCH, FETCH), DONE])

    trace = await colony.harness.ask("/prep", "go")
    await step_through(colony, once("/reader", "lose"))

    assert await colony.answer(trace) == "done"
    rows = await colony.rows("thread", trace_id=trace)
    assert [(row["iter"], row["call_id"]) for row in rows if "was lost" in row["turn"]] == [
        (1, "f")
    ]
    hops = await colony.harness.hops(trace)
    assert [hop.head.context["iter"] for hop in hops if hop.head.target == "/planner"] == [0, 1, 2]
    await colony.assert_clean(trace)


@TREES
async def test_all_results_of_a_round_may_be_lost(start, tree):
    colony = await start(tree, script=[calls(SEARCH, FETCH), DONE])
    lose = (once("/searcher", "lose"), once("/reader", "lose"))

    trace = await colony.harness.ask("/prep", "go")
    await step_through(colony, lambda *found: lose[0](*found) or lose[1](*found))

    assert await colony.answer(trace) == "done"
    assert await colony.fires(trace) == 1
    await colony.assert_clean(trace)


@TREES
async def test_tool_that_dies_is_told_to_the_model_by_its_cause(start, tree, monkeypatch):
    colony = await start(tree, script=[calls(SEARCH, FETCH), DONE])
    reader = colony.harness.workshop.cells["/reader"].cell

    async def die(*_):
        raise MessageTimeout(path="/reader", timeout_ms=60_000)

    monkeypatch.setattr(reader, "handle", die)

    trace = await colony.harness.ask("/prep", "go")

    assert await colony.answer(trace) == "done"
    assert "message_timeout" in (await results(colony, trace))["f"]
    assert [letter.code for letter in await colony.harness.letters()] == ["message_timeout"]


@TREES
@pytest.mark.parametrize(
    ("path", "hop"),
    [
        ("/prep", {}),
        ("/planner", {}),
        ("/dispatch", {}),
        ("/collector", {"route": "c_asst"}),
        ("/memory", {"route": "ustore"}),
    ],
)
async def test_question_whose_thread_is_lost_is_answered_all_the_same(start, tree, path, hop):
    colony = await start(tree, script=[calls(SEARCH, FETCH), DONE])

    trace = await colony.harness.ask("/prep", "go")
    await step_through(colony, once(path, "lose", **hop))

    assert "part of the work was lost" in await colony.answer(trace)
    (error,) = await colony.rows("errors", trace_id=trace)
    assert error["kind"] == "stalled"
    await colony.assert_clean(trace)


@pytest.mark.parametrize("route", ["cstore", "cguard"])
@pytest.mark.parametrize("nth", range(1, 4))
async def test_lost_request_to_the_store_does_not_stall_the_classic_join(start, route, nth):
    colony = await start("research", script=[calls(FETCH), DONE])
    seen = 0

    def lose_nth(owner: str, delivery: Delivery) -> str | None:
        nonlocal seen
        seen += owner == "/memory" and delivery.head.hop.get("route") == route
        return "lose" if seen == nth and owner == "/memory" else None

    trace = await colony.harness.ask("/prep", "go")
    await step_through(colony, lose_nth)

    assert await colony.answer(trace)
    trace_record = await colony.harness.trace(trace)
    assert (trace_record.cause, trace_record.dead) == ("completed", 0)


@TREES
async def test_store_that_refuses_everything_leaves_one_answer(start, tree, monkeypatch):
    colony = await start(tree, script=[calls(SEARCH, FETCH), DONE])
    store = colony.harness.workshop.cells["/memory"].cell
    monkeypatch.setattr(store, "_may_write", lambda *_: False)

    trace = await colony.harness.ask("/prep", "go")

    assert await colony.answer(trace)
    await colony.assert_clean(trace)


@TREES
async def test_message_without_a_question_is_answered_too(start, tree):
    colony = await start(tree)

    trace = await colony.harness.send("/prep", Body.of(Entry.say("system", "no user here")))

    assert "without an answer" in await colony.answer(trace)
    await colony.assert_clean(trace)
