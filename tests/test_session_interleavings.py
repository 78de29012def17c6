"""Sessions, where something else happens between a turn and what comes of it."""

from collections.abc import AsyncIterator
from itertools import permutations

import pytest

from colony.body import Body, Entry
from colony.dead_letters import DeadLetters
from colony.envelope import Headers, digest
from colony.errors import ServerChanged, SettledElsewhere
from colony.keeping.keeper import Keeper
from colony.topology.model import TopologySpec
from tests.test_sessions import Colony, edge, tree


@pytest.fixture
async def colony(redis_url: str) -> AsyncIterator[Colony]:
    async with Colony(redis_url, tree(edge("/in", "/work"))) as colony:
        yield colony


async def finished(colony: Colony, *traces: str) -> None:
    """Everything goes on to its end, and nothing of a session is left."""
    while await colony.pending():
        await colony.route()
        await colony.answer()
    await colony.finish()
    assert all([(await colony.trace(trace)).ended for trace in traces])
    assert await colony.left() == []


async def publish(colony: Colony, spec: TopologySpec) -> None:
    await colony.publication.publish(spec)
    await colony.publication.refresh()


@pytest.mark.parametrize("order", [*permutations(range(3))])
async def test_questions_are_cancelled_in_any_order(colony: Colony, order: tuple[int, ...]) -> None:
    asked = [await colony.question() for _ in range(3)]
    await colony.route()

    left = [*asked]
    for n in order:
        await colony.traces.end(asked[n], "cancelled", "by hand")
        left.remove(asked[n])
        await colony.route()
        at_work = [trace for trace in await colony.at("/work") if trace in left]
        assert at_work == left[:1]
    await finished(colony, *asked)


async def test_an_edge_that_is_gone_when_the_turn_comes_asks_for_no_order(colony: Colony) -> None:
    asked = [await colony.question() for _ in range(3)]
    await colony.route()
    await publish(colony, tree(edge("/in", "/work", None)))
    later = await colony.question()
    await colony.route()

    assert await colony.at("/work") == [asked[0], later]
    await colony.answer()
    await colony.route()
    assert await colony.at("/work") == [asked[1]]
    await finished(colony, *asked, later)


async def test_a_question_goes_where_the_tree_of_its_turn_sends_it(colony: Colony) -> None:
    asked = [await colony.question() for _ in range(3)]
    await colony.route()
    await colony.answer()
    await publish(colony, tree(edge("/in", "/other")))

    await colony.route()
    assert await colony.at("/other") == [asked[1]]
    await colony.finish()

    assert [(await colony.trace(trace)).cause for trace in asked] == ["completed"] * 3
    assert await colony.left() == []


async def test_a_router_that_has_its_turn_and_loses_it_to_a_cancel_commits_nothing(
    colony: Colony,
) -> None:
    asked = [await colony.question() for _ in range(2)]
    first, second = await colony.pending()
    step = await colony.decide(first)
    await colony.traces.end(asked[0], "cancelled", "by hand")

    await colony.step(second)
    assert await colony.at("/work") == [asked[1]]
    (outcome,) = await colony.commit(step)

    assert outcome.token == "fenced"
    assert await colony.at("/work") == [asked[1]]
    await finished(colony, *asked)


async def test_a_router_of_a_server_that_is_gone_parks_nothing(colony: Colony) -> None:
    asked = [await colony.question() for _ in range(2)]
    (_, second) = await colony.pending()
    elsewhere = type(second)(second.source, second.entry, "another", second.head, second.body)

    with pytest.raises(ServerChanged):
        await colony.sessions.take_turn(elsewhere, "s")

    assert await colony.sessions.count() == (0, 0)
    with pytest.raises(SettledElsewhere):
        await colony.sessions.take_turn(second, "s")
    await finished(colony, *asked)


async def test_a_birth_that_is_repeated_has_one_place(colony: Colony) -> None:
    body, context = Body.of(Entry.say("user", "x")), Headers(session_id="s")
    for _ in range(3):
        birth = await colony.traces.birth("/in", body, ttl=9, context=context, guard="g")
    order = colony.keys.order(digest("s"))
    assert await colony.link.command("ZCARD", order) == 1
    await finished(colony, birth.trace_id)

    await colony.traces.birth("/in", body, ttl=9, context=context, guard="g")

    assert await colony.left() == []


async def test_a_letter_that_is_replayed_into_its_open_trace_keeps_the_place(
    redis_url: str,
) -> None:
    spec = tree(edge("/in", "/work"), edge("/in", "/in/nowhere", None), hives="/ /in /in/nowhere")
    async with Colony(redis_url, spec) as colony:
        asked = [await colony.question() for _ in range(2)]
        await colony.route()
        (letter,) = await colony.letters()

        for _ in range(2):
            again = await DeadLetters(colony.link, colony.keys).replay(letter.id, ttl=9)
            assert again == asked[0]

        await colony.route()
        assert await colony.at("/work") == [asked[0]]
        await finished(colony, *asked)


async def test_a_question_that_is_overdue_while_it_waits_is_passed_over(colony: Colony) -> None:
    asked = [await colony.question() for _ in range(3)]
    await colony.route()
    await colony.link.command("ZADD", colony.keys.deadlines(), 1, asked[1])

    assert await Keeper(colony.streams, colony.publication).end_overdue() == [asked[1]]

    await colony.answer()
    await colony.route()
    assert await colony.at("/work") == [asked[2]]
    await finished(colony, *asked)


async def test_many_sessions_of_one_question_leave_nothing(colony: Colony) -> None:
    asked = [await colony.question(f"s-{n}") for n in range(100)]

    await finished(colony, *asked)


# What strangers do


async def test_sessions_of_which_nothing_waits_any_more_are_forgotten(colony: Colony) -> None:
    """Where a stranger deletes what is parked, nobody can count it down."""
    asked = [await colony.question() for _ in range(3)]
    await colony.route()
    await colony.link.command("DEL", colony.keys.parked())
    for trace in asked:
        await colony.traces.end(trace, "cancelled", "by hand")
    assert await colony.sessions.count() == (1, 0)

    assert await colony.sessions.look() == []

    assert await colony.sessions.count() == (0, 0)
    again = [await colony.question() for _ in range(2)]
    await finished(colony, *asked, *again)
