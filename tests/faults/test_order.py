"""The judge of the order within sessions notices what breaks it."""

import pytest

from tests.faults.tree import Sums, Turn


def turn(*, session: str = "one", born: int, passed: int, ended: int) -> Turn:
    return Turn(session, born, passed, ended, trace_id=f"born {born}")


FIRST = turn(born=1, passed=2, ended=5)


@pytest.mark.parametrize(
    "second",
    [turn(born=1, passed=5, ended=6), turn(session="two", born=0, passed=3, ended=4)],
    ids=["when it is its turn", "in another session"],
)
def test_trace_that_waits_for_its_turn_is_in_order(second: Turn) -> None:
    sums = Sums(turns=[second, FIRST])

    sums.judge_order()

    assert sums.clean


@pytest.mark.parametrize(
    "second",
    [turn(born=2, passed=4, ended=6), turn(born=0, passed=5, ended=6)],
    ids=["before the first has ended", "though it is older"],
)
def test_trace_that_goes_on_out_of_turn_is_counted(second: Turn) -> None:
    sums = Sums(turns=[second, FIRST])

    sums.judge_order()

    assert (sums.disordered, sums.clean) == (1, False)
