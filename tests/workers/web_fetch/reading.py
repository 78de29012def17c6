"""A `web_fetch` cell in tests: started with params, asked for a URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpcore
import httpx

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.testing.host import RecordingHost
from workers.web_fetch import WebFetch
from workers.web_fetch.screen import Resolver, system_resolver


@asynccontextmanager
async def reader(
    directory: Path | None = None,
    *,
    resolve: Resolver = system_resolver,
    network: httpcore.AsyncNetworkBackend | None = None,
    **params: object,
) -> AsyncIterator[WebFetch]:
    cell = WebFetch(WebFetch.Params.model_validate(params), resolve=resolve, network=network)
    await cell.start(RecordingHost.of("web_fetch", directory=directory))
    try:
        yield cell
    finally:
        await cell.stop()


async def ask(cell: WebFetch, url: str, host: RecordingHost | None = None) -> Emission:
    """The cell's answer, which is one result under the id of the call whatever happened."""
    body = Body.of(Entry.call("call-1", {"url": url}))
    envelope = Envelope(id="e", trace_id="t", target="/reader", ttl=9, body=body)
    [emission] = await cell.handle(envelope, host or RecordingHost.of("web_fetch"))
    [entry] = emission.body.entries
    assert (entry.type, entry.id) == ("tool_result", "call-1")
    assert emission.hop["operation"] == "web_fetch"
    return emission


async def fetch(url: str, host: RecordingHost | None = None, **params: object) -> Emission:
    """What is at a URL of this machine, its port declared."""
    try:
        port = httpx.URL(url).port
    except httpx.InvalidURL:
        port = None
    ports = [port] if port in range(1, 65_536) else []
    async with reader(allow_private_networks=True, ports=ports, **params) as cell:
        return await ask(cell, url, host)


def text(emission: Emission) -> str:
    """The text of the answer, without the line that says where the whole is kept."""
    return (emission.body.entries[0].text or "").partition("\n[kept: ")[0]
