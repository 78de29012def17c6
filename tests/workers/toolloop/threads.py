"""Threads of any shape, as the rows of a store tell them."""

import json

from hypothesis import strategies as st

from colony.body import Entry
from colony.results import handle_of, with_handle
from workers.toolloop.rows import assistant_row, summary_row, tool_row, user_row

TURN = "t-7"
MOST_MESSAGES = 50

# Some servers number the calls of every answer anew, so ids come again in later rounds.
IDS = st.sampled_from(["call_0", "call_1", "a", "b-2", "c.3", "toolu_9", "é"])
TEXTS = st.sampled_from(["", "ok", "é" * 40, "x" * 700, "y" * 5_000, '{"error": "not_found"}'])
VENDORS = st.sampled_from(
    [
        None,
        {"openai": {"turn": {"reasoning_content": "r" * 300}, "call": {"extra": {"sig": "s"}}}},
        {"anthropic": {"turn": {"blocks": [{"type": "thinking", "thinking": "t" * 500}]}}},
    ]
)


@st.composite
def rounds(draw, number):
    """The rows of one round: calls, prose beside them or not, results in any order, some twice."""
    ids = draw(st.lists(IDS, min_size=1, max_size=5, unique=True))
    said = [_call(call_id, draw(VENDORS)) for call_id in ids]
    if prose := draw(st.sampled_from(["", "Let me look."])):
        said.insert(draw(st.integers(0, len(said))), Entry.say("assistant", prose))
    results = [_result(draw, call_id) for call_id in ids]
    repeats = draw(st.lists(st.sampled_from(results), max_size=2))
    strays = draw(st.lists(st.just(Entry.result("nobody's", "late")), max_size=1))
    rows = [tool_row(TURN, number, entry) for entry in [*results, *repeats, *strays]]
    row = {**assistant_row(TURN, number, said), "fired": 1}
    return draw(st.permutations([row, *rows])), 1 + len(ids)


@st.composite
def threads(draw):
    """The rows of a question of at most 50 messages, with a summary at any boundary or without."""
    earlier = draw(st.integers(0, 3)) * [
        Entry.say("user", "who?"),
        Entry.say("assistant", "nobody"),
    ]
    rows = [user_row(TURN, Entry.say("user", "why?"), earlier=earlier)]
    left, number = MOST_MESSAGES - 2 - len(earlier), 0
    for number in range(draw(st.integers(1, 20))):
        made, messages = draw(rounds(number))
        if messages > left:
            break
        rows += made
        left -= messages
    for boundary in draw(st.lists(st.integers(0, number), max_size=2, unique=True)):
        summary = Entry.say("assistant", f"GOAL: why, up to {boundary}")
        rows.append(summary_row(TURN, boundary, summary))
    return rows


def _call(call_id, vendor):
    text = json.dumps({"name": "web_fetch", "arguments": '{"url": "x"}'})
    call = Entry(origin="assistant", type="tool_call", id=call_id, text=text)
    return call if vendor is None else call.model_copy(update={"vendor": vendor})


def _result(draw, call_id):
    text = draw(TEXTS)
    if len(text) == 5_000 and draw(st.booleans()):
        text = with_handle(text, handle_of(text.encode(), "trace-1"), size=5_000_000)
    return Entry.result(call_id, text, is_error=draw(st.booleans()))
