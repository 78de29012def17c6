"""What `bench.followers` claims of very many followers, of a few, over real processes."""

from pathlib import Path

import pytest

from bench.followers import CONNECTIONS, measure
from colony.testing.redis_server import RedisServer


@pytest.mark.parametrize("http", [False, True])
def test_followers_share_connections_and_each_is_told_the_end(
    redis_binary: Path, http: bool
) -> None:
    # On a port, where connections can be counted.
    with RedisServer.start(redis_binary, socket=False) as redis:
        figures, (found,) = measure(redis.url, followers=25, rounds=4, workers=1, runs=1, http=http)

    assert 1 <= found.connections <= CONNECTIONS
    # A follower that stands still is told all of it afterwards, or this had raised.
    assert all(figure.median > 0 for figure in figures)
    assert found.delivered > 0
