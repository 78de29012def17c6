"""Threads as they come out of stores and views, and what is sent of them."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colony.body import Entry
from colony.testing.threads import block_problem, problem
from workers.llm.servers.message_blocks import to_alternating
from workers.llm.servers.wire import Wire
from workers.llm.threads.pairing import MISSING, repaired
from workers.llm.threads.thread import to_messages

QUESTION = Entry.say("user", "why?")


def call(call_id, name="look", arguments="{}", **more):
    text = json.dumps({"name": name, "arguments": arguments, **more})
    return Entry(origin="assistant", type="tool_call", id=call_id, text=text)


def result(call_id, text="found"):
    return Entry.result(call_id, text)


def say(text):
    return Entry.say("assistant", text)


def lost(call_id):
    return Entry.result(call_id, MISSING, is_error=True)


def conversation():
    """Twenty messages: three questions, rounds of one to four calls, ids that are used again."""
    entries = []
    for number in range(3):
        entries.append(Entry.say("user", f"question {number}"))
        for round_number in range(2 if number else 3):
            ids = [f"call_{n}" for n in range(1 + (number + round_number) % 4)]
            entries += [call(i, arguments=f'{{"at": {round_number}}}') for i in ids]
            entries += [say(f"beside {round_number}")] if round_number else []
            entries += [result(i, f"{number}.{round_number}.{i}") for i in ids]
        entries.append(say(f"answer {number}"))
    return entries


CONVERSATION = conversation()


def accepted(entries):
    messages = to_messages(entries, "You are.")
    return problem(messages) if isinstance(messages, list) else messages


def test_the_conversation_of_these_tests_is_as_long_as_it_says():
    assert len(to_messages(CONVERSATION, None)) >= 20
    assert accepted(CONVERSATION) is None


@pytest.mark.parametrize("cut", range(len(CONVERSATION)))
def test_any_end_of_a_thread_is_accepted_and_its_whole_turns_are_untouched(cut):
    left = CONVERSATION[cut:]

    entries, repairs = repaired(left)

    assert accepted(entries) is None
    assert set(repairs) <= {"orphan_result", "missing_result"}
    whole = next((n for n, e in enumerate(left) if e.origin == "user"), len(left))
    assert list(entries[len(entries) - len(left) + whole :]) == left[whole:]


@pytest.mark.parametrize("cut", range(len(CONVERSATION)))
def test_any_beginning_of_a_thread_is_accepted_and_nothing_of_it_is_lost(cut):
    left = CONVERSATION[:cut]

    entries, repairs = repaired(left)

    assert accepted([QUESTION, *entries]) is None
    assert set(repairs) <= {"missing_result"}
    assert list(entries[: len(left)]) == left


@st.composite
def damaged(draw):
    """A cut, shuffled and doubled conversation, some of it without ids, names and arguments."""
    picked = draw(st.lists(st.sampled_from(CONVERSATION), max_size=40))
    kept = draw(st.sampled_from([picked, CONVERSATION]))
    entries = list(draw(st.permutations(kept[: draw(st.integers(0, len(kept)))])))
    for at in draw(st.lists(st.integers(0, 60), max_size=6)):
        broken = draw(st.sampled_from([call("", "", ""), call("call_0", "", "{"), result("")]))
        entries.insert(at, broken)
    return entries


@given(damaged())
def test_whatever_happened_to_a_thread_it_is_accepted_and_repaired_once(entries):
    mended, repairs = repaired(entries)

    assert not entries or accepted([QUESTION, *mended]) is None
    assert repaired(mended) == (mended, {})
    assert repaired(list(entries)) == (mended, repairs)
    assert bool(repairs) == (list(mended) != list(entries))
    said = [e for e in entries if e.type == "text"]
    assert [e for e in mended if e.type == "text"] == said


@given(damaged())
def test_whatever_happened_to_a_thread_it_is_accepted_by_the_messages_api(entries):
    assert block_problem(to_alternating([QUESTION, *repaired(entries)[0]])) is None


FORGED = {
    "openai": {
        "turn": {
            "reasoning": "r",
            "tool_calls": [{"id": "z"}],
            "tool_call_id": "z",
            "role": "tool",
        },
        "call": {"id": "z", "type": "q", "own": 1, "function": {"name": "", "arguments": "{"}},
    },
    "anthropic": {
        part: {
            "blocks": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "z"},
                {"type": "tool_result", "tool_use_id": "z"},
                {"type": "text", "text": ""},
                {"no": "type"},
                {"type": 1},
                3,
            ]
        }
        for part in ("turn", "call")
    },
}
IDS = st.sampled_from(["a", "b", "call_0", "", " ", " a", "é", "x" * 300, "call.1", "\u2028"])
TEXTS = st.sampled_from(["", "  ", "\n", "{}", "said"])
NAMES = st.sampled_from(["look", "", None, "multi.tool use", "é", "x" * 200])
ARGUMENTS = st.sampled_from(
    ["{}", "", "{", "[]", "null", '{"a": NaN}', '"{}"', {"a": 1}, [1], None, 5]
)
ORIGINS = st.sampled_from(["user", "assistant", "system", "tool"])


@st.composite
def entries_of_any_kind(draw):
    kind = draw(st.sampled_from(["call", "call", "result", "result", "text"]))
    if kind == "call":
        entry = call(draw(IDS), draw(NAMES), draw(ARGUMENTS))
    elif kind == "result":
        entry = Entry.result(draw(IDS), draw(TEXTS), is_error=draw(st.booleans()))
    else:
        entry = Entry.say(draw(ORIGINS), draw(TEXTS))
    vendor = draw(st.sampled_from([None, None, FORGED, {"openai": 5, "anthropic": []}]))
    return entry.model_copy(update={"vendor": vendor})


@given(st.lists(entries_of_any_kind(), max_size=16))
def test_any_entries_at_all_become_a_thread_that_every_server_accepts(entries):
    kept = json.dumps([entry.vendor for entry in entries])
    mended, repairs = repaired(entries)

    assert repaired(mended) == (mended, {})
    assert bool(repairs) == (list(mended) != entries)
    messages = to_messages([QUESTION, *mended], None)
    assert problem(Wire("mistral", "empty").written(messages)) is None
    assert problem(messages) is None
    assert block_problem(to_alternating([QUESTION, *mended])) is None
    assert json.dumps([entry.vendor for entry in entries]) == kept


def test_a_name_that_no_server_takes_back_is_sent_without_what_is_wrong_with_it():
    messages = to_messages([QUESTION, call("a", "functions.look up"), result("a")], None)

    assert messages[1]["tool_calls"][0]["function"]["name"] == "functions_look_up"


def test_an_id_that_a_later_turn_uses_again_is_another_one_where_ids_are_of_the_whole_thread():
    thread = [QUESTION, *[call("a"), result("a", "1"), call("a"), result("a", "2")]]

    messages = to_alternating(thread)

    ids = [message["content"][0].get("id") for message in messages[1::2]]
    answered = [message["content"][0].get("tool_use_id") for message in messages[2::2]]
    assert ids == answered
    assert ids[0] == "a" != ids[1]
    assert [message["content"][0]["content"] for message in messages[2::2]] == ["1", "2"]


@given(damaged())
def test_no_result_is_counted_twice_or_lost_uncounted(entries):
    mended, repairs = repaired(entries)

    def results(thread):
        return sum(e.type == "tool_result" for e in thread)

    made, left_out = repairs.get("missing_result", 0), ("orphan_result", "duplicate_result")
    gone = sum(repairs.get(kind, 0) for kind in left_out)
    assert results(mended) == results(entries) + made - gone


def test_a_thread_without_a_flaw_is_left_as_it_is():
    entries, repairs = repaired(CONVERSATION)

    assert repairs == {}
    assert all(one is other for one, other in zip(entries, CONVERSATION, strict=True))


def test_a_call_without_a_result_gets_one_that_says_so():
    entries, repairs = repaired([QUESTION, call("a"), call("b"), result("b"), QUESTION])

    assert entries == (QUESTION, call("a"), call("b"), lost("a"), result("b"), QUESTION)
    assert repairs == {"missing_result": 1}


def test_results_that_come_late_or_in_another_order_are_moved():
    late = [QUESTION, call("a"), call("b"), QUESTION, result("b", "2"), result("a", "1"), say("x")]

    entries, repairs = repaired(late)

    in_order = (call("a"), call("b"), result("a", "1"), result("b", "2"))
    assert entries == (QUESTION, *in_order, QUESTION, say("x"))
    assert repairs == {"moved_result": 2}


def test_a_result_that_stands_before_its_call_is_moved_behind_it():
    entries, repairs = repaired([QUESTION, result("a"), call("a"), say("x")])

    assert entries == (QUESTION, call("a"), say("x"), result("a"))
    assert repairs == {"moved_result": 1}


def test_of_several_results_the_first_counts():
    entries, repairs = repaired([QUESTION, call("a"), result("a", "1"), say("x"), result("a", "2")])

    assert entries == (QUESTION, call("a"), result("a", "1"), say("x"))
    assert repairs == {"duplicate_result": 1}


def test_results_without_a_call_are_left_out():
    entries, repairs = repaired([QUESTION, result("z"), call("a"), result("a"), result("y")])

    assert entries == (QUESTION, call("a"), result("a"))
    assert repairs == {"orphan_result": 2}


def test_an_id_that_a_later_turn_uses_again_is_that_of_another_call():
    rounds = [
        QUESTION,
        call("call_0"),
        result("call_0", "1"),
        call("call_0"),
        result("call_0", "2"),
    ]

    assert repaired(rounds) == (tuple(rounds), {})
    assert repaired(rounds[:-1])[0][-1] == lost("call_0")
    # The rest of a turn that was cut away is no result of the next one.
    assert repaired(rounds[2:-1])[0] == (call("call_0"), lost("call_0"))


def test_a_call_that_is_said_twice_is_sent_once():
    entries, repairs = repaired([QUESTION, call("a"), call("a"), result("a"), result("a")])

    assert entries == (QUESTION, call("a"), result("a"))
    assert repairs == {"duplicate_call": 1, "duplicate_result": 1}


@pytest.mark.parametrize("ids", [("a", "a"), ("", "")])
def test_calls_that_share_an_id_get_their_own_and_their_results_in_order(ids):
    calls = [call(ids[0], "one"), call(ids[1], "two")]

    entries, repairs = repaired([QUESTION, *calls, result(ids[0], "1"), result(ids[1], "2")])

    called, answered = [e.id for e in entries[1:3]], [e.id for e in entries[3:]]
    assert called == answered
    assert len(set(called)) == 2
    assert [e.text for e in entries[3:]] == ["1", "2"]
    assert set(repairs) == {"renamed_call"}


def test_an_id_that_is_made_up_stays_when_earlier_turns_leave():
    thread = [QUESTION, call("a"), result("a"), call("", "two"), result("", "2")]

    assert repaired(thread)[0][-2:] == repaired(thread[3:])[0]


NO_OBJECT = ["no json", '{"q": ', "[1]", "null", '"x"', 5, " ", '{"q": NaN}', '{"q": "\\ud800"}']


@pytest.mark.parametrize("written", NO_OBJECT)
def test_arguments_that_are_no_object_are_sent_as_an_empty_one(written):
    broken = call("a", arguments=written)

    entries, repairs = repaired([QUESTION, broken, result("a")])

    (sent,) = to_messages(entries, None)[1]["tool_calls"]
    assert sent["function"] == {"name": "look", "arguments": "{}"}
    assert repairs == {"replaced_arguments": 1}


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        (None, "{}"),
        ("", "{}"),
        ({"q": 1}, '{"q": 1}'),
        ('{"q":  1}', '{"q":  1}'),
        (json.dumps('{"q": 1}'), '{"q": 1}'),
    ],
)
def test_arguments_that_are_an_object_in_another_form_need_no_repair(written, sent):
    thread = (QUESTION, call("a", arguments=written), result("a"))

    assert repaired(thread) == (thread, {})
    assert to_messages(thread, None)[1]["tool_calls"][0]["function"]["arguments"] == sent


@pytest.mark.parametrize("name", ["", None])
def test_a_call_without_a_name_is_sent_with_a_placeholder(name):
    entries, repairs = repaired([QUESTION, call("a", name), result("a")])

    (sent,) = to_messages(entries, None)[1]["tool_calls"]
    assert sent["function"]["name"] == "unknown"
    assert repairs == {"replaced_name": 1}


def test_the_problem_of_a_call_is_not_sent():
    call_of = [QUESTION, call("a", arguments='{"q": 1}', problem="truncated"), result("a")]

    (sent,) = to_messages(repaired(call_of)[0], None)[1]["tool_calls"]

    assert sent["function"] == {"name": "look", "arguments": '{"q": 1}'}


def test_kinds_are_counted_in_one_order():
    broken = [QUESTION, result("z"), call("b", "", "{"), call("a"), QUESTION, result("a")]

    repairs = repaired(broken)[1]

    assert list(repairs) == sorted(repairs)
    assert Counter(repairs) == Counter(
        orphan_result=1, replaced_name=1, replaced_arguments=1, missing_result=1, moved_result=1
    )
