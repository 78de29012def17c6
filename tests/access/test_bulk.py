"""Many dead letters at once: counted first, then replayed or dropped."""

from collections.abc import AsyncIterator

import pytest

from colony.access import Access
from colony.body import Body, Entry
from colony.codec import encode_body, encode_head, pack
from colony.dead_letters import ALL, PAGE, Which, facts_of
from colony.envelope import DeadLetter, Head
from colony.errors import EnvelopeError
from colony.topology.model import QUIET, CellSettings, CellSpec, EdgeSpec, TopologySpec

BODY = encode_body(Body.of(Entry.say("user", "hello")))


@pytest.fixture
async def access(redis_url: str) -> AsyncIterator[Access]:
    """A colony that nobody runs."""
    sink = CellSpec(path="/sink", cell=CellSettings(type="sink"))
    edge = EdgeSpec(source="/x", target="/sink")
    async with Access(redis_url, "colony") as access:
        await access.publication.publish(TopologySpec(cells=(sink,), edges=(edge,)))
        yield access


async def bury(
    access: Access,
    code: str = "cell_failed",
    cell: str = "/a",
    n: int = 1,
    sender: str = "/s",
) -> str:
    """So many letters, of traces that are gone; returns the id of the last."""
    for _ in range(n):
        head = Head(id="t", trace_id="t", sender=sender, target=cell, ttl=0)
        letter = DeadLetter(code, "why", sender, cell, cell, head, BODY)
        envelope = ("facts", facts_of(letter), "head", encode_head(head), "body", BODY)
        letter_id = await access.link.command(
            "XADD", access.keys.dead(), "*", "trace", "t", "code", code, *envelope
        )
    return str(letter_id.decode())


async def bury_broken(access: Access) -> str:
    """A letter that holds no envelope."""
    fields = ("trace", "t", "code", "envelope_lost", "facts", pack({}), "head", pack(None))
    letter_id = await access.link.command("XADD", access.keys.dead(), "*", *fields, "body", b"")
    return str(letter_id.decode())


async def routed(access: Access) -> int:
    return int(await access.link.command("XLEN", access.keys.router()))


async def test_a_dry_run_counts_by_code_and_cell_and_changes_nothing(access: Access) -> None:
    await bury(access, "cell_failed", "/a", 2)
    await bury(access, "cell_failed", "/b")
    await bury(access, "no_route", "/a", 3)
    before = await access.dead_letters.list(), await access.link.command("DBSIZE")

    for act in (access.replay_all, access.drop_all):
        told = (await act(Which(to_path_prefix="/a"), limit=None, dry_run=True)).to_json()
        assert told["count"] == 5
        assert told["by"] == [
            {"error_code": "no_route", "cell": "/a", "count": 3},
            {"error_code": "cell_failed", "cell": "/a", "count": 2},
        ]

    after = await access.dead_letters.list(), await access.link.command("DBSIZE")
    assert after == before


async def test_what_the_filter_takes_is_dropped_and_the_rest_kept(access: Access) -> None:
    await bury(access, "cell_failed", "/a", PAGE + 5)
    kept = await bury(access, "no_route")

    tally = await access.drop_all(Which(code="cell_failed"), limit=None, dry_run=False)

    assert (len(tally.ids), tally.next) == (PAGE + 5, None)
    assert [letter.id for letter in await access.dead_letters.list()] == [kept]


async def test_what_the_filter_takes_is_replayed_once_and_the_letters_stay(access: Access) -> None:
    await bury(access, "cell_failed", "/sink", PAGE + 5)
    await bury(access, "no_route")

    tally = await access.replay_all(Which(code="cell_failed"), limit=None, dry_run=False)
    again = await access.replay_all(Which(code="cell_failed"), limit=None, dry_run=False)

    assert len(tally.traces) == len({*tally.traces.values()}) == await routed(access) == PAGE + 5
    assert (again.ids, again.traces) == ([], {})
    assert await access.dead_letters.count() == PAGE + 6
    (head, *_) = await access.traces.ids("open", limit=1)
    assert (await access.traces.get(head)).replayed_from in tally.ids


async def test_letters_that_cannot_be_replayed_are_told_and_the_rest_replayed(
    access: Access,
) -> None:
    await bury(access)
    broken = await bury_broken(access)
    await bury(access)

    for dry_run in (True, False):
        tally = await access.replay_all(ALL, limit=None, dry_run=dry_run)
        assert len(tally.ids) == 2
        assert [*tally.refused] == [broken]
        assert isinstance(tally.refused[broken], EnvelopeError)

    assert await routed(access) == 2
    dropped = await access.drop_all(ALL, limit=None, dry_run=False)
    assert (len(dropped.ids), dropped.refused) == (3, {})


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
async def test_a_limit_leaves_the_newest_and_tells_where_to_go_on(
    access: Access, limit: int
) -> None:
    await bury(access, n=2)
    await bury_broken(access)
    await bury(access, n=2)
    everything = [letter.id for letter in await access.dead_letters.list()]

    seen, after = [], None
    while True:
        tally = await access.replay_all(Which(after=after), limit=limit, dry_run=True)
        assert len(tally.ids) + len(tally.refused) <= limit
        seen += [*tally.ids, *tally.refused]
        after = tally.next
        if after is None:
            break
    assert sorted(seen) == everything

    for left in range(5, 0, -limit):
        tally = await access.drop_all(ALL, limit=limit, dry_run=False)
        assert len(tally.ids) == min(left, limit)
        assert (tally.next is None) == (left <= limit)
    assert await access.dead_letters.count() == 0


async def test_what_dies_again_meanwhile_is_left_for_another_time(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bury(access, n=3)

    async def dies_at_once(letter_id: str) -> str:
        # A millisecond later than anything that was there when it began.
        newest = (await access.dead_letters.newest(limit=1))[0]
        await access.link.command(
            "XADD", access.keys.dead(), f"{newest.died_at + 1}-0", "trace", "t", "code", "again",
            "facts", pack({}), "head", newest.head_bytes, "body", BODY,
        )  # fmt: skip
        return letter_id

    monkeypatch.setattr(access, "replay", dies_at_once)
    tally = await access.replay_all(ALL, limit=None, dry_run=False)

    assert len(tally.ids) == 3
    assert await access.dead_letters.count() == 6


@pytest.mark.parametrize("sender", [None, "/"])
async def test_letters_of_the_quiet_lane_are_passed_over_beside_those_they_stand_in_for(
    access: Access, sender: str | None
) -> None:
    message = await bury(access, "cell_inactive", "/sink")
    await bury(access, "cell_inactive", "/sink", 3, sender=QUIET)
    which = Which(code="cell_inactive", from_path_prefix=sender)

    for dry_run in (True, False):
        tally = await access.replay_all(which, limit=None, dry_run=dry_run)
        assert (tally.ids, tally.passed_over, tally.next) == ([message], 3, None)
        assert tally.to_json()["passed_over"] == 3

    assert await routed(access) == 1


async def test_letters_of_the_quiet_lane_are_replayed_where_they_are_asked_for(
    access: Access,
) -> None:
    await bury(access, "cell_inactive", "/sink")
    await bury(access, "cell_inactive", "/sink", 3, sender=QUIET)

    tally = await access.replay_all(Which(from_path_prefix=QUIET), limit=None, dry_run=False)

    assert (len(tally.ids), tally.passed_over) == (3, 0)
    assert await routed(access) == 3


async def test_what_a_limit_passed_over_is_not_told_again(access: Access) -> None:
    await bury(access)
    await bury(access, n=2, sender=QUIET)
    await bury(access)

    first = await access.replay_all(ALL, limit=1, dry_run=True)
    then = await access.replay_all(Which(after=first.next), limit=1, dry_run=True)

    assert (len(first.ids), first.passed_over, len(then.ids), then.passed_over) == (1, 2, 1, 0)
    assert then.next is None
