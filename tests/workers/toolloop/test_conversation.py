"""Conversations: what a question is shown of those before it, at any length and under any caps."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colony.body import Entry
from workers.toolloop.conversation import (
    MAX_VIEW_BYTES,
    RecallParams,
    answer_row,
    question_row,
    shown,
)
from workers.toolloop.eviction import weight_of

Said = tuple[str, list[str]]


def conversation(said: list[Said]) -> list[dict[str, Any]]:
    """The rows of questions and their answers, as the store has them once both are there."""
    return [
        {
            **question_row(f"t-{n}", Entry.say("user", asked)),
            **answer_row(f"t-{n}", "s", [Entry.say("assistant", text) for text in answers]),
        }
        for n, (asked, answers) in enumerate(said)
    ]


def view(
    said: list[Said], asked: str = "now?", *, left_out: int = 0, **caps: int
) -> tuple[Entry, ...]:
    return shown(
        conversation(said),
        Entry.say("user", asked),
        turn_id="t-now",
        questions=len(said) + left_out,
        caps=RecallParams(**caps),
    )


def texts(entries: tuple[Entry, ...]) -> list[str | None]:
    return [entry.text for entry in entries]


def pairs(count: int, size: int = 1) -> list[Said]:
    return [(f"q{n}", [f"a{n}" * size]) for n in range(count)]


def test_questions_and_their_answers_come_in_their_order() -> None:
    entries = view([("q0", ["a0", "b0"]), ("q1", ["a1"])])

    assert [(entry.origin, entry.text) for entry in entries] == [
        ("user", "q0"),
        ("assistant", "a0"),
        ("assistant", "b0"),
        ("user", "q1"),
        ("assistant", "a1"),
    ]


def test_what_a_provider_wants_back_is_kept() -> None:
    vendor = {"anthropic": {"turn": {"blocks": [{"type": "thinking", "thinking": "hm"}]}}}
    said = Entry(origin="assistant", type="text", text="a", vendor=vendor)
    row = {**question_row("t-0", Entry.say("user", "q")), **answer_row("t-0", "s", [said])}

    entries = shown([row], Entry.say("user", "?"), turn_id="t-1", questions=1, caps=RecallParams())

    assert entries[1] == said


def test_twenty_first_question_is_not_shown_the_first() -> None:
    assert texts(view(pairs(19)))[:2] == ["q0", "a0"]

    entries = texts(view(pairs(20)))

    assert entries[0] == "[4 earlier questions of this conversation are not shown any more.]\n\nq4"
    assert entries[1:3] == ["a4", "q5"]
    assert len(entries) == 32


def test_one_question_that_is_not_shown_is_told_as_one() -> None:
    entries = texts(view(pairs(2), max_questions=2))

    assert entries[0] == "[1 earlier question of this conversation is not shown any more.]\n\nq1"


@pytest.mark.parametrize("caps", [{}, {"max_view_bytes": 2_000}])
def test_views_of_a_long_session_begin_alike_for_several_questions(caps: dict[str, int]) -> None:
    views = [view(pairs(count, 50), **caps) for count in range(100)]

    alike = sum(later[: len(view)] == view for view, later in pairwise(views))
    assert alike >= 70


def test_what_left_a_view_does_not_come_back() -> None:
    """Of what the store reads, which is the newest few."""
    said = [(f"q{n}", ["x" * (n * 997 % 5_000)]) for n in range(80)]
    newest = [
        texts(view(said[max(0, count - 20) : count], left_out=max(0, count - 20)))[0]
        for count in range(1, 80)
    ]
    first = [int(str(text).rpartition("q")[2]) for text in newest]

    assert first == sorted(first)
    assert first[-1] > 40


def test_what_the_store_has_left_out_is_told_as_well() -> None:
    entries = texts(view(pairs(3), left_out=97, max_questions=3))

    assert entries[0] == "[98 earlier questions of this conversation are not shown any more.]\n\nq1"


def test_question_is_shown_none_where_it_alone_is_too_long() -> None:
    assert view(pairs(2), "x" * 100, max_view_bytes=50) == ()


def test_question_that_does_not_fit_hides_the_ones_before_it() -> None:
    said: list[Said] = [("q0", ["a0"]), ("long", ["x" * 5_000]), ("q2", ["a2"])]

    entries = texts(view(said, max_view_bytes=1_000))

    assert entries[1:] == ["a2"]
    assert "2 earlier questions" in str(entries[0])


@pytest.mark.parametrize("missing", ["question", "answer"])
@pytest.mark.parametrize(
    "written", [None, "", "{}", "[1]", "7", "no json", '{"origin": "user"}', 7]
)
def test_question_of_which_half_is_missing_or_unreadable_is_left_out_whole(
    missing: str, written: Any
) -> None:
    rows = conversation(pairs(2))
    rows[1][missing] = written

    entries = shown(rows, Entry.say("user", "?"), turn_id="t-9", questions=2, caps=RecallParams())

    assert texts(entries) == ["q0", "a0"]


TEXTS = st.text(min_size=1, max_size=60)
SAID = st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=2)), max_size=12)


@given(
    said=SAID,
    asked=st.text(max_size=60),
    left_out=st.integers(0, 9),
    most=st.integers(1, 9),
    size=st.integers(1, 600),
)
def test_any_view_is_whole_questions_from_the_newest_on_and_fits(
    said: list[Said], asked: str, left_out: int, most: int, size: int
) -> None:
    caps = {"max_questions": most, "max_view_bytes": size}

    entries = view(said, asked, left_out=left_out, **caps)

    weight = weight_of([*entries, Entry.say("user", asked)])
    assert not entries or weight <= size
    count = sum(entry.origin == "user" for entry in entries)
    assert count < most
    everything = view(said, asked, max_view_bytes=MAX_VIEW_BYTES)
    newest = everything[len(everything) - len(entries) :]
    assert entries[1:] == newest[1:]
    if entries:
        missing = left_out + len(said) - count
        assert str(entries[0].text).endswith(str(newest[0].text))
        assert bool(missing) is str(entries[0].text).startswith(f"[{missing} earlier question")
    # Whatever would have fitted into three quarters is there.
    if count < min(most * 3 // 4 - 1, len(said)):
        newest = everything[-len(entries) - 3 :]
        assert weight_of([*newest, Entry.say("user", asked)]) > size * 3 // 4 - 80


@given(said=SAID)
def test_rows_are_json_that_any_reader_reads(said: list[Said]) -> None:
    for row, (asked, answers) in zip(conversation(said), said, strict=True):
        assert json.loads(row["question"])["text"] == asked
        assert [entry["text"] for entry in json.loads(row["answer"])] == answers
