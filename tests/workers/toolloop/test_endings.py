"""The cells at the ends of the loop: archive, drain, unknown, remember, park, fixed."""

import json

import pytest

from colony.body import Entry
from workers.toolloop import archive as archiving
from workers.toolloop import drain as draining
from workers.toolloop import fixed as fixing
from workers.toolloop import remember as remembering
from workers.toolloop.archive import archive
from workers.toolloop.drain import drain
from workers.toolloop.fixed import fixed
from workers.toolloop.params import HandlerParams
from workers.toolloop.park import park
from workers.toolloop.remember import remember
from workers.toolloop.unknown import unknown

SAID_MORE = Entry.say("assistant", "and so on")


def call(text):
    return Entry(origin="assistant", type="tool_call", id="c", text=text)


def test_answer_is_archived_beside_its_question(arriving, asked_of_store):
    envelope = arriving(Entry.say("assistant", "because"), question="why?")

    made = archive(envelope, archiving.Params())

    (kept,) = made
    row = asked_of_store(kept)["row"]
    assert (row["question"], row["answer"]) == ("why?", "because")
    assert archive(envelope, archiving.Params()) == made


KEPT = archiving.Params(conversation="conversation")


def test_answer_in_a_session_joins_its_conversation(arriving, asked_of_store):
    thought = {"anthropic": {"turn": {"blocks": [{"type": "thinking"}]}}}
    said = (Entry(origin="assistant", type="text", text="because", vendor=thought), SAID_MORE)

    _, joined = archive(arriving(*said, session_id="s"), KEPT)

    operation = asked_of_store(joined)
    assert (operation["operation"], operation["table"]) == ("upsert", "conversation")
    assert operation["row"] == {
        "turn_id": "t-7",
        "session_id": "s",
        "answer": json.dumps([entry.to_json() for entry in said]),
    }


@pytest.mark.parametrize(
    ("said", "context", "params"),
    [
        ("because", {}, KEPT),
        ("because", {"session_id": ""}, KEPT),
        ("because", {"session_id": 7}, KEPT),
        ("because", {"session_id": "s"}, archiving.Params()),
        (" \n", {"session_id": "s"}, KEPT),
    ],
)
def test_answer_joins_no_conversation_without_session_table_or_words(
    arriving, said, context, params
):
    made = archive(arriving(Entry.say("assistant", said), **context), params)

    assert len(made) == 1


def test_reply_of_the_store_is_not_archived(replied):
    assert archive(replied("insert"), archiving.Params()) is None


@pytest.mark.parametrize(
    ("hop", "kind"),
    [
        ({"error_code": "rate_limited", "finish_reason": "error"}, "rate_limited"),
        ({"tool_name": "teleport"}, "teleport"),
        ({"finish_reason": "content_filter"}, "content_filter"),
        ({"route": "fire", "error_code": "iteration_limit"}, "iteration_limit"),
        ({}, "unknown"),
    ],
)
def test_whatever_cannot_go_on_is_kept_and_answered(arriving, asked_of_store, hop, kind):
    stored, told = drain(
        arriving(Entry.say("user", "why?"), hop=hop, question="why?"), draining.Params()
    )

    row = asked_of_store(stored)["row"]
    assert (stored.hop["route"], told.hop["route"]) == ("store", "answer")
    assert (row["kind"], row["question"]) == (kind, "why?")
    assert told.hop["error_code"] == kind
    assert told.body.first("assistant").text


def test_beginning_of_an_answer_that_was_cut_off_is_told(arriving):
    envelope = arriving(Entry.say("assistant", "It was"), hop={"finish_reason": "length"})

    _, told = drain(envelope, draining.Params())

    assert told.body.first("assistant").text.startswith("It was\n\n[")


def test_prose_of_an_earlier_round_is_not_told_as_the_answer(arriving):
    envelope = arriving(Entry.say("assistant", "let me see"), hop={"error_code": "timeout"})

    _, told = drain(envelope, draining.Params())

    assert "let me see" not in told.body.first("assistant").text


def test_words_for_an_error_can_be_set(arriving):
    params = draining.Params(answers={"timeout": "Zu langsam."}, otherwise="Fehler {kind}.")

    texts = [
        drain(arriving(hop={"error_code": code}), params)[1].body.first("assistant").text
        for code in ("timeout", "auth")
    ]

    assert texts == ["Zu langsam.", "Fehler auth."]


def test_payload_of_an_error_is_bounded(arriving, asked_of_store):
    stored, _ = drain(
        arriving(Entry.say("user", "x" * 10_000), hop={"error_code": "auth"}), draining.Params()
    )

    assert len(asked_of_store(stored)["row"]["payload"]) == 4_000


@pytest.mark.parametrize("operation", ["insert", "settle"])
def test_reply_of_the_store_to_the_row_of_an_error_is_no_error(replied, operation):
    assert drain(replied(operation, hop={"error_code": "sql_error"}), draining.Params()) is None


def test_call_of_a_tool_that_does_not_exist_is_answered_under_its_id(arriving):
    made = unknown(arriving(call("{}"), hop={"tool_name": "teleport"}), HandlerParams())

    (result,) = made.body.entries
    assert (made.hop["route"], made.hop["error_code"]) == ("c_res", "unknown_tool")
    assert (result.id, result.is_error) == ("c", True)
    assert "teleport" in result.text


def test_note_goes_to_the_store_under_the_id_of_its_call(arriving, asked_of_store):
    made = remember(arriving(call('{"text": "it rained"}'), question="why?"), remembering.Params())

    operation = asked_of_store(made)
    assert made.body.entries[0].id == "c"
    assert (operation["operation"], operation["table"]) == ("insert", "notes")
    assert (operation["row"]["question"], operation["row"]["text"]) == ("why?", "it rained")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"text": 5}', '{"text": " "}', '{"operation": "delete", "text": "x"}']
)
def test_arguments_that_are_no_note_are_answered_and_never_reach_the_store(arriving, text):
    made = remember(arriving(call(text)), remembering.Params())

    (result,) = made.body.entries
    assert made.hop["route"] == "c_res"
    assert (result.id, result.is_error) == ("c", True)


def test_fixed_tool_says_the_same_to_every_call(arriving):
    made = fixed(arriving(call("{}"), call("{}")), fixing.Params(text="42"))

    assert [entry.text for entry in made.body.entries] == ["42", "42"]


def test_park_ends_a_chain(arriving):
    assert park(arriving(), {}) is None


def test_what_a_provider_said_is_kept_and_goes_along_with_the_answer(arriving, asked_of_store):
    error = {"source": "provider", "detail": "no such host", "code": "provider_error"}
    envelope = arriving(Entry.say("user", "why?"), hop={"error_code": "provider_error"})
    body = envelope.body.model_copy(update={"meta": {"error": error}})

    stored, told = drain(envelope.model_copy(update={"body": body}), draining.Params())

    assert told.body.to_json()["meta"] == {"error": error}
    assert "no such host" in asked_of_store(stored)["row"]["payload"]
