"""Permit: what is made of a batch, what is asked, and what is refused."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from colony.agent.asks import Ask, Decision
from colony.agent.in_hand import RunInHand
from colony.body import Entry
from colony.envelope import Emission, Envelope, digest
from colony.topology.model import ToolDeclaration
from tests.workers.agent.in_hand import RUN, arriving, events, in_hand, kinds, put
from workers.agent.batches import BatchedCall, kept
from workers.agent.permit import Params, permit

OWN = Params()


def declared(name: str, *, read_only: bool = False, **arguments: str) -> ToolDeclaration:
    properties = {argument: {"type": kind} for argument, kind in arguments.items()}
    return ToolDeclaration(
        name=name,
        description="",
        parameters={"type": "object", "properties": properties},
        read_only=read_only,
    )


TOOLS = {
    tool.name: tool
    for tool in (
        declared("read", read_only=True, path="string"),
        declared("edit", path="string", text="string"),
        declared("bash", command="string"),
    )
}


def call(call_id: str, name: str, *, batch: int = 0, problem: str = "", **args: Any) -> BatchedCall:
    return BatchedCall(
        id=call_id, name=name, arguments=json.dumps(args), batch=batch, problem=problem
    )


def of_batch(*calls: BatchedCall, **given: Any) -> RunInHand:
    """A run in the batch of these calls; `fields` are further ones of its record."""
    fields = {"calls": kept(calls), **given.pop("fields", {})}
    return in_hand(tools=TOOLS, turn=0, batch=calls[0].batch, fields=fields, **given)


def batch(*calls: BatchedCall, **hop: Any) -> Envelope:
    return arriving(*(each.entry() for each in calls), **{"route": "batch", **hop})


def first_pass(*calls: BatchedCall, own: Params = OWN, **given: Any) -> RunInHand:
    """A run whose batch came, and which asks about some of it."""
    run = of_batch(*calls, **given)
    assert permit(batch(*calls), own, run) is None
    assert run.changes.asks
    return run


def second_pass(
    asking: RunInHand,
    calls: Sequence[BatchedCall],
    decisions: Mapping[str, Decision],
    *,
    own: Params = OWN,
    entries: Sequence[Entry] | None = None,
    **given: Any,
) -> tuple[RunInHand, list[Emission]]:
    """The same batch again, once these decisions were made."""
    fields = {**asking.record.fields, **put(asking)}
    run = of_batch(*calls, fields=fields, decisions=decisions, **given)
    said = [each.entry() for each in calls] if entries is None else entries
    emissions = permit(arriving(*said, route="batch", decided="1"), own, run)
    assert emissions is not None
    return run, emissions


def allowing(ask: Ask, **changed: Any) -> dict[str, Decision]:
    args = changed.get("args")
    approved = ask.args_hash if args is None else digest(args)
    given = {"verdict": "allow_once", "args_hash": approved, **changed}
    return {ask.id: Decision.model_validate(given)}


def made(emissions: Sequence[Emission]) -> dict[str, Any]:
    """The arguments of the calls that go out, by their ids."""
    out = [emission for emission in emissions if emission.hop["route"] == "tool"]
    return {entry.id or "": json.loads(entry.text or "") for e in out for entry in e.body.entries}


def refused(emissions: Sequence[Emission]) -> dict[str, str]:
    """What is said of the calls that are not made, by their ids."""
    results = [e for emission in emissions for e in emission.body.each("tool_result")]
    assert all(entry.is_error for entry in results)
    return {entry.id or "": entry.text or "" for entry in results}


def expected(emissions: Sequence[Emission]) -> Any:
    """The ids that the store waits for."""
    (request,) = [e for e in emissions if e.hop["route"] == "cstore"]
    return json.loads(request.body.entries[0].text or "")["expects"]


def passed(*calls: BatchedCall, own: Params = OWN, **given: Any) -> list[Emission]:
    """What becomes of a batch about which nobody is asked."""
    run = of_batch(*calls, **given)
    emissions = permit(batch(*calls), own, run)
    assert emissions is not None
    return emissions


def test_calls_that_only_read_go_out_and_the_store_waits_for_all() -> None:
    calls = call("a", "read", path="x"), call("b", "read", path="y")
    run = of_batch(*calls)

    emissions = permit(batch(*calls), OWN, run) or []

    assert [e.hop["route"] for e in emissions] == ["cstore", "tool", "tool"]
    assert expected(emissions) == ["a", "b"]
    assert made(emissions) == {"a": {"path": "x"}, "b": {"path": "y"}}
    assert emissions[1].hop == {
        "route": "tool", "tool_name": "read", "tool_call_id": "a",
        "args_hash": digest({"path": "x"}),
    }  # fmt: skip
    assert kinds(run) == ["tool.call", "tool.call"]
    assert events(run)[0] == {"call_id": "a", "name": "read", "args": {"path": "x"}}
    assert json.loads(put(run)["open_calls"]) == [["a", "read"], ["b", "read"]]


def test_row_of_the_batch_has_the_calls_as_they_are_made() -> None:
    (request, *_) = passed(call("a", "read", batch=7, path="x"))

    row = json.loads(request.body.entries[0].text or "")["row"]
    assert (row["turn_id"], row["iter"], row["role"], row["fired"]) == (
        f"{RUN}:7",
        7,
        "assistant",
        0,
    )
    (said,) = json.loads(row["turn"])
    assert json.loads(said["text"]) == {"name": "read", "arguments": '{"path": "x"}'}


@pytest.mark.parametrize(
    ("made_wrongly", "told"),
    [
        (call("a", "nothing"), 'unknown tool "nothing"'),
        (call("a", "edit", problem="truncated: cut off"), "truncated: cut off"),
        (BatchedCall(id="a", name="edit", arguments="[1]", batch=0), "invalid_arguments"),
    ],
)
def test_call_that_cannot_be_made_is_answered_and_asks_nobody(
    made_wrongly: BatchedCall, told: str
) -> None:
    emissions = passed(made_wrongly)

    assert refused(emissions)["a"].startswith(told)
    assert made(emissions) == {}
    assert expected(emissions) == ["a"]


def test_call_that_may_change_something_is_asked_about() -> None:
    run = first_pass(call("a", "edit", path="./x"))

    (ask,) = run.changes.asks
    assert (ask.call_id, ask.tool, ask.kind, ask.args) == (
        "a",
        "edit",
        "permission",
        {"path": "./x"},
    )
    assert ask.args_hash == digest({"path": "./x"})
    assert ask.reason == "no rule is about this call of edit"
    assert ask.rule == "edit(x)"
    assert kinds(run) == ["tool.call"]


def test_deadline_is_reckoned_from_the_envelope_so_that_a_repeat_has_the_same() -> None:
    own = Params(ask_deadline_ms=500)
    calls = [call("a", "edit", path="x")]
    one, other = of_batch(*calls), of_batch(*calls)

    for run in (one, other):
        permit(batch(*calls), own, run)

    assert one.changes.asks[0].deadline == 1_500
    assert one.changes == other.changes


def test_ask_of_another_turn_or_run_has_another_id() -> None:
    args = {"path": "x"}

    ids = {
        Ask.of_call(run, "a", "edit", args, turn=turn, reason="r").id
        for run in ("run-1", "run-2") for turn in (0, 1)
    }  # fmt: skip

    assert len(ids) == 4


def test_verdict_on_another_ask_approves_nothing() -> None:
    calls = [call("a", "edit", path="x")]
    asking = first_pass(*calls)
    old = Ask.of_call("run-0", "a", "edit", {"path": "x"}, turn=0, reason="r")

    _, emissions = second_pass(asking, calls, allowing(old))

    assert made(emissions) == {}
    assert refused(emissions) == {"a": "permission denied: nobody has answered"}


def test_nothing_of_a_batch_goes_out_before_all_of_it_is_decided() -> None:
    calls = [
        call("a", "read", path="x"),
        call("b", "read", path="secret"),
        call("c", "read", path="y"),
    ]
    own = Params(permissions={"ask": ["read(secret)"]})

    asking = first_pass(*calls, own=own)

    (ask,) = asking.changes.asks
    assert ask.call_id == "b"
    denied = Decision(verdict="deny", reason="not that one")
    _, emissions = second_pass(asking, calls, {ask.id: denied}, own=own)
    assert [*made(emissions)] == ["a", "c"]
    assert refused(emissions) == {"b": "permission denied: denied by user: not that one"}
    assert expected(emissions) == ["a", "b", "c"]


def test_all_asks_of_a_batch_are_filed_at_once_in_call_order() -> None:
    calls = [call(name, "read", path=name) for name in ("x", "y", "z")]
    own = Params(permissions={"ask": ["read(x)", "read(z)"]})

    run = first_pass(*calls, own=own)

    assert [ask.call_id for ask in run.changes.asks] == ["x", "z"]


def test_siblings_keep_their_own_verdicts() -> None:
    calls = [call(name, "read", path=name) for name in ("x", "y")]
    own = Params(permissions={"ask": ["read"]})
    asking = first_pass(*calls, own=own)
    x, y = asking.changes.asks
    denied = Decision(verdict="deny", reason="no")

    _, emissions = second_pass(asking, calls, {**allowing(x), y.id: denied}, own=own)

    assert [*made(emissions)] == ["x"]
    assert [*refused(emissions)] == ["y"]


def test_denied_call_is_not_made_though_a_rule_allows_it_meanwhile() -> None:
    calls = [call("a", "edit", path="x")]
    asking = first_pass(*calls)
    denied = Decision(verdict="deny", reason="no")

    _, emissions = second_pass(
        asking, calls, {asking.changes.asks[0].id: denied}, session={"learned": ("edit(x)",)}
    )

    assert made(emissions) == {}
    assert refused(emissions) == {"a": "permission denied: denied by user: no"}


@pytest.mark.parametrize("verdict", ["allow_once", "allow_always"])
def test_allowed_call_goes_out_with_what_was_approved(verdict: str) -> None:
    calls = [call("a", "edit", path="x")]
    asking = first_pass(*calls)

    run, (_, sent) = second_pass(asking, calls, allowing(asking.changes.asks[0], verdict=verdict))

    assert made([sent]) == {"a": {"path": "x"}}
    assert sent.hop["args_hash"] == asking.changes.asks[0].args_hash
    assert kinds(run) == []


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (
            {"verdict": "deny", "reason": "too risky"},
            "permission denied: denied by user: too risky",
        ),
        ({"verdict": "deny"}, "permission denied: denied by user: no reason given"),
        (
            {"verdict": "deny", "by": "deadline", "reason": "nobody answered in time"},
            "permission denied: nobody answered in time",
        ),
        ({"verdict": "deny", "by": "deadline"}, "permission denied: nobody answered in time"),
    ],
)
def test_denied_call_is_an_error_that_says_why(decision: dict[str, Any], told: str) -> None:
    calls = [call("a", "edit", path="x")]
    asking = first_pass(*calls)

    _, emissions = second_pass(
        asking, calls, {asking.changes.asks[0].id: Decision.model_validate(decision)}
    )

    assert refused(emissions) == {"a": told}
    assert made(emissions) == {}
    assert emissions[-1].hop["error_code"] == "not_made"


def test_missing_and_unknown_verdicts_are_no_yes() -> None:
    calls = [call("a", "edit", path="x")]
    asking = first_pass(*calls)

    _, emissions = second_pass(asking, calls, {})

    assert made(emissions) == {}
    for verdict in ("", "allow", None):
        with pytest.raises(ValidationError):
            Decision.model_validate({"verdict": verdict})
    with pytest.raises(ValidationError):
        Decision.model_validate({})


def test_edited_arguments_are_what_is_made() -> None:
    calls = [call("a", "edit", path="x")]
    asking = first_pass(*calls)
    edited = {"path": "y", "text": "z"}

    _, (_, sent) = second_pass(asking, calls, allowing(asking.changes.asks[0], args=edited))

    assert made([sent]) == {"a": edited}
    assert sent.hop["args_hash"] == digest({**edited})


def test_edited_arguments_are_held_against_what_is_denied() -> None:
    own = Params(permissions={"deny": ["edit(/etc/*)"]})
    calls = [call("a", "edit", path="x")]
    asking = first_pass(*calls, own=own)

    _, emissions = second_pass(
        asking, calls, allowing(asking.changes.asks[0], args={"path": "/etc/x"}), own=own
    )

    assert made(emissions) == {}
    assert refused(emissions) == {"a": "permission denied: deny by edit(/etc/*) (settings)"}


@pytest.mark.parametrize("approved", ["", "0" * 24])
@pytest.mark.parametrize("edited", [None, {"path": "y"}])
def test_what_was_not_approved_is_not_made(approved: str, edited: dict[str, Any] | None) -> None:
    calls = [call("a", "edit", path="x")]
    asking = first_pass(*calls)

    _, emissions = second_pass(
        asking, calls, allowing(asking.changes.asks[0], args=edited, args_hash=approved)
    )

    assert made(emissions) == {}
    assert refused(emissions) == {
        "a": "permission denied: what was approved is not what would be made"
    }


def test_arguments_that_changed_behind_the_approval_are_not_made() -> None:
    calls = [call("a", "edit", path="x")]
    asking = first_pass(*calls)
    other = call("a", "edit", path="y").entry()

    _, emissions = second_pass(asking, calls, allowing(asking.changes.asks[0]), entries=[other])

    assert made(emissions) == {}
    assert "not what would be made" in refused(emissions)["a"]


def test_call_that_was_allowed_and_then_denied_by_a_rule_is_not_made() -> None:
    calls = [call("a", "edit", path="x")]
    asking = first_pass(*calls)
    stricter = Params(permissions={"deny": ["edit"]})

    _, emissions = second_pass(asking, calls, allowing(asking.changes.asks[0]), own=stricter)

    assert made(emissions) == {}


@pytest.mark.parametrize(
    ("settings", "session", "learned", "out"),
    [
        ({"allow": ["edit"]}, {}, [], True),
        ({}, {"allow": ["edit(x)"]}, [], True),
        ({}, {}, ["edit(x)"], True),
        ({"deny": ["edit(x)"]}, {"allow": ["edit"]}, ["edit(x)"], False),
        ({}, {"deny": ["*"]}, ["edit(x)"], False),
    ],
)
def test_rules_of_all_scopes_count(
    settings: Any, session: Any, learned: list[str], out: bool
) -> None:
    emissions = passed(
        call("a", "edit", path="x"),
        own=Params(permissions=settings),
        session={"rules": session, "learned": tuple(learned)},
    )

    assert (made(emissions) != {}) is out
    assert (refused(emissions) == {}) is out


def test_what_was_learned_asks_about_other_arguments() -> None:
    run = first_pass(call("a", "edit", path="y"), session={"learned": ("edit(x)",)})

    assert [ask.args for ask in run.changes.asks] == [{"path": "y"}]


def test_configured_ask_stands_above_what_was_learned() -> None:
    own = Params(permissions={"ask": ["edit"]})

    run = first_pass(call("a", "edit", path="x"), own=own, session={"learned": ("edit(x)",)})

    assert len(run.changes.asks) == 1


def test_session_that_nobody_watches_denies_what_it_would_ask() -> None:
    emissions = passed(call("a", "edit", path="x"), session={"ask_policy": "deny"})

    assert refused(emissions)["a"].startswith("permission denied: nobody can be asked here")


@pytest.mark.parametrize("rules", [{"allows": ["x"]}, {"allow": ["a b"]}, {"deny": "bash"}])
def test_rules_that_are_none_keep_the_cell_from_starting(rules: Any) -> None:
    with pytest.raises(ValidationError):
        Params(permissions=rules)


# More calls than may be made at once.


def test_calls_beyond_the_cap_wait_and_are_let_out_one_by_one() -> None:
    calls = [call(f"c{n}", "read", path=str(n)) for n in range(5)]
    own = Params(max_parallel_tools=2)
    run = of_batch(*calls)

    emissions = permit(batch(*calls), own, run) or []

    assert [*made(emissions)] == ["c0", "c1"]
    assert expected(emissions) == [f"c{n}" for n in range(5)]
    later = of_batch(*calls, fields={**put(run)})
    (sent,) = permit(arriving(route="next", tool_call_id="c3"), own, later) or []
    assert made([sent]) == {"c3": {"path": "3"}}
    assert sent.hop["args_hash"] == digest({"path": "3"})
    for not_waiting in ("c0", "c9"):
        assert permit(arriving(route="next", tool_call_id=not_waiting), own, later) == []


def test_refused_calls_take_no_place_of_those_that_are_made() -> None:
    calls = [call("a", "nothing"), call("b", "read"), call("c", "nothing"), call("d", "read")]

    emissions = passed(*calls, own=Params(max_parallel_tools=2))

    assert [*made(emissions)] == ["b", "d"]
    assert [*refused(emissions)] == ["a", "c"]


# What stands before the tools.


def hooked(
    calls: Sequence[BatchedCall], *entries: Entry, own: Params = OWN, **hop: Any
) -> tuple[RunInHand, list[Emission] | None]:
    run = of_batch(*calls)
    return run, permit(arriving(*entries, **{"route": "batch", **hop}), own, run)


def changed(call_id: str, name: str, args: Any) -> Entry:
    text = json.dumps({"name": name, "arguments": args})
    return Entry(origin="assistant", type="tool_call", id=call_id, text=text)


def test_changed_arguments_are_what_is_judged_and_made() -> None:
    calls = [call("a", "read", path="x")]

    run, emissions = hooked(calls, changed("a", "read", '{"path": "y"}'))

    assert made(emissions or []) == {"a": {"path": "y"}}
    assert events(run, "tool.call")[0]["args"] == {"path": "x"}
    assert events(run, "hook") == [
        {"seam": "before_tool", "call_id": "a", "decision": "changed", "text": '{"path": "y"}'}
    ]
    assert kinds(run) == ["tool.call", "hook"]


def test_changed_arguments_may_be_an_object() -> None:
    _, emissions = hooked([call("a", "read", path="x")], changed("a", "read", {"path": "y"}))

    assert made(emissions or []) == {"a": {"path": "y"}}


def test_changed_arguments_are_denied_asked_about_and_approved_as_changed() -> None:
    calls = [call("a", "read", path="x")]
    own = Params(permissions={"deny": ["read(/etc/*)"], "ask": ["read(/home/*)"]})

    _, denied = hooked(calls, changed("a", "read", {"path": "/etc/x"}), own=own)
    asking, nothing = hooked(calls, changed("a", "read", {"path": "/home/x"}), own=own)

    assert refused(denied or []) == {"a": "permission denied: deny by read(/etc/*) (settings)"}
    assert nothing is None
    (ask,) = asking.changes.asks
    assert ask.args == {"path": "/home/x"}
    run, emissions = second_pass(
        asking, calls, allowing(ask), own=own,
        entries=[changed("a", "read", {"path": "/home/x"})],
    )  # fmt: skip
    assert made(emissions) == {"a": {"path": "/home/x"}}
    assert kinds(run) == []


def test_same_arguments_written_otherwise_are_no_change() -> None:
    run, _ = hooked([call("a", "read", path="x")], changed("a", "read", {"path": "x"}))

    assert events(run, "hook") == []


def test_true_in_place_of_one_is_a_change() -> None:
    run, emissions = hooked([call("a", "read", n=1)], changed("a", "read", {"n": True}))

    assert made(emissions or []) == {"a": {"n": True}}
    assert len(events(run, "hook")) == 1


def test_call_is_refused_by_a_result_in_its_place() -> None:
    calls = [call("a", "read", path="x"), call("b", "read", path="y")]

    run, emissions = hooked(calls, Entry.result("a", "not this", is_error=True), calls[1].entry())

    assert refused(emissions or []) == {"a": "refused by a hook: not this"}
    assert [*made(emissions or [])] == ["b"]
    assert events(run, "hook") == [
        {"seam": "before_tool", "call_id": "a", "decision": "refused", "text": "not this"}
    ]


def test_call_that_a_hook_lost_is_refused() -> None:
    calls = [call("a", "read", path="x"), call("b", "read", path="y")]

    _, emissions = hooked(calls, calls[0].entry())

    assert refused(emissions or []) == {"b": "refused by a hook: it was not passed on"}


@pytest.mark.parametrize("text", [(), (Entry.say("assistant", "not this"),)])
def test_hook_that_fails_refuses_all_of_the_batch(text: Sequence[Entry]) -> None:
    calls = [call("a", "read", path="x"), call("b", "read", path="y")]

    _, emissions = hooked(calls, *text, *(c.entry() for c in calls), error_code="handler_failed")

    assert made(emissions or []) == {}
    assert [*refused(emissions or [])] == ["a", "b"]
    assert "handler_failed" in refused(emissions or [])["a"]
    assert ("not this" in refused(emissions or [])["a"]) is bool(text)


def test_hook_that_says_nothing_refuses_all_of_the_batch() -> None:
    _, emissions = hooked([call("a", "read", path="x")])

    assert [*refused(emissions or [])] == ["a"]


def test_call_cannot_become_one_of_another_tool() -> None:
    run, emissions = hooked([call("a", "read", path="x")], changed("a", "edit", {"path": "x"}))

    assert made(emissions or []) == {}
    assert refused(emissions or []) == {
        "a": "refused by a hook: the call is of another tool than before"
    }
    assert run.changes.asks == []


@pytest.mark.parametrize("args", [None, "[1]", [1], "{", 1])
def test_call_without_arguments_that_are_an_object_is_refused(args: Any) -> None:
    _, emissions = hooked([call("a", "read", path="x")], changed("a", "read", args))

    assert "refused by a hook: the call has no arguments" in refused(emissions or [])["a"]


def test_call_that_a_hook_made_up_is_not_made() -> None:
    calls = [call("a", "read", path="x")]

    _, emissions = hooked(calls, calls[0].entry(), changed("z", "edit", {"path": "x"}))

    assert [*made(emissions or [])] == ["a"]
    assert expected(emissions or []) == ["a"]


def test_problem_of_a_call_stays_whatever_a_hook_makes_of_it() -> None:
    _, emissions = hooked(
        [call("a", "read", problem="truncated: cut off")], changed("a", "read", {"path": "x"})
    )

    assert refused(emissions or []) == {"a": "truncated: cut off"}


# What comes more than once.


def test_batch_that_comes_twice_is_let_out_once() -> None:
    calls = [call("a", "read", path="x")]
    run = of_batch(*calls)
    permit(batch(*calls), OWN, run)
    again = of_batch(*calls, fields=put(run))

    assert permit(batch(*calls), OWN, again) is None
    assert not again.changes.any


def test_batch_that_comes_twice_is_asked_about_once() -> None:
    calls = [call("a", "edit", path="x")]
    asking = first_pass(*calls)
    again = of_batch(*calls, fields=put(asking))

    assert permit(batch(*calls), OWN, again) is None
    assert not again.changes.any


def test_batch_that_says_it_was_decided_is_announced_like_any_other() -> None:
    calls = [call("a", "edit", path="x")]
    run = of_batch(*calls)

    assert permit(batch(*calls, decided="1"), OWN, run) is None
    assert [ask.call_id for ask in run.changes.asks] == ["a"]


def test_late_copy_of_an_earlier_batch_changes_nothing() -> None:
    before, now = call("a", "read", path="x"), call("b", "edit", batch=1, path="y")
    run = of_batch(now, before)

    assert permit(batch(before), OWN, run) is None
    assert not run.changes.any


def test_late_copy_of_an_earlier_turn_changes_nothing() -> None:
    now = call("a", "read", path="x")
    run = of_batch(now)

    assert permit(arriving(now.entry(), context={"iter": 4}, route="batch"), OWN, run) is None
    assert not run.changes.any
