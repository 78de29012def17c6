"""A small colony that runs, and a client of its HTTP interface."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from colony.access import Access
from colony.api.app import make_app
from colony.engine import Engine
from colony.keys import Keys
from colony.principals import Principals
from colony.roles import Router, Worker
from colony.topology.load import load
from colony.topology.model import TopologySpec

HANDLERS = """
import asyncio

from colony.envelope import Emission


def greet(envelope, params):
    return Emission.say("hello " + envelope.body.last("user").text, route="done")


async def linger(envelope, params):
    await asyncio.sleep(60)
"""

EDGES = [
    {"from": "./greet", "to": "./out", "condition": "hop.route == 'done'"},
    {"from": "./slow", "to": "./out"},
]


def cell(kind: str, **params: object) -> dict[str, object]:
    return {"cell": {"type": kind}, "params": params}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`/greet` answers over `/out`, `/slow` does not answer for a minute."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "small_handlers.py").write_text(HANDLERS)
    configs = {
        "main": cell("hive", graph={"edges": EDGES}),
        "main/greet": cell("code", handler="small_handlers:greet"),
        "main/slow": cell("code", handler="small_handlers:linger"),
        "main/out": cell("sink"),
    }
    for place, config in configs.items():
        (tmp_path / place).mkdir()
        (tmp_path / place / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def spec(tree: Path) -> TopologySpec:
    return load(tree, environment={}).publishable()


@pytest.fixture
async def access(redis_url: str, spec: TopologySpec) -> AsyncIterator[Access]:
    """The small colony, published, with nobody to run it."""
    async with Access(redis_url, "colony") as access:
        await access.publication.publish(spec)
        yield access


@pytest.fixture
async def running(access: Access) -> AsyncIterator[Access]:
    """The small colony with a router and a worker."""
    roles = [Router(access.link.url, Keys("colony")), Worker(access.link.url, Keys("colony"))]
    serving = [asyncio.create_task(role.serve()) for role in roles]
    yield access
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


@pytest.fixture
async def http(access: Access) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the small colony."""
    transport = httpx.ASGITransport(
        make_app(Engine(access), principals=Principals()), raise_app_exceptions=False
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client
