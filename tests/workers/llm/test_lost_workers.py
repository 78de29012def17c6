"""What becomes of a model's answer, and of its place in a budget, when its worker is killed."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.keys import Keys
from colony.link import Link
from colony.testing.claims import eventually
from colony.testing.fleet import Fleet
from colony.testing.model_server import ModelServer
from colony.testing.nursery import Nursery
from colony.traces import Traces, read_output

KEYS = Keys("lost")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


@pytest.fixture
def fleet(nursery: Nursery, redis_url: str) -> Iterator[Fleet]:
    environment = {"COLONY_CLAIM_IDLE_S": "1"}
    with Fleet(nursery, redis_url, "lost", environment=environment) as started:
        yield started


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


def tree(at: Path, server: ModelServer, **params: Any) -> Path:
    """A model, and a sink for what it emits."""
    place = {"provider": "openai", "model": "m", "base_url": server.base_url}
    model = {"cell": {"type": "llm"}, "params": {**place, "stream": True, **params}}
    edges = {"graph": {"edges": [{"from": "./model", "to": "./sink"}]}}
    cells = {
        "": {"cell": {"type": "hive"}, "params": edges},
        "model": model,
        "sink": {"cell": {"type": "sink"}},
    }
    for name, config in cells.items():
        (at / "main" / name).mkdir(parents=True, exist_ok=True)
        (at / "main" / name / "config.json").write_text(json.dumps(config))
    return at


async def ask(link: Link) -> str:
    question = Body.of(Entry.say("user", "What is it?"))
    return (await Traces(link, KEYS).birth("/model", question, ttl=9)).trace_id


async def output(link: Link, trace_id: str) -> dict[str, Any]:
    """What came of a question, once something did."""
    kept = await eventually(
        lambda: link.command("LRANGE", KEYS.outputs(trace_id), 0, -1), "something comes of it"
    )
    return dict(read_output(kept[0]))


async def test_an_answer_that_nobody_saw_is_asked_for_again(
    fleet: Fleet, link: Link, tmp_path: Path
) -> None:
    with ModelServer(lambda request: {"text": "It is blue"}) as server:
        await fleet.publish(tree(tmp_path, server))
        await fleet.router().serving()
        lost = fleet.worker(armed="before_record=crash")
        question = await ask(link)
        assert await lost.ended() == -9
        fleet.again(lost)
        found = await output(link, question)

    assert found["hop"]["finish_reason"] == "stop"
    assert len(server.requests) == 2


async def test_an_answer_that_had_begun_to_show_is_left_to_a_person(
    fleet: Fleet, link: Link, tmp_path: Path
) -> None:
    with ModelServer(lambda request: {"text": "It is blue"}) as server:
        await fleet.publish(tree(tmp_path, server))
        await fleet.router().serving()
        lost = fleet.worker(armed="after_record=crash")
        question = await ask(link)
        assert await lost.ended() == -9
        fleet.again(lost)
        found = await output(link, question)

    assert found["hop"]["error_code"] == "stream_cut"
    assert found["hop"]["stream_progress"] == "visible"
    assert len(server.requests) == 1


@pytest.mark.parametrize("script", ["take_allowance", "settle_allowance"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_that_is_killed_keeps_nobody_from_a_budget(
    fleet: Fleet, link: Link, tmp_path: Path, when: str, script: str
) -> None:
    limits = {"max_in_flight": 1, "external_timeout_ms": 1000, "stream": False}
    with ModelServer(lambda request: {"text": "It is blue"}) as server:
        await fleet.publish(tree(tmp_path, server, **limits))
        await fleet.router().serving()
        lost = fleet.worker(armed=f"{when}_{script}=crash")
        questions = [await ask(link) for _ in range(3)]
        assert await lost.ended() == -9
        fleet.again(lost)
        fleet.again(lost)
        found = [await output(link, question) for question in questions]

    assert [one["hop"]["finish_reason"] for one in found] == ["stop"] * 3
