"""An append-only file that was torn within a commit: whole or not at all, at every later start."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from colony.testing.harness import Harness
from colony.testing.redis_server import RedisServer
from colony.topology.load import load
from colony.trees import shipped

HELLO = shipped("hello")
# Where within what the commit wrote the file ends.
PLACES = (0.02, 0.2, 0.4, 0.6, 0.8, 0.98)

Contents = Mapping[str, Any]


@asynccontextmanager
async def stepped(server: RedisServer) -> AsyncIterator[Harness]:
    spec = load(HELLO, environment={}).publishable()
    async with Harness(server.url, spec, root=HELLO) as harness:
        yield harness


def contents(server: RedisServer) -> Contents:
    """Everything the server holds, but for times that pass."""
    with redis.Redis.from_url(server.url) as client:
        return {key.decode(): _content(client, key) for key in sorted(client.scan_iter())}


def _content(client: redis.Redis, key: bytes) -> Any:
    match client.type(key):
        case b"hash":
            return sorted(client.hgetall(key).items())
        case b"set":
            return sorted(client.smembers(key))
        case b"zset":
            return client.zrange(key, 0, -1, withscores=True)
        case b"list":
            return client.lrange(key, 0, -1)
        case b"stream":
            groups = [
                (group["last-delivered-id"], _pending(client, key, group["name"]))
                for group in client.xinfo_groups(key)
            ]
            return client.xrange(key), groups
    return client.get(key)


def _pending(client: redis.Redis, key: bytes, group: bytes) -> list[Any]:
    found = client.xpending_range(key, group, "-", "+", 100)
    return [(each["message_id"], each["times_delivered"]) for each in found]


class Torn:
    """A server that was killed, with all that an answered commit wrote at the end of its file."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.before: Contents = {}
        self._from = self._size = 0
        self._kept = server.data.with_name(f"{server.data.name}-kept")

    async def prepare(self) -> None:
        async with stepped(self.server) as harness:
            await harness.ask("/greeter", "you")
            (routed,) = await harness.pending()
            await harness.step(routed)
            (handled,) = await harness.pending()
            step = await harness.decide(handled)
            self.before, self._from = contents(self.server), self._end()
            assert (await harness.commit(step))[0].token == "committed"
            self._size = self._end() - self._from
        self.server.kill()
        shutil.copytree(self.server.aof.parent, self._kept)

    def cut(self, place: float) -> None:
        """The file ends after this part of the commit, and nothing ran since."""
        self.server.kill()
        shutil.rmtree(self.server.data / "appendonlydir")
        shutil.copytree(self._kept, self.server.data / "appendonlydir")
        self.server.cut_aof(self._size - int(self._size * place))

    def forget(self) -> None:
        shutil.rmtree(self._kept, ignore_errors=True)

    def _end(self) -> int:
        return self.server.aof.stat().st_size


@pytest.fixture
async def torn(request: pytest.FixtureRequest, redis_binary: Path) -> AsyncIterator[Torn]:
    oldest = Path(shutil.which("redis-server") or redis_binary)
    binary = oldest if request.param == "the oldest server" else redis_binary
    with RedisServer.start(binary, fsync="always") as server:
        torn = Torn(server)
        await torn.prepare()
        yield torn
        torn.forget()


async def seen_twice(torn: Torn, place: float) -> tuple[Contents, Contents]:
    """What is there after one start and some work, and what after another start."""
    torn.cut(place)
    await asyncio.to_thread(torn.server.restart)
    assert contents(torn.server) == torn.before
    async with stepped(torn.server) as harness:
        await harness.ask("/greeter", "somebody else")
    once = contents(torn.server)
    torn.server.kill()
    await asyncio.to_thread(torn.server.restart)
    return once, contents(torn.server)


@pytest.mark.needs("redis-server")
@pytest.mark.parametrize("torn", ["the oldest server", "the server under test"], indirect=True)
async def test_a_commit_that_was_torn_never_happens_however_often_the_server_starts(
    torn: Torn,
) -> None:
    for place in PLACES:
        once, twice = await seen_twice(torn, place)

        assert twice == once, place


@pytest.mark.needs("redis-server")
@pytest.mark.parametrize("torn", ["the oldest server"], indirect=True)
async def test_the_oldest_server_applies_half_a_commit_later_where_its_file_is_not_rewritten(
    torn: Torn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above would show without the rewrite."""
    monkeypatch.setattr("colony.embedded.server._rewrite_log", lambda client: None)

    seen = [await seen_twice(torn, place) for place in PLACES]

    assert any(once != twice for once, twice in seen)
