from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from workers.toolloop.eviction import first_of_newest, first_shown

WEIGHTS = st.lists(st.integers(0, 1_000), max_size=60)
MOST = st.integers(1, 20)
MOST_BYTES = st.integers(1, 5_000)
NOTE = st.integers(0, 300)


def test_nothing_leaves_while_all_of_it_fits():
    assert first_shown([10, 10, 10], most=3, most_bytes=30) == 0
    assert first_shown([], most=1, most_bytes=1) == 0


def test_above_a_cap_the_oldest_leave_until_three_quarters_are_left():
    assert first_shown([1] * 9, most=8, most_bytes=100) == 3
    assert first_shown([10] * 11, most=50, most_bytes=100) == 4


def test_what_stands_for_those_that_left_counts_as_well():
    assert first_shown([10] * 11, most=50, most_bytes=100, note=lambda left: 20 * (left > 0)) == 6


@given(WEIGHTS, MOST, MOST_BYTES, NOTE)
def test_caps_hold_unless_the_newest_alone_is_above_them(weights, most, most_bytes, note):
    def weighs(left):
        return note if left else 0

    first = first_shown(weights, most=most, most_bytes=most_bytes, note=weighs)

    shown = weights[first:]
    assert bool(shown) == bool(weights)
    assert len(shown) <= most
    assert len(shown) <= 1 or sum(shown) + weighs(first) <= most_bytes


@given(WEIGHTS, MOST, MOST_BYTES)
def test_what_has_left_does_not_come_back(weights, most, most_bytes):
    left = [
        first_shown(weights[:count], most=most, most_bytes=most_bytes)
        for count in range(len(weights) + 1)
    ]

    assert left == sorted(left)


@given(st.integers(4, 40), st.integers(1, 100))
def test_only_every_so_often_something_leaves(most, count):
    left = [first_shown([1] * n, most=most, most_bytes=10_000) for n in range(count)]

    evictions = sum(one != other for one, other in pairwise(left))
    assert evictions <= max(0, count - 1 - most) // (most // 4) + 1


def test_of_the_newest_none_leaves_while_all_of_it_fits():
    assert first_of_newest([10, 10, 10], before=0, most=3, most_bytes=30) == 0
    assert first_of_newest([10], before=7, most=1, most_bytes=1) == 0


def test_the_newest_begin_where_they_did_for_several_that_come():
    def first(count):
        known = min(count, 21)
        before = count - known
        return before + first_of_newest([1] * known, before=before, most=20, most_bytes=100)

    assert [first(count) for count in range(18, 32)] == [0] * 3 + [4] * 2 + [8] * 6 + [12] * 2 + [
        16
    ]


@given(WEIGHTS.filter(bool), MOST, MOST_BYTES, NOTE, st.integers(0, 40))
def test_of_the_newest_between_three_quarters_and_all_of_the_caps_stay(
    weights, most, most_bytes, note, before
):
    def left(most, most_bytes):
        fitting = [
            number
            for number in range(len(weights))
            if len(weights) - number <= most
            and sum(weights[number:]) + (note if before + number else 0) <= most_bytes
        ]
        return min(fitting, default=len(weights) - 1)

    first = first_of_newest(
        weights,
        before=before,
        most=most,
        most_bytes=most_bytes,
        note=lambda left: note if left else 0,
    )

    slack = left(max(1, most * 3 // 4), max(1, most_bytes * 3 // 4))
    assert left(most, most_bytes) <= first <= max(slack, left(most, most_bytes) + 1)


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=60), MOST, MOST_BYTES)
def test_however_few_of_the_newest_are_known_the_same_leave(weights, most, most_bytes):
    whole = first_of_newest(weights, before=0, most=most, most_bytes=most_bytes)
    for before in range(max(0, len(weights) - most)):
        known = weights[before:]
        found = first_of_newest(known, before=before, most=most, most_bytes=most_bytes)
        assert before + found == whole


@given(WEIGHTS.filter(bool), MOST, MOST_BYTES)
def test_what_has_left_the_newest_does_not_come_back(weights, most, most_bytes):
    left = [
        first_of_newest(weights[:count], before=0, most=most, most_bytes=most_bytes)
        for count in range(1, len(weights) + 1)
    ]

    assert left == sorted(left)
