import json

import pytest

from colony.body import Entry
from colony.operations import parse_operation
from workers.toolloop.conversation import MAX_VIEW_BYTES
from workers.toolloop.prep import QUESTION_CHARACTERS, Params, prep, prep_settling


def test_question_leaves_as_its_row_and_then_as_the_thread(arriving, asked_of_store):
    row, thread = prep(arriving(Entry.say("user", "why?"), turn_id=None), Params())

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

    assert prep(envelope, Params()) == prep(envelope, Params())


def test_turn_id_of_the_caller_wins(arriving):
    _, thread = prep(arriving(Entry.say("user", "why?"), turn_id="t-9"), Params())

    assert thread.hop["turn_id"] == "t-9"


def test_reply_of_the_store_is_not_a_question(replied):
    assert prep(replied("insert"), Params()) is None


def test_first_text_of_the_user_is_the_question(arriving):
    entries = (Entry.say("assistant", "hi"), Entry.say("user", "one"), Entry.say("user", "two"))

    _, thread = prep(arriving(*entries), Params())

    assert [entry.text for entry in thread.body.entries] == ["one"]


def test_persona_and_tools_become_the_system_slot(arriving):
    tool = {"description": "Search.", "parameters": {"type": "object"}}
    params = Params.model_validate({"persona": "Be kind.", "tools": {"web_search": tool}})

    _, thread = prep(arriving(Entry.say("user", "why?")), params)

    system = thread.body.system
    assert system["identity"] == {"soul": {"text": "Be kind."}}
    assert json.loads(system["tools"]["web_search"]["text"]) == {
        "type": "function",
        "function": {"name": "web_search", **tool},
    }


def test_long_question_rides_in_the_headers_by_its_beginning_only(arriving):
    text = "x" * 100_000

    _, thread = prep(arriving(Entry.say("user", text)), Params())

    assert thread.hop["question"] == text[:QUESTION_CHARACTERS]
    assert thread.body.entries[0].text == text


def test_row_of_a_settled_question_is_an_answer_of_its_first_round(arriving, asked_of_store):
    row, _ = prep_settling(arriving(Entry.say("user", "why?")), Params())

    operation = asked_of_store(row)
    assert operation["operation"] == "settle"
    assert operation["answers"] == ["@question"]
    assert operation["key"] == {"turn_id": "t-7", "iter": 0}


def test_misspelled_param_is_refused():
    with pytest.raises(ValueError, match="personna"):
        Params.model_validate({"personna": "x"})


# In a session

KEPT = Params(conversation="talk")
ASKED = Entry(origin="user", type="text", text="and then?", happened_at="now")


def answered(question, answer, turn_id="t-1"):
    return {
        "turn_id": turn_id,
        "question": json.dumps(Entry.say("user", question).to_json()),
        "answer": json.dumps([Entry.say("assistant", answer).to_json()]),
    }


@pytest.fixture
def recalled(replied):
    """Makes the reply of the store to the request for the conversation."""

    def make(rows, count=None, **hop):
        reply = replied("newest", rows, session_id="s", store_origin="recall")
        told = {"rows_affected": len(rows) if count is None else count, **hop}
        body = reply.body.model_copy(update={"messages": (*reply.body.entries, ASKED)})
        return reply.model_copy(update={"hop": {**reply.hop, **told}, "body": body})

    return make


@pytest.mark.parametrize("handler", [prep, prep_settling])
def test_question_in_a_session_first_asks_for_its_conversation(arriving, handler):
    envelope = arriving(Entry.say("system", "x"), ASKED, turn_id=None, session_id="s")

    (asking,) = handler(envelope, Params(conversation="talk", max_questions=3, max_view_bytes=500))

    assert asking.hop == {"route": "recall", "turn_id": "m-1", "question": "and then?"}
    call, behind = asking.body.entries
    assert json.loads(call.text) == {
        "operation": "newest",
        "table": "talk",
        "columns": ["turn_id", "question", "answer"],
        "where": {"session_id": "s"},
        "limit": 3,
        "max_bytes": 1000,
    }
    assert behind == ASKED
    assert handler(envelope, KEPT) == handler(envelope, KEPT)


def test_question_of_a_cell_that_did_an_operation_asks_for_its_conversation_too(arriving):
    envelope = arriving(ASKED, session_id="s")
    hop = {"operation": "web_fetch"}

    (asking,) = prep(envelope.model_copy(update={"hop": hop}), KEPT)

    assert asking.hop["route"] == "recall"


def test_conversation_is_asked_for_within_what_a_store_gives(arriving):
    most = Params(conversation="talk", max_view_bytes=MAX_VIEW_BYTES)

    (asking,) = prep(arriving(ASKED, session_id="s"), most)

    assert parse_operation(asking.body.entries[0].text).operation == "newest"
    with pytest.raises(ValueError, match="max_view_bytes"):
        Params(conversation="talk", max_view_bytes=MAX_VIEW_BYTES + 1)


@pytest.mark.parametrize("handler", [prep, prep_settling])
@pytest.mark.parametrize(
    ("context", "params"), [({}, KEPT), ({"session_id": ""}, KEPT), ({"session_id": "s"}, Params())]
)
def test_question_without_session_or_table_stands_alone(arriving, handler, context, params):
    made = handler(arriving(ASKED, **context), params)

    assert made == handler(arriving(ASKED), Params())
    assert [emission.hop["route"] for emission in made] == ["ustore", "ullm"]


@pytest.mark.parametrize("handler", [prep, prep_settling])
def test_question_begins_with_what_was_said_before(recalled, asked_of_store, handler):
    reply = recalled([answered("why?", "because")])

    stored, kept, thread = handler(reply, Params(conversation="talk", persona="Be kind."))

    said = (Entry.say("user", "why?"), Entry.say("assistant", "because"), ASKED)
    assert thread.body.entries == said
    assert thread.body.system is not None
    row = asked_of_store(stored)["row"]
    assert json.loads(row["turn"]) == [entry.to_json() for entry in said]
    assert (row["turn_id"], row["iter"], row["role"]) == ("t-7", 0, "user")
    assert asked_of_store(kept) == {
        "operation": "upsert",
        "table": "talk",
        "row": {"turn_id": "t-7", "question": json.dumps(ASKED.to_json())},
    }
    assert [emission.hop["route"] for emission in (stored, kept, thread)] == [
        "ustore",
        "ustore",
        "ullm",
    ]
    assert all(emission.hop["turn_id"] == "t-7" for emission in (stored, kept, thread))
    assert handler(reply, KEPT) == handler(reply, KEPT)


def test_first_question_of_a_session_is_as_one_without(recalled, arriving):
    stored, _, thread = prep(recalled([]), KEPT)

    assert [stored, thread] == prep(arriving(ASKED), Params())


def test_question_goes_on_where_its_conversation_cannot_be_read(recalled, caplog):
    reply = recalled({"error": "query_timeout"}, count=0, error_code="query_timeout")

    _, _, thread = prep(reply, KEPT)

    assert thread.body.entries == (ASKED,)
    assert thread.hop["recall_error"] == "query_timeout"
    (line,) = caplog.records
    assert (line.levelname, line.name) == ("WARNING", "workers.toolloop")
    for part in ("recall_failed", "talk", "query_timeout", "trace-1", "/cell"):
        assert part in caplog.text


def test_question_that_is_asked_for_twice_does_not_see_its_own_answer(recalled):
    rows = [answered("why?", "because"), answered("and then?", "that", turn_id="t-7")]

    _, _, thread = prep(recalled(rows), KEPT)

    assert [entry.text for entry in thread.body.entries] == ["why?", "because", "and then?"]
