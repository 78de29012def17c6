"""A text is what its delta makes of the other one, and the delta holds little that both have."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colony.deltas import applied, delta

# Of few letters, so that what is alike is found in places where it does not belong.
TEXTS = st.binary(max_size=300) | st.text("ab", max_size=300).map(str.encode)
HEAD, TAIL = b'{"model":"m","messages":[', b'],"tools":[' + b"t" * 5000 + b"]}"


def thread(rounds: range) -> bytes:
    said = (b'{"role":"tool","id":"c-%d","content":"%s"}' % (n, b"%d" % n * 400) for n in rounds)
    return HEAD + b",".join(said) + TAIL


def told(before: bytes, text: bytes) -> int:
    """How many bytes of a text its delta holds itself."""
    return sum(len(part) for part in delta(before, text) if isinstance(part, bytes))


@given(before=TEXTS, text=TEXTS)
def test_a_text_is_what_its_delta_makes_of_the_other(before: bytes, text: bytes) -> None:
    assert applied(before, delta(before, text)) == text


@given(
    parts=st.lists(st.binary(min_size=60, max_size=90), min_size=8, max_size=12),
    gone=st.integers(1, 4),
    new=TEXTS,
)
def test_what_lost_a_stretch_and_grew_is_what_its_delta_makes_of_the_other(
    parts: list[bytes], gone: int, new: bytes
) -> None:
    before = b"".join(parts)
    text = parts[0] + b"".join(parts[gone:-1]) + new + parts[-1]

    assert applied(before, delta(before, text)) == text


@pytest.mark.parametrize("text", [b"", b"x", b"y" * 100_000, thread(range(9))])
def test_the_delta_of_equal_texts_holds_nothing(text: bytes) -> None:
    assert told(text, text) == 0
    assert applied(text, delta(text, text)) == text


def test_the_delta_of_a_thread_that_grew_holds_what_is_new() -> None:
    threads = [thread(range(n)) for n in range(1, 30)]

    for before, after in pairwise(threads):
        assert told(before, after) <= len(after) - len(before)


def test_the_delta_of_a_thread_that_lost_older_rounds_holds_none_of_the_others() -> None:
    before, after = thread(range(30)), thread(range(10, 31))

    assert told(before, after) < 1000
    assert applied(before, delta(before, after)) == after
