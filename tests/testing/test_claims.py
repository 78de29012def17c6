"""Claims: they are waited for as long as they take, and named where they do not come true."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from colony.testing.claims import block_until, comes_true, eventually

NEVER_S = 0.02


@pytest.mark.parametrize("looks", [1, 3])
async def test_what_is_true_is_returned_as_soon_as_it_is(looks: int) -> None:
    numbers = itertools.count(1)

    def claim() -> list[int]:
        number = next(numbers)
        return [number] if number >= looks else []

    assert await eventually(claim) == [looks]


async def test_a_claim_may_be_awaited() -> None:
    numbers = itertools.count()

    async def claim() -> int:
        return next(numbers)

    assert await eventually(claim) == 1
    assert await eventually(lambda: claim()) == 2


async def test_others_work_while_it_is_waited_for() -> None:
    said: list[str] = []
    asyncio.get_running_loop().call_soon(said.append, "done")

    assert await eventually(lambda: said) == ["done"]


async def test_what_does_not_come_true_is_named() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.02 s: pigs fly"):
        await eventually(lambda: False, "pigs fly", patience_s=NEVER_S)


async def test_what_a_claim_raises_is_raised() -> None:
    looked: list[None] = []

    def claim() -> bool:
        looked.append(None)
        raise LookupError

    with pytest.raises(LookupError):
        await eventually(claim)
    assert len(looked) == 1


async def test_a_machine_that_stood_still_is_looked_at_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("colony.testing.claims.time", clock)

    def claim() -> bool:
        nonlocal now
        before, now = now, 1000.0
        return before > 0

    assert await eventually(claim, patience_s=10)


async def test_whether_it_comes_true_can_be_asked() -> None:
    looks = iter([0, 0, 7])

    assert await comes_true(lambda: next(looks)) is True
    assert await comes_true(lambda: 0, patience_s=NEVER_S) is False


def test_a_test_without_a_loop_blocks() -> None:
    looks = iter(["", "", "here"])

    assert block_until(lambda: next(looks)) == "here"
    with pytest.raises(AssertionError, match=r"not within 0.02 s: the claim is true"):
        block_until(lambda: "", patience_s=NEVER_S)
