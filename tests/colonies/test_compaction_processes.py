"""A fold outlasts the processes that make it: killed between handling and commit, they cost no
second summary and no second request to a model."""

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.testing.claims import eventually
from colony.testing.fleet import Fleet, Process
from colony.testing.model_server import ModelRequest
from colony.testing.nursery import Nursery
from colony.traces import Traces
from tests.colonies.folding import Model, folding_tree, serving

KEYS = Keys("folding")
COLLECTOR = "/tool-loop/collector"
OTHERS = ("/capture", "/llm", "/tool-loop/[!c]*", "/tool-loop/calc", "/store", "/closer", "/[dps]*")


class Waiting(Model):
    """A model whose fold takes until it is let go on."""

    def __init__(self) -> None:
        super().__init__(rounds=4)
        self.go_on = threading.Event()

    def _fold(self, request: ModelRequest) -> Mapping[str, Any]:
        answer = super()._fold(request)
        assert self.go_on.wait(60)
        return answer


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


@pytest.fixture
def fleet(nursery: Nursery, redis_url: str) -> Iterator[Fleet]:
    environment = {"COLONY_CLAIM_IDLE_S": "1"}
    with Fleet(nursery, redis_url, "folding", environment=environment) as started:
        yield started


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


def hosting(fleet: Fleet, *patterns: str, armed: str = "") -> Process:
    return fleet.worker(*(word for p in patterns for word in ("--cells", p)), armed=armed)


async def ask(link: Link) -> str:
    body = Body.of(Entry.say("user", "How often?"))
    return (await Traces(link, KEYS).birth("/capture", body, ttl=64)).trace_id


async def ended(link: Link, trace_id: str) -> list[Any]:
    """What came of a question, once it has ended well."""
    traces = Traces(link, KEYS)

    async def found() -> bool:
        return (await traces.get(trace_id)).ended

    await eventually(found, "the question ends")
    trace = await traces.get(trace_id)
    assert (trace.cause, trace.dead) == ("completed", 0)
    return [output["body"]["messages"][-1]["text"] for output in await traces.outputs(trace_id)]


@pytest.mark.parametrize("join", ["collect", "settle"])
@pytest.mark.parametrize("cell", ["/compact/prep", "/compact/condense", "/compact/emit"])
async def test_a_cell_of_the_lane_is_killed_before_its_commit(
    fleet: Fleet, link: Link, tmp_path: Path, cell: str, join: str
) -> None:
    model = Model(rounds=4)
    with serving(model):
        await Publication(link, KEYS).publish(folding_tree(tmp_path, model, join=join))
        await fleet.router().serving()
        lost = hosting(fleet, cell, armed="after_handle=crash")
        lane = {"/compact/prep", "/compact/condense", "/compact/emit"} - {cell}
        hosting(fleet, COLLECTOR, *OTHERS, *lane)
        question = await ask(link)
        assert await lost.ended() == -9
        fleet.again(lost)
        said = await ended(link, question)

    assert said == ["done"]
    assert (len(model.asked), len(model.folds)) == (5, 1)
    assert len(model.asked[-1].messages) == 1 + 4


@pytest.mark.parametrize("join", ["collect", "settle"])
async def test_the_collector_is_killed_with_the_summary_in_hand(
    fleet: Fleet, link: Link, tmp_path: Path, join: str
) -> None:
    model = Waiting()
    with serving(model):
        await Publication(link, KEYS).publish(folding_tree(tmp_path, model, join=join))
        await fleet.router().serving()
        collector = hosting(fleet, COLLECTOR)
        hosting(fleet, "/compact/*", *OTHERS)
        question = await ask(link)
        await eventually(lambda: _known(model.folds), "a fold begins")
        collector.kill()
        lost = hosting(fleet, COLLECTOR, armed="after_handle=crash")
        model.go_on.set()
        assert await lost.ended() == -9
        fleet.again(lost)
        said = await ended(link, question)

    assert said == ["done"]
    assert (len(model.asked), len(model.folds)) == (5, 1)
    assert len(model.asked[-1].messages) == 1 + 4


async def _known(found: list[str]) -> bool:
    return bool(found)
