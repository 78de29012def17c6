"""How large the result of a tool may be, and what stands for the one of a tool that gave none."""

import pytest

from colony.body import Entry
from colony.envelope import Emission
from colony.results import MAX_RESULT_BYTES, bounded, ends_of, failed_result, head_of


def test_a_failed_result_answers_every_id() -> None:
    emission = failed_result("f", "tool_timeout", {"a": "late", "b": "late"})

    assert emission.body.entries == tuple(
        Entry.result(call_id, "tool_timeout: late", is_error=True) for call_id in "ab"
    )
    assert emission.hop == {
        "operation": "f",
        "finish_reason": "error",
        "error_code": "tool_timeout",
    }


def test_a_head_is_cut_between_characters_and_says_how_large_the_whole_was() -> None:
    assert head_of("äää", 6) == "äää"
    assert head_of("äää", 5) == "ää… [truncated, 6 bytes total]"
    assert head_of("ab", 5, size=9) == "ab… [truncated, 9 bytes total]"


@pytest.mark.parametrize("letter", ["x", "é", "€", "😀"])
def test_the_end_is_shown_with_the_head_where_there_is_room_for_it(letter: str) -> None:
    text = letter * 40_000 + "END"
    size = len(text.encode())

    shown = ends_of(text.encode(), 16_384)

    head, tail = shown.split(f"… [truncated, {size} bytes total]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert tail.endswith("END")
    assert len(head.encode()) + len(tail.encode()) in range(16_384 - 6, 16_385)
    assert ends_of(text.encode(), 16_383) == head_of(text, 16_383)
    assert ends_of(text.encode(), size) == text


def test_a_result_above_the_limit_is_cut_and_told_to_the_edges() -> None:
    said = Entry.say("tool", "y" * (MAX_RESULT_BYTES + 200))
    large = Entry.result("c", "x" * (MAX_RESULT_BYTES + 200), is_error=True)

    emission = bounded(Emission.of(said, large, Entry.result("d", "z"), route="on"))

    kept, cut, small = emission.body.entries
    assert (kept, small) == (said, Entry.result("d", "z"))
    mark = f"… [truncated, {MAX_RESULT_BYTES + 200} bytes total]"
    assert cut == Entry.result("c", "x" * MAX_RESULT_BYTES + mark, is_error=True)
    assert emission.hop == {"route": "on", "truncated": True}


def test_a_result_within_the_limit_or_cut_to_it_is_left_alone() -> None:
    cut = head_of("x" * (MAX_RESULT_BYTES + 100), MAX_RESULT_BYTES)
    emission = Emission.of(Entry.result("c", "ä" * (MAX_RESULT_BYTES // 2)), Entry.result("d", cut))

    assert bounded(emission) is emission
