"""The hand: which deliveries a process keeps for itself, and which anybody may have."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from colony.envelope import Head
from colony.hand import Hand
from colony.streams import Delivery


@pytest.fixture
async def hand() -> AsyncIterator[Hand]:
    hand = Hand()
    yield hand
    tasks = [task for delivery in hand if (task := hand.drop(delivery))]
    await asyncio.gather(*tasks, return_exceptions=True)


def delivery(entry: int, *, times: int = 1) -> Delivery:
    head = Head(id=f"e{entry}", trace_id="t", sender="/a", target="/b", ttl=1)
    return Delivery("cell", f"{entry}-0", "server", head, b"", times)


async def for_ever() -> None:
    await asyncio.Event().wait()


def started(hand: Hand, entry: int, *, times: int = 1) -> Delivery:
    taken = delivery(entry, times=times)
    hand.take(taken)
    hand.start(taken, for_ever())
    return taken


async def test_what_is_handled_is_kept(hand: Hand) -> None:
    one, two = started(hand, 1), started(hand, 2)

    assert hand.kept == [one, two]
    assert hand.handles(one)


async def test_what_is_handled_in_another_process_puts_nothing_at_risk_here(hand: Hand) -> None:
    elsewhere, next_one = delivery(1), delivery(2, times=2)
    hand.take(elsewhere, apart=True)
    hand.start(elsewhere, for_ever())
    hand.take(next_one)

    assert (hand.handling, hand.at_risk) == (1, 0)
    assert hand.kept == [elsewhere, next_one]


async def test_the_next_to_be_handled_alone_is_kept_and_those_behind_it_are_not(
    hand: Hand,
) -> None:
    alone = started(hand, 1, times=2)
    following, last = delivery(2, times=2), delivery(3, times=2)
    hand.take(following)
    hand.take(last)

    assert hand.kept == [alone, following]
    assert not hand.handles(following)


async def test_none_is_kept_that_waits_for_others_to_end(hand: Hand) -> None:
    """They may take long, and somebody else may have time."""
    running = started(hand, 1)
    hand.take(delivery(2, times=2))

    assert hand.kept == [running]


async def test_what_is_not_in_hand_is_not_handled(hand: Hand) -> None:
    assert not hand.handles(delivery(1))
