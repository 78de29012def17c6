"""The research assistant, with either join: whatever happens, its user hears of it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from colony import faults
from colony.body import Body, Entry
from colony.codec import decode_body, decode_head, encode_head
from colony.counts import Counts
from colony.desk import letter_of
from colony.envelope import derived_id
from colony.errors import MessageTimeout, ServerChanged, ServerUnavailable
from colony.inbox import Inbox
from colony.streams import Delivery, Outgoing, Step
from colony.testing.harness import Harness, at_random
from colony.testing.redis_server import RedisServer
from colony.trees import shipped

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
    """Run, and lose, double or bury the deliveries for which `act` says so."""
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
            case "die":
                owner = harness.owner(delivery)
                letter = letter_of(delivery, owner, "delivery_limit", "handled too often")
                await harness.commit(Step(delivery, letters=[letter]))
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
    counts = await Counts(colony.harness.link, colony.harness.keys).read()
    assert {name for name, count in counts.items() if count} == set()


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
async def test_calls_of_an_answer_that_was_cut_off_are_not_run_and_the_model_is_told(start, tree):
    colony = await start(tree, script=[calls(FETCH, finish_reason="length"), DONE])

    trace = await colony.harness.ask("/prep", "go")

    assert await colony.answer(trace) == "done"
    assert '"truncated: ' in (await results(colony, trace))["f"]
    assert not any(hop.head.target == "/reader" for hop in await colony.harness.hops(trace))
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
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MessageTimeout(path="/reader", timeout_ms=60_000), "message_timeout"),
        (ZeroDivisionError("oh"), "cell_failed"),
    ],
)
async def test_tool_that_dies_is_told_to_the_model_by_its_cause(
    start, tree, monkeypatch, error, code
):
    colony = await start(tree, script=[calls(SEARCH, FETCH), DONE])
    reader = colony.harness.workshop.cells["/reader"].cell

    async def die(*_):
        raise error

    monkeypatch.setattr(reader, "handle", die)

    trace = await colony.harness.ask("/prep", "go")

    assert await colony.answer(trace) == "done"
    assert code in (await results(colony, trace))["f"]
    assert [letter.code for letter in await colony.harness.letters()] == [code]


@TREES
async def test_call_that_was_handled_too_often_is_told_to_the_model(start, tree):
    colony = await start(tree, script=[calls(SEARCH, FETCH), DONE])

    trace = await colony.harness.ask("/prep", "go")
    await step_through(colony, once("/reader", "die"))

    assert await colony.answer(trace) == "done"
    assert "delivery_limit" in (await results(colony, trace))["f"]
    assert await colony.fires(trace) == 1


@TREES
async def test_result_that_comes_after_its_round_was_closed_changes_nothing(
    start, tree, monkeypatch, caplog
):
    """Its tool died, the round went on without it, and an operator lets the tool run again."""
    caplog.set_level("INFO")
    colony = await start(tree, script=[calls(SEARCH, FETCH), calls(SEARCH), DONE])
    harness = colony.harness
    reader = harness.workshop.cells["/reader"].cell
    handle = reader.handle

    async def die_once(*_):
        monkeypatch.setattr(reader, "handle", handle)
        raise MessageTimeout(path="/reader", timeout_ms=60_000)

    monkeypatch.setattr(reader, "handle", die_once)
    trace = await harness.ask("/prep", "go")
    await harness.run()
    assert await harness.attend() == [trace]

    views = []
    while pending := await harness.pending():
        delivery = pending[0]
        if harness.owner(delivery) == "/planner":
            views.append(decode_body(delivery.body).entries)
        if len(views) == 1:
            (letter,) = await harness.letters()
            await harness.dead_letters.replay(letter.id, ttl=64)
        await harness.step(delivery)
    await harness.finish()

    late = [line for line in caplog.messages if line.startswith("late ")]
    assert len(late) == 1
    assert trace in late[0]
    assert (await Counts(harness.link, harness.keys).read())["late_results"] == 1
    assert await colony.fires(trace) == 2
    rows = await colony.rows("thread", trace_id=trace)
    told = {(row["iter"], row["call_id"]): row["turn"] for row in rows if row["role"] == "tool"}
    assert set(told) == {(0, "s"), (0, "f"), (1, "s")}
    assert "message_timeout" in told[0, "f"]
    answered = [(entry.id, entry.is_error) for entry in views[-1] if entry.type == "tool_result"]
    assert answered == [("s", None), ("f", True), ("s", None)]


@TREES
@pytest.mark.parametrize(
    "last",
    [{"route": "c_asst"}, {"route": "ustore"}, {"route": "cstore"}],
    ids=lambda hop: hop["route"],
)
async def test_round_whose_part_comes_last_of_all_fires_once_when_it_comes(start, tree, last):
    """Results before anybody knows that they are waited for, or a store that is away for long."""
    colony = await start(tree, script=[calls(SEARCH, FETCH), DONE])

    def all_else_first(pending):
        return next((d for d in pending if not last.items() <= d.head.hop.items()), pending[0])

    trace = await colony.harness.ask("/prep", "go")

    assert await colony.answer(trace, all_else_first) == "done"
    assert await colony.fires(trace) == 1
    assert set(await results(colony, trace)) == {"s", "f"}
    await colony.assert_clean(trace)


@TREES
@pytest.mark.parametrize("when", ["before", "after"])
async def test_round_whose_store_did_not_answer_fires_once(start, tree, when):
    """Each request to the store is lost once, or its answer is; the delivery comes again."""
    colony = await start(tree, script=[calls(SEARCH, FETCH), DONE])
    harness = colony.harness
    scripts = ("settle", "store_insert", "store_update", "store_select")
    asked = lost = 0

    trace = await harness.ask("/prep", "go")
    while pending := await harness.pending():
        if harness.owner(pending[0]) == "/memory":
            asked += 1
            faults.arm(",".join(f"{when}_{script}=drop" for script in scripts))
            with suppress(ServerUnavailable):
                await harness.decide(pending[0])
            lost += len(faults.armed) < len(scripts)
            faults.arm("")
        await harness.step(pending[0])

    assert await colony.answer(trace) == "done"
    assert asked == lost > 4
    assert await colony.fires(trace) == 1
    await colony.assert_clean(trace)


@TREES
async def test_round_that_was_won_on_a_server_that_forgot_it_fires_once_on_the_next(
    start, tree, redis_binary
):
    """The worker still knows that it won; the server that comes back never saw that it asked."""
    spec = (await start(tree, script=[calls(SEARCH, FETCH), DONE])).harness.spec
    with RedisServer.start(redis_binary, fsync="always") as server:
        async with Harness(server.url, spec, root=shipped(tree)) as harness:
            trace = await harness.ask("/prep", "go")
            won = False
            while not won:
                delivery = (await harness.pending())[0]
                size = server.aof.stat().st_size
                step = await harness.decide(delivery)
                won = any(_wins(decode_head(outgoing.head).hop) for outgoing in step.published)
                if not won:
                    await harness.commit(step)
            server.kill()
            server.cut_aof(server.aof.stat().st_size - size)
            server.restart()

            # The connection finds out that it is dead.
            with suppress(ServerUnavailable):
                await harness.link.command("PING")
            with pytest.raises(ServerChanged):
                await harness.commit(step)

        async with Harness(server.url, spec, root=shipped(tree)) as harness:
            await harness.run()
            inbox = Inbox(harness.link, "stepped-0")
            for source in [harness.keys.router(), *(harness.keys.cell(c.path) for c in spec.cells)]:
                for delivery in await inbox.history(source):
                    await harness.step(delivery)
            await harness.finish()

            hops = await harness.hops(trace)
            assert sum(hop.head.hop.get("route") == "fire" for hop in hops) == 1
            assert sum(hop.head.target == "/planner" for hop in hops) == 2
            assert len(await harness.outputs(trace)) == 1
            assert (await harness.trace(trace)).cause == "completed"


def _wins(hop):
    return hop.get("operation") in ("settle", "update") and hop.get("rows_affected") == 1


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
