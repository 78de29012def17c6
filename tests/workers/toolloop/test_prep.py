import json

import pytest

from colony.body import Entry
from workers.toolloop.prep import QUESTION_CHARACTERS, prep, prep_settling


def test_question_leaves_as_its_row_and_then_as_the_thread(arriving, asked_of_store):
    row, thread = prep(arriving(Entry.say("user", "why?"), turn_id=None), {})

    assert (row.hop["route"], thread.hop["route"]) == ("ustore", "ullm")
    assert asked_of_store(row)["row"] == {
        "turn_id": "m-1",
        "iter": 0,
        "role": "user",
        "call_id": "@question",
        "turn": '{"origin": "user", "type": "text", "text": "why?"}',
    }
    assert thread.body.entries == (Entry.say("user", "why?"),)
    assert thread.hop["turn_id"] == "m-1"
    assert thread.hop["question"] == "why?"


def test_question_that_is_handled_twice_is_the_same_question(arriving):
    envelope = arriving(Entry.say("user", "why?"), turn_id=None)

    assert prep(envelope, {}) == prep(envelope, {})


def test_turn_id_of_the_caller_wins(arriving):
    _, thread = prep(arriving(Entry.say("user", "why?"), turn_id="t-9"), {})

    assert thread.hop["turn_id"] == "t-9"


def test_reply_of_the_store_is_not_a_question(replied):
    assert prep(replied("insert"), {}) is None


def test_first_text_of_the_user_is_the_question(arriving):
    entries = (Entry.say("assistant", "hi"), Entry.say("user", "one"), Entry.say("user", "two"))

    _, thread = prep(arriving(*entries), {})

    assert [entry.text for entry in thread.body.entries] == ["one"]


def test_persona_and_tools_become_the_system_slot(arriving):
    tool = {"description": "Search.", "parameters": {"type": "object"}}
    params = {"persona": "Be kind.", "tools": {"web_search": tool}}

    _, thread = prep(arriving(Entry.say("user", "why?")), params)

    system = thread.body.system
    assert system["identity"] == {"soul": {"text": "Be kind."}}
    assert json.loads(system["tools"]["web_search"]["text"]) == {
        "type": "function",
        "function": {"name": "web_search", **tool},
    }


def test_long_question_rides_in_the_headers_by_its_beginning_only(arriving):
    text = "x" * 100_000

    _, thread = prep(arriving(Entry.say("user", text)), {})

    assert thread.hop["question"] == text[:QUESTION_CHARACTERS]
    assert thread.body.entries[0].text == text


def test_row_of_a_settled_question_is_an_answer_of_its_first_round(arriving, asked_of_store):
    row, _ = prep_settling(arriving(Entry.say("user", "why?")), {})

    operation = asked_of_store(row)
    assert operation["operation"] == "settle"
    assert operation["answers"] == ["@question"]
    assert operation["key"] == {"turn_id": "t-7", "iter": 0}


def test_misspelled_param_is_refused(arriving):
    with pytest.raises(ValueError, match="personna"):
        prep(arriving(Entry.say("user", "why?")), {"personna": "x"})
