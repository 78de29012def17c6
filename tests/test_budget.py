"""What all workers together may ask of one endpoint."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from colony.budget import FAILURES, LOCAL_FLIGHTS, OPEN_MS, LocalBudget, SharedBudget
from colony.host import Admission, Limits
from colony.keys import Keys
from colony.link import Link
from colony.log import get_logger
from colony.lua.registry import bind

KEY = Keys("test").budget("b")
LEASE_MS = 60_000


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


async def take(link: Link, token: str = "t", **given: Any) -> list[Any]:
    """The answer of the script: a token, and what comes with it."""
    limits = {"requests": 0, "tokens": 0, "flights": 0, "cost": 1, "lease_ms": LEASE_MS}
    answer = await link.run(bind("take_allowance", budget=KEY, token=token, **{**limits, **given}))
    return [part.decode() if isinstance(part, bytes) else part for part in answer]


async def settle(link: Link, token: str = "t", outcome: str = "answered", **given: Any) -> str:
    said = {"cost": "", "pause_ms": "", "failures": FAILURES, "open_ms": OPEN_MS}
    call = bind("settle_allowance", budget=KEY, token=token, outcome=outcome, **{**said, **given})
    return str((await link.run(call))[0].decode())


async def call(link: Link, token: str, outcome: str, **given: Any) -> str:
    """Take and settle, and say how the call was let through."""
    taken = await take(link, token)
    assert await settle(link, token, outcome, **given) == "settled"
    return str(taken[0])


async def pass_by(link: Link, seconds: int) -> None:
    """Everything that the budget knows of happened so much earlier."""
    flat = await link.command("HGETALL", KEY)
    fields = {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}
    await link.command("DEL", KEY)
    for name, value in fields.items():
        what, _, second = name.partition(" ")
        if what in ("requests", "tokens"):
            name = f"{what} {int(second) - seconds}"
        elif what in ("paused", "resumed"):
            value = str(int(value) - seconds * 1000)
        elif what == "call":
            ends, second, *rest = value.split(" ")
            value = " ".join([str(int(ends) - seconds * 1000), str(int(second) - seconds), *rest])
        await link.command("HSET", KEY, name, value)


# take_allowance


async def test_without_limits_every_call_is_let_through(link: Link) -> None:
    assert [await take(link, f"t-{n}") for n in range(50)] == [["taken"]] * 50


async def test_so_many_calls_are_under_way_at_once_and_the_next_follows_the_first_that_ends(
    link: Link,
) -> None:
    assert [await take(link, token, flights=2) for token in "ab"] == [["taken"], ["taken"]]

    refused, wait, why = await take(link, "c", flights=2)
    assert (refused, why) == ("wait", "in_flight")
    assert wait > 0

    await settle(link, "a")
    assert await take(link, "c", flights=2) == ["taken"]


async def test_a_call_that_nobody_settles_is_over_with_its_lease(link: Link) -> None:
    await take(link, "of a worker that was killed", flights=1)
    assert (await take(link, "b", flights=1))[0] == "wait"

    await pass_by(link, LEASE_MS // 1000)

    assert await take(link, "b", flights=1) == ["taken"]


async def test_so_many_calls_begin_in_any_minute(link: Link) -> None:
    for token in "abc":
        await take(link, token, requests=3)
        await settle(link, token)

    refused, wait, why = await take(link, "d", requests=3)
    assert (refused, why) == ("wait", "requests")
    assert 0 < wait <= 61_000

    await pass_by(link, 59)
    assert (await take(link, "d", requests=3))[0] == "wait"
    await pass_by(link, 1)
    assert await take(link, "d", requests=3) == ["taken"]


async def test_tokens_are_those_expected_until_they_are_known(link: Link) -> None:
    await take(link, "a", tokens=100, cost=80)
    refused, wait, why = await take(link, "b", tokens=100, cost=80)
    assert (refused, why) == ("wait", "tokens")
    assert 0 < wait <= 61_000

    await settle(link, "a", cost=20)

    assert await take(link, "b", tokens=100, cost=80) == ["taken"]
    await settle(link, "b", cost="")
    assert (await take(link, "c", tokens=100, cost=1))[0] == "wait"


async def test_what_is_known_after_its_minute_changes_nothing(link: Link) -> None:
    await take(link, "a", cost=80, lease_ms=1_000_000)
    await pass_by(link, 61)
    await take(link, "b", cost=5)

    await settle(link, "a", cost=1000)

    assert await take(link, "c", tokens=10, cost=5) == ["taken"]


async def test_a_call_above_the_limit_of_a_minute_is_let_through_when_nothing_else_was(
    link: Link,
) -> None:
    assert await take(link, "a", tokens=100, cost=5000) == ["taken"]
    assert (await take(link, "b", tokens=100, cost=5000))[0] == "wait"
    await settle(link, "a", cost=100)
    await pass_by(link, 60)
    assert await take(link, "b", tokens=100, cost=5000) == ["taken"]


async def test_a_call_that_is_let_through_again_is_counted_once(link: Link) -> None:
    for _ in range(3):
        assert await take(link, "a", requests=1, flights=1) == ["taken"]

    assert await settle(link, "a") == "settled"
    assert (await take(link, "b", requests=2, flights=1)) == ["taken"]


async def test_a_call_that_is_let_through_again_has_a_new_lease_and_stays_a_probe(
    link: Link,
) -> None:
    await call(link, "a", "limited", pause_ms=20_000)
    await pass_by(link, 20)
    await take(link, "b", lease_ms=5000)
    await pass_by(link, 4)
    assert await take(link, "b", lease_ms=5000) == ["probe"]
    await pass_by(link, 4)

    assert (await take(link, "c"))[0] == "wait"
    await settle(link, "b", "answered")
    assert await take(link, "c") == ["taken"]


async def test_a_call_that_has_to_wait_writes_nothing(link: Link) -> None:
    await take(link, "a", flights=1)
    before = await link.command("HGETALL", KEY)

    await take(link, "b", flights=1)

    assert await link.command("HGETALL", KEY) == before


async def test_a_budget_expires_when_nothing_can_come_of_it_any_more(link: Link) -> None:
    await take(link, "a", lease_ms=300_000)
    await take(link, "b", lease_ms=1000)
    assert 300_000 < await link.command("PTTL", KEY) <= 361_000

    await settle(link, "a", "limited", pause_ms=600_000)
    assert 600_000 < await link.command("PTTL", KEY) <= 721_000


# settle_allowance


async def test_a_call_is_settled_once(link: Link) -> None:
    await take(link)

    assert await settle(link, outcome="failed", failures=1) == "settled"
    before = await link.command("HGETALL", KEY)
    assert await settle(link, outcome="limited", pause_ms=9000) == "unknown"
    assert await settle(link, "never taken", "failed") == "unknown"

    assert await link.command("HGETALL", KEY) == before


async def test_all_wait_as_long_as_a_limited_call_was_told_to(link: Link) -> None:
    await call(link, "a", "limited", pause_ms=20_000)

    refused, wait, why = await take(link, "b")
    assert (refused, why) == ("wait", "cooldown")
    assert 19_000 < wait <= 20_000


async def test_after_a_pause_one_call_is_let_through_and_the_others_wait_for_what_comes_of_it(
    link: Link,
) -> None:
    await call(link, "a", "limited", pause_ms=20_000)
    await pass_by(link, 20)

    assert await take(link, "b") == ["probe"]
    assert await take(link, "b") == ["probe"]
    assert [(await take(link, f"c-{n}"))[0] for n in range(9)] == ["wait"] * 9

    await settle(link, "b", "answered")
    assert await take(link, "c") == ["taken"]
    assert await take(link, "d") == ["taken"]


async def taken_of(link: Link, tokens: list[str]) -> list[str]:
    return [token for token in tokens if (await take(link, token))[0] == "taken"]


async def resumed(link: Link) -> None:
    """A pause is over, and its probe was answered."""
    await call(link, "limited", "limited", pause_ms=20_000)
    await pass_by(link, 20)
    assert await call(link, "probe", "answered") == "probe"


async def test_after_a_pause_those_who_waited_begin_with_two_and_twice_as_many_each_round(
    link: Link,
) -> None:
    waiting = [f"t-{n}" for n in range(100)]
    await resumed(link)

    begun = []
    for _ in range(4):
        taken = await taken_of(link, waiting)
        begun.append(len(taken))
        for token in taken:
            await settle(link, token, "answered")
        waiting = waiting[len(taken) :]

    # The seconds that the test itself takes let in a few more.
    assert 2 <= begun[0] <= 8
    assert begun == sorted(begun)
    assert begun[3] >= 2 * begun[1] > begun[0]
    assert sum(begun) < 100


async def test_calls_from_before_a_pause_leave_room_for_those_after_it(link: Link) -> None:
    for n in range(20):
        await take(link, f"long-{n}")
    await resumed(link)

    assert len(await taken_of(link, ["a", "b"])) == 2


async def test_a_call_that_waits_because_others_have_just_begun_is_told_so(link: Link) -> None:
    await resumed(link)
    await taken_of(link, [f"t-{n}" for n in range(50)])

    refused, wait, why = await take(link, "x")

    assert (refused, why) == ("wait", "cooldown")
    assert wait > 0


async def test_with_time_there_is_room_whatever_becomes_of_those_that_began(link: Link) -> None:
    await resumed(link)
    lost = await taken_of(link, [f"t-{n}" for n in range(50)])
    assert (await take(link, "x"))[0] == "wait"

    await pass_by(link, 30)

    assert len(await taken_of(link, [f"u-{n}" for n in range(100)])) >= 30 - len(lost)


@pytest.mark.parametrize("outcome", ["neutral", "failed"])
async def test_a_probe_that_says_nothing_of_the_limit_leaves_the_next_to_probe(
    link: Link, outcome: str
) -> None:
    await call(link, "a", "limited", pause_ms=20_000)
    await pass_by(link, 20)

    assert await call(link, "b", outcome) == "probe"
    assert await take(link, "c") == ["probe"]


async def test_a_probe_that_is_lost_leaves_the_next_to_probe_when_its_lease_is_over(
    link: Link,
) -> None:
    await call(link, "a", "limited", pause_ms=20_000)
    await pass_by(link, 20)
    await take(link, "of a worker that was killed")
    assert (await take(link, "b"))[0] == "wait"

    await pass_by(link, LEASE_MS // 1000)

    assert await take(link, "b") == ["probe"]


async def test_a_probe_that_takes_long_keeps_the_others_for_a_minute_at_most(link: Link) -> None:
    await call(link, "limited", "limited", pause_ms=20_000)
    await pass_by(link, 20)
    assert await take(link, "slow", lease_ms=1_200_000) == ["probe"]
    await pass_by(link, 58)
    assert (await take(link, "next", lease_ms=1_200_000))[0] == "wait"
    await pass_by(link, 3)

    assert await take(link, "next", lease_ms=1_200_000) == ["probe"]
    assert (await take(link, "third"))[0] == "wait"

    await settle(link, "slow", "answered")
    assert await take(link, "third") == ["taken"]


async def test_a_probe_does_not_end_a_pause_that_another_call_has_met_since(link: Link) -> None:
    await take(link, "long")
    await call(link, "a", "limited", pause_ms=20_000)
    await pass_by(link, 20)
    assert await take(link, "b") == ["probe"]

    await settle(link, "long", "limited", pause_ms=5000)
    await settle(link, "b", "answered")

    assert (await take(link, "c"))[0] == "wait"


async def test_a_call_that_is_let_through_again_does_not_shorten_the_life_of_a_pause(
    link: Link,
) -> None:
    await take(link, "long", lease_ms=1000)
    await call(link, "a", "limited", pause_ms=3_600_000)

    assert await take(link, "long", lease_ms=1000) == ["taken"]

    assert await link.command("PTTL", KEY) > 3_600_000


async def test_a_probe_that_is_limited_too_makes_all_wait_again(link: Link) -> None:
    await call(link, "a", "limited", pause_ms=20_000)
    await pass_by(link, 20)

    assert await call(link, "b", "limited", pause_ms=5000) == "probe"

    assert 4000 < (await take(link, "c"))[1] <= 5000


async def test_a_call_from_before_a_pause_does_not_end_it(link: Link) -> None:
    await take(link, "long")
    await call(link, "a", "limited", pause_ms=20_000)

    await settle(link, "long", "answered")

    assert (await take(link, "b"))[0] == "wait"


async def test_the_longest_of_several_pauses_holds(link: Link) -> None:
    for token in "abc":
        await take(link, token)
    for token, pause_ms in zip("abc", (5000, 20_000, 1000), strict=True):
        await settle(link, token, "limited", pause_ms=pause_ms)

    assert 19_000 < (await take(link, "d"))[1] <= 20_000


async def test_a_limit_that_names_no_time_makes_all_wait_twice_as_long_each_time(
    link: Link,
) -> None:
    waits = []
    for n in range(8):
        await call(link, f"t-{n}", "limited")
        waits.append((await take(link, "x"))[1])
        await pass_by(link, 60)

    assert [round(wait / 1000) for wait in waits] == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_a_limit_that_asks_for_no_time_at_all_is_one_that_names_none(link: Link) -> None:
    for n, wait in enumerate((1000, 2000)):
        await call(link, f"t-{n}", "limited", pause_ms=0)
        assert wait - 500 < (await take(link, "x"))[1] <= wait
        await pass_by(link, 60)


async def test_calls_that_are_limited_together_count_once(link: Link) -> None:
    for n in range(10):
        await take(link, f"t-{n}")
    for n in range(10):
        await settle(link, f"t-{n}", "limited")

    assert (await take(link, "x"))[1] <= 1000


async def test_the_breaker_opens_after_failures_in_a_row_and_one_call_closes_it(
    link: Link,
) -> None:
    for n in range(FAILURES - 1):
        await call(link, f"a-{n}", "failed")
    await call(link, "between", "answered")
    for n in range(FAILURES):
        assert await call(link, f"b-{n}", "failed") == "taken"

    refused, wait, why = await take(link, "c")
    assert (refused, why) == ("wait", "breaker")
    assert OPEN_MS - 1000 < wait <= OPEN_MS

    await pass_by(link, OPEN_MS // 1000)
    assert await call(link, "d", "failed") == "probe"
    assert OPEN_MS - 1000 < (await take(link, "e"))[1] <= OPEN_MS

    await pass_by(link, OPEN_MS // 1000)
    assert await call(link, "f", "answered") == "probe"
    assert await call(link, "g", "failed") == "taken"
    assert await take(link, "h") == ["taken"]


# As a cell sees it


def budget(link: Link, **limits: int) -> SharedBudget:
    return SharedBudget(link, KEY, Limits(**limits), get_logger("test"))


async def test_workers_that_share_a_budget_share_its_limits(link: Link, redis_url: str) -> None:
    other = Link(redis_url)
    one, two = budget(link, in_flight=1), budget(other, in_flight=1)

    assert (await one.take("a", cost=1, lease_ms=1000)).granted
    refused = await two.take("b", cost=1, lease_ms=1000)
    assert (refused.granted, refused.why) == (False, "in_flight")

    await one.settle("a", cost=1, outcome="limited", pause_s=20.0)
    refused = await two.take("b", cost=1, lease_ms=1000)
    assert refused.why == "cooldown"
    assert 19 < refused.wait_s <= 20
    await other.close()


async def test_a_provider_cannot_keep_all_away_for_longer_than_an_hour(link: Link) -> None:
    own = budget(link)
    await own.take("a", cost=1, lease_ms=1000)

    await own.settle("a", cost=None, outcome="limited", pause_s=1e9)

    assert (await own.take("b", cost=1, lease_ms=1000)).wait_s <= 3600


async def test_without_redis_a_few_calls_go_on_and_heed_what_this_process_was_told() -> None:
    away = budget(Link("redis://127.0.0.1:1"))

    taken = [await away.take(f"t-{n}", cost=1, lease_ms=60_000) for n in range(LOCAL_FLIGHTS)]
    assert all(admission.granted for admission in taken)
    assert (await away.take("more", cost=1, lease_ms=60_000)).why == "in_flight"

    await away.settle("t-0", cost=1, outcome="limited", pause_s=30.0)
    assert (await away.take("more", cost=1, lease_ms=60_000)).why == "cooldown"


async def test_a_budget_of_one_process_forgets_what_is_over() -> None:
    now = 0.0
    local = LocalBudget(1, clock=lambda: now)
    assert (await local.take("a", cost=1, lease_ms=1000)) == Admission()
    assert (await local.take("a", cost=1, lease_ms=1000)) == Admission()
    assert not (await local.take("b", cost=1, lease_ms=1000)).granted

    now = 2.0
    assert (await local.take("b", cost=1, lease_ms=1000)).granted
    await local.settle("b", cost=1, outcome="limited")
    assert not (await local.take("c", cost=1, lease_ms=1000)).granted
    now = 3.5
    assert (await local.take("c", cost=1, lease_ms=1000)).granted
