"""The quiet lane: how a question goes on whose results were lost."""

import pytest

from colony.body import Entry
from workers.toolloop.close import close, close_settling
from workers.toolloop.params import ThreadParams
from workers.toolloop.rows import assistant_row, tool_row, user_row

HANDLERS = pytest.mark.parametrize("handler", [close, close_settling])


@pytest.fixture
def rows(called):
    def make(*results, fired=0, iteration=2):
        said = assistant_row("t-7", iteration, [called("a"), called("b")])
        return [
            user_row("t-7", Entry.say("user", "why?")),
            {**said, "fired": fired},
            *(tool_row("t-7", iteration, Entry.result(call_id, "ok")) for call_id in results),
        ]

    return make


@pytest.fixture
def looked(replied):
    """The reply to the look at a question that went quiet."""

    def make(rows, *, lost="message_timeout", outputs=0, **hop):
        return replied("select", rows, hop=hop, lost=lost, outputs=outputs, iter=1)

    return make


@HANDLERS
@pytest.mark.parametrize(("code", "lost"), [("cell_failed", "cell_failed"), (None, "stalled")])
def test_quiet_question_is_looked_at_first(arriving, asked_of_store, handler, code, lost):
    hop = {"route": "quiet", "entry": "/prep", "outputs": 0}
    hop |= {"error_code": code} if code else {}

    (look,) = handler(arriving(hop=hop), ThreadParams())

    assert look.hop == {"route": "look", "lost": lost, "outputs": 0, "iter": 0}
    assert asked_of_store(look)["where"] == {"turn_id": "t-7"}


def test_missing_results_become_error_results_of_their_round(looked, rows, asked_of_store):
    (made,) = close(looked(rows("a")), ThreadParams())

    row = asked_of_store(made)["row"]
    assert (made.hop["route"], made.hop["iter"]) == ("cstore", 2)
    assert (row["iter"], row["role"], row["call_id"]) == (2, "tool", "b")
    assert "message_timeout" in row["turn"]
    assert '"is_error": true' in row["turn"]


def test_missing_results_of_a_settled_round_may_win_it(looked, rows, asked_of_store):
    said, missing = close_settling(looked(rows("a")), ThreadParams())

    assert asked_of_store(said)["expects"] == ["a", "b"]
    assert asked_of_store(missing)["answers"] == ["b"]
    assert {said.hop["iter"], missing.hop["iter"]} == {2}


def test_complete_round_that_nobody_claimed_is_claimed(looked, rows, asked_of_store):
    (looks_again,) = close(looked(rows("a", "b")), ThreadParams())
    (says_again,) = close_settling(looked(rows("a", "b")), ThreadParams())

    assert asked_of_store(looks_again)["operation"] == "select"
    assert (looks_again.hop["route"], looks_again.hop["iter"]) == ("cstore", 2)
    assert asked_of_store(says_again)["row"]["role"] == "assistant"


@HANDLERS
def test_question_that_nothing_can_follow_gets_an_answer(looked, rows, handler):
    for found in ([], rows("a", "b", fired=1), rows("a")[1:]):
        (failed,) = handler(looked(found), ThreadParams())

        assert (failed.hop["route"], failed.hop["error_code"]) == ("failed", "message_timeout")


@HANDLERS
def test_store_that_refuses_the_look_leaves_an_answer(looked, handler):
    (failed,) = handler(looked([], error_code="result_too_large"), ThreadParams())

    assert (failed.hop["route"], failed.hop["error_code"]) == ("failed", "result_too_large")
    assert handler(looked([], error_code="result_too_large", outputs=1), ThreadParams()) == []


@HANDLERS
def test_question_that_was_answered_is_not_answered_again(looked, rows, handler):
    assert handler(looked(rows("a", "b", fired=1), outputs=1), ThreadParams()) == []
