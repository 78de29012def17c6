"""A change that is made only where a replica knows that it was begun."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from colony import attempts
from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.errors import OutcomeUnknown
from colony.hosting import LiveHost
from colony.keys import Keys
from colony.link import Link
from colony.replicas import Replicas
from colony.testing.replicated_server import ReplicatedServer
from colony.topology.model import CellSettings, CellSpec
from colony.traces import Traces

pytestmark = pytest.mark.needs("redis-server")

KEYS = Keys("test")
SPEC = CellSpec(path="/a", cell=CellSettings(type="bash"))


@pytest.fixture
def servers() -> Iterator[ReplicatedServer]:
    with ReplicatedServer.start(Path(shutil.which("redis-server") or "")) as started:
        yield started


async def attempted(link: Link, confirmed: bool) -> list[str]:
    """What a new call has done, where it is not known otherwise whether it was begun."""
    body = Body.of(Entry.call("c", {}))
    trace_id = (await Traces(link, KEYS).birth("/a", body, ttl=9)).trace_id
    host = LiveHost(
        link=link,
        keys=KEYS,
        spec=SPEC,
        directory=None,
        tools=(),
        envelope=Envelope(id="e", trace_id=trace_id, target="/a", ttl=9, body=body),
        server=link.server,
    )
    replicas, done = Replicas(link.url, KEYS), list[str]()

    async def handle() -> Sequence[Emission]:
        done.append("changed")
        return [Emission.of(Entry.result("c", "changed"))]

    async def asked() -> bool:
        return await replicas.have_it(link.server)

    await attempts.once(host, "attempt", handle, confirmed=asked if confirmed else None)
    return done


async def test_a_change_is_made_only_where_a_replica_knows_that_it_was_begun(
    servers: ReplicatedServer,
) -> None:
    link = Link(servers.primary.url)
    replica = servers.replica
    try:
        assert await attempted(link, confirmed=True) == ["changed"]
        replica.pause()
        with pytest.raises(OutcomeUnknown):
            await attempted(link, confirmed=True)
        assert await attempted(link, confirmed=False) == ["changed"]
        replica.resume()
        assert await attempted(link, confirmed=True) == ["changed"]
    finally:
        await link.close()
