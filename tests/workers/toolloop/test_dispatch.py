import json

import pytest

from colony.body import Entry
from workers.toolloop.dispatch import Params, dispatch


def by_route(emissions):
    return {
        route: [emission for emission in emissions if emission.hop["route"] == route]
        for route in ("c_asst", "tool", "c_res")
    }


def test_answer_leaves_first_and_each_call_under_the_name_of_its_tool(arriving, called):
    calls = (called("a", "web_search"), called("b", "web_fetch", '{"url": "u"}'))

    said, search, fetch = dispatch(arriving(*calls), Params())

    assert said.hop["route"] == "c_asst"
    assert said.body.entries == calls
    assert [search.hop["tool_name"], fetch.hop["tool_name"]] == ["web_search", "web_fetch"]
    assert fetch.body.entries == (
        Entry(origin="assistant", type="tool_call", id="b", text='{"url": "u"}'),
    )


def test_message_without_a_call_is_ignored(arriving):
    assert dispatch(arriving(Entry.say("assistant", "done")), Params()) is None


def test_prose_beside_the_calls_stays_where_it_stood(arriving, called):
    """Which is behind them, as the llm cell emits it and reads it back into one message."""
    entries = (called("a"), Entry.say("assistant", "let me see"))

    said, _ = dispatch(arriving(*entries), Params())

    assert said.body.entries == entries


def test_exact_repeat_of_a_call_is_dropped(arriving, called):
    made = by_route(dispatch(arriving(called("a"), called("a")), Params()))

    assert [entry.id for entry in made["c_asst"][0].body.entries] == ["a"]
    assert len(made["tool"]) == 1


def test_exact_repeat_of_a_call_that_got_another_id_is_dropped(arriving, called):
    calls = (called("a", "one"), called("a", "two"), called("a", "two"))

    assert len(by_route(dispatch(arriving(*calls), Params()))["tool"]) == 2


@pytest.mark.parametrize(
    "ids", [("a", "a"), ("", ""), ("", "a"), ("a", "@question"), ("@question", "@question")]
)
def test_ids_that_cannot_tell_calls_apart_are_derived(arriving, called, ids):
    calls = (called(ids[0], "one"), called(ids[1], "two"))

    made = by_route(dispatch(arriving(*calls), Params()))

    remembered = [entry.id for entry in made["c_asst"][0].body.entries]
    assert len({*remembered} - {"", "@question"}) == 2
    assert [emission.body.entries[0].id for emission in made["tool"]] == remembered
    assert dispatch(arriving(*calls), Params()) == dispatch(arriving(*calls), Params())


def test_derived_ids_differ_between_rounds(arriving, called):
    first = dispatch(arriving(called("")), Params())[0].body.entries[0].id
    second = dispatch(arriving(called(""), iter=1), Params())[0].body.entries[0].id

    assert first != second


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no json", "malformed_tool_call"),
        ("[1]", "malformed_tool_call"),
        ("[" * 100_000, "malformed_tool_call"),
        ('{"arguments": "{}"}', "missing_name"),
        ('{"name": "", "arguments": "{}"}', "missing_name"),
        ('{"name": 5, "arguments": "{}"}', "missing_name"),
        ('{"name": "f", "arguments": "{\\"q\\": "}', "invalid_arguments"),
        ('{"name": "f", "arguments": "[1]"}', "invalid_arguments"),
        ('{"name": "f", "arguments": [1]}', "invalid_arguments"),
        ('{"name": "f", "arguments": "null"}', "invalid_arguments"),
        ('{"name": "f", "arguments": "{\\"q\\": NaN}"}', "invalid_arguments"),
    ],
)
def test_call_that_cannot_be_run_is_answered_under_its_id(arriving, called, text, code):
    broken = Entry(origin="assistant", type="tool_call", id="b", text=text)

    made = by_route(dispatch(arriving(called("a"), broken), Params()))

    (refusal,) = made["c_res"]
    (result,) = refusal.body.entries
    assert (result.type, result.id, result.is_error) == ("tool_result", "b", True)
    assert result.text.startswith(code)
    assert refusal.hop["error_code"] == code
    assert [emission.hop["tool_call_id"] for emission in made["tool"]] == ["a"]


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ({"name": "f", "arguments": '{"q": "fo'}, "truncated"),
        ({"name": "f", "arguments": '{"q": 1}'}, "truncated"),
        ({"name": "f", "arguments": '{"q": "fo'}, "invalid_arguments"),
        ({"name": "", "arguments": "{}"}, "missing_name"),
    ],
)
def test_call_with_a_problem_is_answered_by_its_code_and_never_run(arriving, function, code):
    text = json.dumps({**function, "problem": code})
    call = Entry(origin="assistant", type="tool_call", id="b", text=text)

    made = by_route(dispatch(arriving(call), Params()))

    (refusal,) = made["c_res"]
    (result,) = refusal.body.entries
    assert (result.id, result.is_error) == ("b", True)
    assert result.text.startswith(f"{code}: ")
    assert refusal.hop["error_code"] == code
    assert made["tool"] == []
    remembered = json.loads(made["c_asst"][0].body.entries[0].text)
    assert set(remembered) == {"name", "arguments"}
    assert remembered["name"]
    assert isinstance(json.loads(remembered["arguments"]), dict)


@pytest.mark.parametrize("problem", ["no_such_problem", "", 5, ["truncated"], {"x": 1}, True])
def test_problem_of_another_name_is_a_problem_too(arriving, problem):
    text = json.dumps({"name": "f", "arguments": "{}", "problem": problem})
    call = Entry(origin="assistant", type="tool_call", id="b", text=text)

    made = by_route(dispatch(arriving(call), Params()))

    assert made["c_res"][0].hop["error_code"] == "malformed_tool_call"
    assert made["tool"] == []


def test_calls_with_problems_do_not_keep_the_others_from_being_run(arriving, called):
    text = json.dumps({"name": "f", "arguments": "{}", "problem": "truncated"})
    bad = Entry(origin="assistant", type="tool_call", id="b", text=text)
    over = [called(f"c{n}") for n in range(16)]

    made = by_route(dispatch(arriving(called("a"), bad, *over), Params()))

    assert [emission.hop["tool_call_id"] for emission in made["tool"]] == [
        "a",
        *(f"c{n}" for n in range(14)),
    ]
    assert [entry.id for entry in made["c_res"][0].body.entries] == ["b", "c14", "c15"]


def test_call_that_cannot_be_run_is_remembered_as_providers_accept_it(arriving):
    broken = Entry(origin="assistant", type="tool_call", id="b", text="no json")

    said, _ = dispatch(arriving(broken), Params())

    function = json.loads(said.body.entries[0].text)
    assert function["name"]
    assert json.loads(function["arguments"]) == {}


@pytest.mark.parametrize(
    ("arguments", "handed"),
    [
        (None, "{}"),
        ("", "{}"),
        ({"q": "é"}, '{"q": "é"}'),
        ('{"q":  1}', '{"q":  1}'),
        (json.dumps('{"q": 1}'), '{"q": 1}'),
    ],
)
def test_arguments_are_read_as_providers_write_them(arriving, called, arguments, handed):
    said, call = dispatch(arriving(called("a", "f", arguments)), Params())

    assert call.body.entries[0].text == handed
    assert json.loads(said.body.entries[0].text) == {"name": "f", "arguments": handed}


def test_calls_beyond_the_budget_are_answered_and_not_run(arriving, called):
    made = by_route(dispatch(arriving(*(called(f"c{n}") for n in range(19))), Params()))

    assert len(made["c_asst"][0].body.entries) == 19
    assert len(made["tool"]) == 16
    (refusal,) = made["c_res"]
    assert [entry.id for entry in refusal.body.entries] == ["c16", "c17", "c18"]
    assert refusal.hop["error_code"] == "call_budget_exceeded"


def test_vendor_fields_of_a_call_are_kept(arriving, called):
    call = called("").model_copy(update={"vendor": {"signature": "s"}})

    said, _ = dispatch(arriving(call), Params())

    assert said.body.entries[0].vendor == {"signature": "s"}
