"""Sessions: questions of one session are answered one after the other, whatever ends the first."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgpack import packb

from colony.access.status import read_status
from colony.body import Body, Entry
from colony.cli.trace import headline
from colony.dead_letters import DeadLetters
from colony.envelope import Headers, digest
from colony.errors import Backlogged, SettledElsewhere
from colony.keeping.audit import Audit
from colony.keeping.keeper import Keeper
from colony.pressure import Pressure
from colony.sessions import Sessions
from colony.testing.harness import Harness, at_random
from colony.topology.model import (
    CellSettings,
    CellSpec,
    ColonySettings,
    EdgeSpec,
    ModifierSpec,
    TopologySpec,
)

IN_ORDER = ModifierSpec(in_session_order=True)
ODD = ['a:b{c}"', "ü\u2028\x00", " ", "x" * 10_000, "{stepped:0}:order"]


def edge(source: str, target: str, modifier: ModifierSpec | None = IN_ORDER) -> EdgeSpec:
    return EdgeSpec(source=source, target=target, modifier=modifier)


def tree(
    *edges: EdgeSpec, hives: str = "/ /in", passing: tuple[str, ...] = (), **settings: int
) -> TopologySpec:
    """Sinks at the ends of edges, but for hives and for cells that pass on what they get."""
    sinks = sorted({e.target for e in edges} - {*hives.split(), *passing})
    cells = [CellSpec(path=path, cell=CellSettings(type="sink")) for path in sinks]
    cells += [
        CellSpec(
            path=path,
            cell=CellSettings(type="code"),
            params={"handler": "bench.handlers:pass_on"},
        )
        for path in passing
    ]
    return TopologySpec(
        settings=ColonySettings(blob_inline_max_bytes=1000, **settings),
        hives=tuple(hives.split()),
        cells=tuple(cells),
        edges=edges,
    )


class Colony(Harness):
    """A stepped colony whose questions come in at the hive `/in`."""

    def __init__(self, url: str, spec: TopologySpec) -> None:
        super().__init__(url, spec)
        self.sessions = Sessions(self.link, self.keys)

    async def question(self, session: object = "s", *, target: str = "/in", text: str = "x") -> str:
        context: Headers = {} if session is None else {"session_id": session}  # type: ignore[dict-item]
        return await self.send(target, Body.of(Entry.say("user", text)), context=context)

    async def at(self, path: str) -> list[str]:
        """The traces whose envelopes wait at a cell."""
        return [d.head.trace_id for d in await self.pending() if self.owner(d) == path]

    async def route(self) -> None:
        """Route all that waits for the router."""
        while found := [d for d in await self.pending() if d.source == self.keys.router()]:
            await self.step(found[0])

    async def answer(self, path: str = "/work") -> None:
        """Handle what waits at a cell, and let the keeper attend to what is quiet."""
        for delivery in await self.pending():
            if self.owner(delivery) == path:
                await self.step(delivery)
        await self.attend()

    async def left(self) -> list[str]:
        """The keys of sessions that are there."""
        found = await self.link.command("KEYS", "*session*")
        return [key.decode() for key in found]


async def end_completed(colony: Colony, trace_id: str) -> None:
    await colony.answer()


async def end_failed(colony: Colony, trace_id: str) -> None:
    for delivery in await colony.pending():
        if delivery.head.trace_id == trace_id:
            await colony.drop(delivery)
    await colony.link.command("HSET", colony.keys.trace(trace_id), "dead", 1)
    await colony.attend()


async def end_cancelled(colony: Colony, trace_id: str) -> None:
    await colony.traces.end(trace_id, "cancelled", "by hand")


async def end_overdue(colony: Colony, trace_id: str) -> None:
    await colony.link.command("ZADD", colony.keys.deadlines(), 1, trace_id)
    assert await Keeper(colony.streams, colony.publication).end_overdue() == [trace_id]


ENDS: dict[str, Callable[[Colony, str], Awaitable[None]]] = {
    "completed": end_completed,
    "failed": end_failed,
    "cancelled": end_cancelled,
    "overdue": end_overdue,
}


@pytest.fixture
async def colony(redis_url: str) -> AsyncIterator[Colony]:
    async with Colony(redis_url, tree(edge("/in", "/work"))) as colony:
        yield colony


# The order


async def test_the_questions_of_a_session_go_on_one_by_one_in_the_order_of_their_birth(
    colony: Colony,
) -> None:
    asked = [await colony.question() for _ in range(4)]
    await colony.route()
    served = []

    while at_work := await colony.at("/work"):
        served += at_work
        assert len(at_work) == 1
        await colony.answer()
        await colony.route()

    assert served == asked
    assert [(await colony.trace(t)).cause for t in asked] == ["completed"] * 4
    assert await colony.left() == []


async def test_the_order_of_birth_counts_and_not_that_of_arrival(colony: Colony) -> None:
    first, second = await colony.question(), await colony.question()
    (one, two) = await colony.pending()

    assert (await colony.step(two)).token == "parked"
    assert await colony.at("/work") == []

    assert (await colony.step(one)).token == "committed"
    assert await colony.at("/work") == [first]
    assert (await colony.trace(second)).live == 1


@pytest.mark.parametrize("seed", range(5))
async def test_sessions_do_not_wait_for_each_other(colony: Colony, seed: int) -> None:
    asked = [await colony.question(f"s{n % 3}") for n in range(9)]
    await colony.route()

    assert await colony.at("/work") == asked[:3]

    await colony.finish(at_random(seed))

    assert {(await colony.trace(t)).cause for t in asked} == {"completed"}
    assert await colony.left() == []


@pytest.mark.parametrize("session", [None, "", 7, True, ["s"], {"s": 1}])
async def test_what_names_no_session_waits_for_nobody(colony: Colony, session: object) -> None:
    asked = [await colony.question(session) for _ in range(2)]
    await colony.route()

    assert await colony.at("/work") == asked
    assert (await colony.trace(asked[0])).session is None
    assert await colony.left() == []


async def test_edges_without_the_modifier_keep_no_order(redis_url: str) -> None:
    async with Colony(redis_url, tree(edge("/in", "/work", None))) as colony:
        asked = [await colony.question() for _ in range(3)]
        await colony.route()

        assert await colony.at("/work") == asked

        await colony.finish()
        assert await colony.left() == []


async def test_a_trace_that_takes_no_such_edge_is_waited_for_all_the_same(redis_url: str) -> None:
    spec = tree(edge("/in", "/work"), edge("/by", "/work", None), hives="/ /in /by")
    async with Colony(redis_url, spec) as colony:
        first = await colony.question(target="/by")
        second = await colony.question()
        await colony.route()
        assert await colony.at("/work") == [first]

        await colony.answer()
        await colony.route()

        assert await colony.at("/work") == [second]


@pytest.mark.parametrize("session", ODD)
async def test_a_session_may_be_called_anything(colony: Colony, session: str) -> None:
    first, second = await colony.question(session), await colony.question(session)
    await colony.route()
    assert await colony.at("/work") == [first]
    assert (await colony.trace(second)).session == session
    assert await colony.sessions.count() == (1, 1)

    await colony.answer()
    await colony.route()

    assert await colony.at("/work") == [second]


async def test_a_large_body_is_whole_when_its_turn_comes(colony: Colony) -> None:
    await colony.question()
    second = await colony.question(text="y" * 5000)
    await colony.route()

    await colony.answer()
    await colony.route()

    (delivery,) = await colony.pending()
    assert delivery.head.trace_id == second
    assert len(await colony.blobs.inline(delivery.body)) > 5000


async def test_an_order_that_is_kept_at_two_edges_is_one(redis_url: str) -> None:
    spec = tree(edge("/in", "/on"), edge("/on", "/work"), hives="/ /in /on")
    async with Colony(redis_url, spec) as colony:
        asked = [await colony.question() for _ in range(3)]
        await colony.finish()

        ends = [(await colony.trace(t)).ended_at or 0 for t in asked]
        assert ends == sorted(ends)


async def test_an_edge_behind_a_hive_keeps_the_order_too(redis_url: str) -> None:
    spec = tree(edge("/in", "/on", None), edge("/on", "/work"), hives="/ /in /on")
    async with Colony(redis_url, spec) as colony:
        first, second = await colony.question(), await colony.question()
        await colony.route()

        assert await colony.at("/work") == [first]
        # What waits has taken no hop yet.
        assert await colony.hops(second) == []


async def test_all_that_one_envelope_becomes_waits_where_a_part_of_it_does(redis_url: str) -> None:
    spec = tree(edge("/in", "/work"), edge("/in", "/beside", None))
    async with Colony(redis_url, spec) as colony:
        first, second = await colony.question(), await colony.question()
        await colony.route()
        assert await colony.at("/beside") == [first]

        await colony.answer()
        await colony.answer("/beside")
        await colony.route()

        assert await colony.at("/beside") == [second]


async def test_all_that_a_trace_has_parked_is_released(redis_url: str) -> None:
    spec = tree(
        edge("/in", "/left", None),
        edge("/in", "/right", None),
        edge("/left", "/work"),
        edge("/right", "/work"),
        passing=("/left", "/right"),
    )
    async with Colony(redis_url, spec) as colony:
        first, second = await colony.question(), await colony.question()
        await colony.run()
        assert (await colony.trace(second)).live == 2
        assert await colony.sessions.count() == (1, 1)

        await colony.attend()
        await colony.route()

        assert (await colony.trace(first)).ended
        assert await colony.at("/work") == [second, second]
        assert await colony.sessions.count() == (0, 0)


# Whatever ends the first


@pytest.mark.parametrize("end", ENDS.values(), ids=[*ENDS])
async def test_whatever_ends_the_first_gives_the_turn_to_the_next(
    colony: Colony, end: Callable[[Colony, str], Awaitable[None]]
) -> None:
    first, second, third = [await colony.question() for _ in range(3)]
    await colony.route()

    await end(colony, first)
    await colony.route()

    assert (await colony.trace(first)).ended
    assert second in await colony.at("/work")
    assert third not in await colony.at("/work")
    assert await colony.sessions.count() == (1, 1)


async def test_a_question_that_is_cancelled_while_it_waits_is_passed_over(colony: Colony) -> None:
    first, second, third = [await colony.question() for _ in range(3)]
    await colony.route()

    await colony.traces.end(second, "cancelled", "by hand")

    assert (await colony.trace(second)).live == 0
    assert await colony.at("/work") == [first]
    assert second in await colony.attend()
    assert await colony.link.command("PTTL", colony.keys.trace(second)) > 0
    await colony.answer()
    await colony.route()
    assert await colony.at("/work") == [third]


async def test_one_that_had_its_turn_and_is_elsewhere_is_waited_for(colony: Colony) -> None:
    """The first is quiet, and revived: it has not ended."""
    first, second = await colony.question(), await colony.question()
    await colony.route()
    (delivery,) = await colony.pending()

    await colony.drop(delivery)

    assert (await colony.trace(first)).state == "quiet"
    assert await colony.at("/work") == []
    await colony.attend()
    await colony.route()
    assert await colony.at("/work") == [second]


async def test_ending_twice_releases_once(colony: Colony) -> None:
    asked = [await colony.question() for _ in range(3)]
    await colony.route()

    for _ in range(2):
        await colony.traces.end(asked[0], "cancelled", "by hand")
        await colony.traces.end_quiet(asked[0], "s")
    await colony.route()

    assert (await colony.at("/work")).count(asked[1]) == 1
    assert await colony.sessions.count() == (1, 1)


async def test_a_session_that_was_not_known_is_found_on_the_way(colony: Colony) -> None:
    first, second = await colony.question(), await colony.question()
    await colony.route()
    before = await colony.traces.get(first)
    assert before.session == "s"
    (delivery,) = await colony.pending()
    await colony.drop(delivery)

    await colony.traces.end_quiet(first, None)
    await colony.route()

    assert await colony.at("/work") == [second]


# Parking


async def test_parking_twice_keeps_one_envelope(colony: Colony) -> None:
    """Two routers hold the same entry; and what the second one asks when all is over is late."""
    first, second = await colony.question(), await colony.question()
    _, waits = await colony.pending()
    for _ in range(2):
        with pytest.raises(SettledElsewhere):
            await colony.decide(waits)
    assert await colony.sessions.count() == (1, 1)

    await colony.traces.end(first, "cancelled", "by hand")
    late = await colony.commit(await colony.decide(waits))
    await colony.route()

    assert [outcome.token for outcome in late] == ["stale"]
    assert await colony.at("/work") == [second]
    assert (await colony.trace(second)).live == 1


async def test_a_router_that_dies_between_its_turn_and_the_commit_leaves_the_order(
    colony: Colony,
) -> None:
    first, second = await colony.question(), await colony.question()
    one, two = await colony.pending()
    await colony.decide(one)

    assert (await colony.step(two)).token == "parked"
    assert (await colony.step(one)).token == "committed"

    assert await colony.at("/work") == [first]
    await colony.answer()
    await colony.route()
    assert await colony.at("/work") == [second]


async def test_an_edge_may_name_the_session(redis_url: str) -> None:
    """Births of a source carry no context: such a trace has its place from the edge on."""
    named = ModifierSpec(set_context={"session_id": "hop.chat"}, in_session_order=True)
    async with Colony(redis_url, tree(edge("/in", "/work", named))) as colony:
        body = Body.of(Entry.say("user", "x"))
        asked = [await colony.send("/in", body, hop={"chat": chat}) for chat in "aab"]
        await colony.route()
        assert await colony.at("/work") == [asked[0], asked[2]]

        await colony.answer()
        await colony.route()

        assert await colony.at("/work") == [asked[1]]
        await colony.finish()
        assert await colony.left() == []


async def test_a_trace_waits_in_one_session_only(redis_url: str) -> None:
    other = ModifierSpec(set_context={"session_id": "'other'"}, in_session_order=True)
    spec = tree(edge("/in", "/on"), edge("/on", "/work", other), hives="/ /in /on")
    async with Colony(redis_url, spec) as colony:
        asked = [await colony.question(session) for session in ("a", "b", "other")]
        await colony.route()

        assert await colony.at("/work") == asked


async def test_a_place_that_is_missing_is_given_at_the_end(colony: Colony) -> None:
    first, second = await colony.question(), await colony.question()
    await colony.link.command("ZREM", colony.keys.order(digest("s")), first)

    await colony.route()

    assert await colony.at("/work") == [second]
    await colony.answer()
    await colony.route()
    assert await colony.at("/work") == [first]


async def test_a_replay_as_a_new_trace_comes_last(colony: Colony) -> None:
    first = await colony.question(target="/nowhere")
    await colony.finish()
    assert (await colony.trace(first)).ended
    (letter,) = await colony.letters()
    await colony.question()
    await colony.route()

    again = await DeadLetters(colony.link, colony.keys).replay(letter.id, ttl=9)

    assert (await colony.trace(again)).session == "s"
    places = await colony.link.command("ZRANGE", colony.keys.order(digest("s")), 0, -1)
    assert places[-1].decode() == again
    await colony.finish()
    assert await colony.left() == []


# What is told of it, and held against it


async def test_what_waits_is_told_and_counts_as_waiting(colony: Colony) -> None:
    asked = [await colony.question(f"s{n % 2}") for n in range(5)]
    await colony.route()

    told = await read_status(colony.link, colony.keys, colony.publication)

    assert told.to_json()["sessions"] == {
        "waiting": 2,
        "traces": 3,
        "held": [
            {"session": "s0", "traces": 2, "turn": asked[0]},
            {"session": "s1", "traces": 1, "turn": asked[1]},
        ],
    }
    assert told.waiting == 5
    waits = [await colony.sessions.waits(trace) for trace in asked]
    assert waits == [False, False, True, True, True]
    turns = [await colony.sessions.waits_for(trace, f"s{n % 2}") for n, trace in enumerate(asked)]
    assert turns == [None, None, asked[0], asked[1], asked[0]]
    assert headline(await colony.trace(asked[2]), 0, waits_for=asked[0]).endswith(
        f"1 under way, waiting for {asked[0]}, an older trace of its session"
    )


async def test_what_waits_leaves_less_room_for_what_comes(redis_url: str) -> None:
    spec = tree(edge("/in", "/work"), ingress_backlog_max=3)
    async with Colony(redis_url, spec) as colony:
        for _ in range(3):
            await colony.question()
        await colony.route()

        with pytest.raises(Backlogged):
            await Pressure(colony.link, colony.keys).admit_one(colony.publication.current)


# What strangers do


async def test_a_first_trace_whose_record_is_gone_holds_nobody_up(colony: Colony) -> None:
    first, second = await colony.question(), await colony.question()
    await colony.route()
    await colony.link.command("DEL", colony.keys.trace(first))

    assert await colony.sessions.look() == ["s"]
    await colony.route()

    assert second in await colony.at("/work")
    assert await colony.sessions.look() == []


async def test_places_that_are_gone_are_given_again_in_the_order_of_birth(colony: Colony) -> None:
    first, second, third = [await colony.question() for _ in range(3)]
    await colony.route()
    for n, trace in enumerate((first, second, third)):
        await colony.link.command("HSET", colony.keys.trace(trace), "created_at", n)
    await colony.link.command("DEL", colony.keys.order(digest("s")))

    for _ in range(2):
        assert await colony.sessions.look() == ["s"]
    await colony.answer()
    await colony.route()

    assert await colony.at("/work") == [second]
    assert await colony.sessions.count() == (1, 1)


async def test_a_session_in_order_is_left_alone(colony: Colony) -> None:
    asked = [await colony.question() for _ in range(3)]
    await colony.route()

    assert await colony.sessions.look() == []

    assert await colony.at("/work") == [asked[0]]
    assert await colony.sessions.count() == (1, 2)


async def test_the_audit_finds_what_is_parked(colony: Colony) -> None:
    asked = [await colony.question() for _ in range(2)]
    await colony.route()
    audit = _audit(colony)

    assert await audit.search(asked) == ([], set())

    await colony.link.command("HDEL", colony.keys.parked(), asked[1])
    assert await audit.search(asked) == ([asked[1]], set())
    assert (await colony.trace(asked[1])).state == "quiet"


async def test_what_is_parked_and_unreadable_counts_as_lost(colony: Colony) -> None:
    asked = [await colony.question() for _ in range(2)]
    await colony.route()
    await colony.link.command("HSET", colony.keys.parked(), asked[1], packb({"no": "list"}))

    assert await _audit(colony).search(asked) == ([asked[1]], set())


async def test_what_is_released_during_a_search_is_not_lost(colony: Colony) -> None:
    """It is looked for among the parked first: it may be seen twice, never not at all."""
    asked = [await colony.question() for _ in range(2)]
    await colony.route()
    audit = _audit(colony)
    parked = audit._parked

    async def then_released(ids: set[str], server: str) -> object:
        found = await parked(ids, server)
        await colony.traces.end(asked[0], "cancelled", "by hand")
        return found

    audit._parked = then_released  # type: ignore[method-assign, assignment]
    corrected, _ = await audit.search(asked)

    assert corrected == []
    assert (await colony.trace(asked[1])).live == 1


def _audit(colony: Colony) -> Audit:
    keeper = Keeper(colony.streams, colony.publication)
    return Audit(colony.link, colony.keys, colony.publication, keeper.attend)
