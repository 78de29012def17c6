"""Colonies over several hosts, whose links are cut: nothing is lost, nothing twice, all go on.

A host is a network namespace. The server has one of its own.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import httpx
import pytest

from colony.testing.claims import eventually
from tests.faults.host_colony import (
    CLAIM_IDLE_S,
    ROUNDS,
    TOOLS,
    HostColony,
    Site,
    late,
)
from tests.faults.hosts import Host, NamespacesRefused

pytestmark = pytest.mark.needs("ip")

CALLS = ROUNDS * TOOLS

cut_somehow = pytest.mark.parametrize(
    "cut", [Host.pull_the_plug, Host.swallow], ids=["link-down", "packets-lost"]
)

_numbers = count()


@pytest.fixture(scope="module")
def site(redis_binary: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(Site.open(redis_binary))
        except NamespacesRefused as error:
            # Also under COLONY_CI: nothing that could be installed would help.
            pytest.skip(f"this machine lets nobody make network namespaces: {error}")
        yield opened


@pytest.fixture
async def hosts(
    site: Site, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[HostColony]:
    claim_idle_s = getattr(request, "param", CLAIM_IDLE_S)
    name = f"hosts-{next(_numbers)}"
    async with HostColony.open(site, name, tmp_path, claim_idle_s=claim_idle_s) as colony:
        yield colony


async def test_the_processes_of_both_hosts_share_the_questions(hosts: HostColony) -> None:
    await hosts.pair("a")
    await hosts.pair("b")

    everybody = {(host, role) for host in "ab" for role in ("router", "worker")}
    ran: Counter[str] = Counter()
    committed: set[tuple[str, str]] = set()

    async def all_take_part() -> bool:
        with hosts.watching() as seen:
            ran.update(await hosts.answered(await hosts.ask(10)))
        committed.update(seen)
        return len(committed) == len(everybody)

    await eventually(all_take_part, "both routers and both workers take part")
    assert committed == everybody
    assert {*ran} == {"a", "b"}
    await hosts.assert_sound()


@cut_somehow
async def test_another_host_finishes_what_a_worker_behind_a_cut_holds(
    hosts: HostColony, cut: Callable[[Host], None]
) -> None:
    _, worker = await hosts.pair("a")
    others = await hosts.pair("b")
    with hosts.tools_held("a"):
        before = await hosts.ask(20)
        await hosts.tools_wait("a")
        cut(hosts["a"])
        ran = await hosts.answered([*before, *await hosts.ask(10)])
    await hosts.tools_went_on("a")
    assert ran == {"b": 30 * CALLS}

    hosts["a"].mend()
    await eventually(lambda: late(worker), "the worker is told that it comes too late")
    await hosts.assert_sound()

    await hosts.leave(*others)
    assert await hosts.answered(await hosts.ask(10)) == {"a": 10 * CALLS}
    await hosts.assert_sound()


@cut_somehow
async def test_another_host_routes_what_a_router_behind_a_cut_holds(
    hosts: HostColony, cut: Callable[[Host], None]
) -> None:
    router, _ = await hosts.pair("a", router="after_read=delay:2")
    others = await hosts.pair("b")
    before = await hosts.ask(20)
    source = hosts.keys.router()
    await eventually(lambda: hosts.in_hand(router, source), "the router holds something")
    cut(hosts["a"])
    await hosts.answered([*before, *await hosts.ask(10)])

    hosts["a"].mend()
    await eventually(lambda: late(router), "the router is told that it comes too late")
    await hosts.assert_sound()

    await hosts.leave(*others)
    assert await hosts.answered(await hosts.ask(10)) == {"a": 10 * CALLS}
    await hosts.assert_sound()


async def test_a_cut_worker_that_goes_on_cannot_publish_while_another_holds_its_work(
    hosts: HostColony,
) -> None:
    _, worker = await hosts.pair("a")
    with hosts.tools_held("b"):
        with hosts.tools_held("a"):
            questions = await hosts.ask(1)
            await hosts.tools_wait("a")
            await hosts.pair("b")
            hosts["a"].swallow()
            await hosts.tools_wait("b")
        await hosts.tools_went_on("a")
        hosts["a"].mend()
        await eventually(lambda: late(worker), "the worker is told that it comes too late")
        hops = await hosts.traces.log(questions[0])
        assert [h for h in hops if h.head.hop.get("route") == "c_res"] == []

    ran = await hosts.answered(questions)
    assert ran["b"] > 0
    await hosts.assert_sound()


async def test_a_host_whose_connections_died_unnoticed_makes_new_ones(hosts: HostColony) -> None:
    await hosts.pair("a")
    await hosts.api("a")
    with hosts.tools_held("a"):
        questions = await hosts.ask(5)
        await hosts.tools_wait("a")
        hosts["a"].readdress()

    questions += await hosts.ask(5)
    assert await hosts.answered(questions) == {"a": 10 * CALLS}

    async def api_answers() -> bool:
        with suppress(httpx.HTTPStatusError):
            hosts.asked.append(await hosts.post("a"))
        return len(hosts.asked) > len(questions)

    await eventually(api_answers, "the API answers again")
    await hosts.assert_sound()


async def test_all_wait_for_a_server_that_is_cut_off_and_go_on(hosts: HostColony) -> None:
    await hosts.pair("a")
    await hosts.pair("b")
    with hosts.tools_held("a"), hosts.tools_held("b"):
        before = await hosts.ask(20)
        await hosts.tools_wait("a")
        await hosts.tools_wait("b")
        hosts["server"].swallow()
        await eventually(hosts.claims_ran_out, "every claim runs out")

    hosts["server"].mend()
    await hosts.answered([*before, *await hosts.ask(10)])
    await hosts.assert_sound()


async def test_a_request_is_repeated_after_a_cut_between_admission_and_reply(
    hosts: HostColony,
) -> None:
    await hosts.pair("a")
    await hosts.api("b")
    await hosts.api("c", armed="after_birth=delay:30")
    first = asyncio.create_task(hosts.post("c", timeout_s=2))
    await eventually(hosts.admitted, "the message is admitted")
    hosts["c"].swallow()
    with pytest.raises(httpx.ReadTimeout):
        await first

    elsewhere = await hosts.post("b")
    hosts["c"].mend()
    again = await hosts.post("c")

    assert elsewhere == again
    assert await hosts.admitted() == [again]
    hosts.asked.append(again)
    await hosts.assert_sound()


# Nothing runs out here: what the leaving worker has goes on because it is handed back.
@pytest.mark.parametrize("hosts", [60.0], indirect=True)
async def test_a_worker_joins_and_another_leaves_under_load(hosts: HostColony) -> None:
    await hosts.pair("a")
    _, leaving = await hosts.pair("b")
    async with hosts.load(15) as ran:
        await eventually(lambda: ran["a"] and ran["b"], "both hosts take part")
        joining = hosts.fleets["c"].worker()
        await eventually(lambda: ran["c"], "the third worker takes part")
        with hosts.tools_held("b"):
            await hosts.tools_wait("b")
            await hosts.leave(leaving)
            cells = hosts.keys.cell("/a"), hosts.keys.cell("/b")
            assert await hosts.in_hand(leaving, *cells) == []

    assert joining.running
    await hosts.assert_sound()
