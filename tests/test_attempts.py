"""What an attempt leaves behind for the one after it."""

from collections.abc import Sequence

from colony import attempts
from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.hosting import LiveHost
from colony.keys import Keys
from colony.link import Link
from colony.topology.model import CellSettings, CellSpec
from colony.traces import Traces

KEYS = Keys("test")


async def test_an_attempt_that_was_cut_off_leaves_all_that_its_commit_would_have_kept(
    redis_url: str,
) -> None:
    link = Link(redis_url)
    body = Body.of(Entry.call("c", {}))
    trace_id = (await Traces(link, KEYS).birth("/a", body, ttl=9)).trace_id
    envelope = Envelope(id="e", trace_id=trace_id, target="/a", ttl=9, body=body)
    spec = CellSpec(path="/a", cell=CellSettings(type="bash"))

    def host() -> LiveHost:
        return LiveHost(
            link=link,
            keys=KEYS,
            spec=spec,
            directory=None,
            tools=(),
            envelope=envelope,
            server=link.server,
        )

    first, second = host(), host()

    async def handle() -> Sequence[Emission]:
        first.keep(body, {"n": 1})
        return [Emission.of(Entry.result("c", await first.shelve("the whole")))]

    begun = await attempts.once(first, "attempt-1", handle)
    found = await attempts.once(second, "attempt-2", handle)
    await link.close()

    assert found == begun
    assert (second.kept, second.shelved) == (first.kept, first.shelved)
    assert len(second.shelved) == 1
