"""A long answer is sent in parts that Telegram takes, and nothing of it is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.proxy.splitting import TEXT_LIMIT, split, units

FACE = "\U0001f600"


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@given(st.text(alphabet=st.sampled_from("ab \n" + FACE), max_size=120), st.integers(2, 40))
def test_the_parts_are_the_text_each_short_enough_and_none_blank(text: str, limit: int) -> None:
    parts = [*split(text, limit)]

    assert all(part.strip() and utf16(part) <= limit for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@given(st.text(max_size=50))
def test_length_is_counted_in_utf_16(text: str) -> None:
    assert units(text) == utf16(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" \n ", []),
        ("short", ["short"]),
        ("one two\n\nthree", ["one two", "three"]),
        ("one two\nthree", ["one two", "three"]),
        ("one two three", ["one two", "three"]),
        ("abcdefghijkl", ["abcdefghij", "kl"]),
        ("0123456789 x", ["0123456789", "x"]),
        ("a bcdefghijkl", ["a bcdefghi", "jkl"]),
        (FACE * 6, [FACE * 5, FACE]),
    ],
)
def test_it_is_cut_at_the_best_boundary(text: str, parts: list[str]) -> None:
    assert [*split(text, 10)] == parts


def test_text_of_exactly_the_limit_is_one_part() -> None:
    assert [len(part) for part in split("x" * TEXT_LIMIT)] == [TEXT_LIMIT]
    assert [len(part) for part in split("x" * (TEXT_LIMIT + 1))] == [TEXT_LIMIT, 1]
