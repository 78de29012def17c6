"""What `bench.memory` claims of very many traces, of a few hundred."""

import asyncio

import pytest

from bench.contenders import NAME
from bench.memory import measure, tree
from colony.keeping import keeper
from colony.keys import Keys
from colony.link import Link
from colony.publication import Publication
from colony.roles import Router, Worker

RETENTION_MS = 1_000


async def test_as_many_keys_are_left_as_there_were_before(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SWEEP_S", 0.2)
    link, keys = Link(redis_url), Keys(NAME)
    await Publication(link, keys).publish(tree(RETENTION_MS))
    await link.close()
    roles = [Router(redis_url, keys), Worker(redis_url, keys)]
    serving = [asyncio.create_task(role.serve()) for role in roles]

    before, most, after = await measure(redis_url, 300, tolerance=1.5)

    assert most.keys > before.keys + 300
    assert (after.keys, after.mortal) == (before.keys, 0)
    for role in roles:
        role.stop()
    await asyncio.gather(*serving)
