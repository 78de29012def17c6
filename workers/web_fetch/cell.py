"""The cell type `web_fetch`: one URL in, the readable text of what it names out."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue

from colony.cell import Cell, Host
from colony.envelope import Emission, Envelope
from colony.errors import InvalidInput, Unreadable
from colony.topology.model import ToolDeclaration
from workers.documents import Folder, content_type
from workers.http_body import HttpBody
from workers.tool_call import Answer, Arguments, answer
from workers.web_fetch.extract import text_of
from workers.web_fetch.page import get, parse_url
from workers.web_fetch.screen import Resolver, Screen, system_resolver
from workers.web_fetch.transport import ScreenedTransport

# Of a page, text is taken from so much; its markup may be many times its text.
PAGE_LIMIT = 4 << 20


class Target(Arguments):
    """What is fetched."""

    url: Annotated[str, Field(min_length=1, description="The URL of the document to read.")]


class WebFetch(Cell):
    """Read a page of the web, or a document below `root` by its `file:` URL.

    A response that is not 2xx is a result like any other, with its `http_status`. Addresses are
    screened before each connection.
    """

    class Params(Cell.Params):
        """Without `root` no file can be read; a relative one is below the cell's own folder."""

        root: str = ""
        external_timeout_ms: int = Field(default=30_000, ge=1)
        max_concurrency: int = Field(default=32, ge=1)
        max_bytes: int = Field(default=262_144, ge=1)
        max_redirects: int = Field(default=5, ge=0)
        allow_private_networks: bool = False

    default_tool = ToolDeclaration(
        name="web_fetch",
        description="Read the document at a URL. Returns its text.",
        parameters=Target.schema_of_tool(),
        read_only=True,
    )
    params: Params
    _folder: Folder | None
    _transport: ScreenedTransport

    def __init__(self, params: Params, *, resolve: Resolver = system_resolver) -> None:
        super().__init__(params)
        self._resolve = resolve

    async def start(self, host: Host) -> None:
        """Open the connection pool; raises ConfigError where `root` is missing on this host."""
        root = self.params.root
        self._folder = Folder.at(root, host.directory) if root else None
        private = self.params.allow_private_networks
        self._transport = ScreenedTransport(Screen(self._resolve, allow_private_networks=private))

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """Answer one `{url}`."""
        return await answer(
            envelope,
            self._fetch,
            operation="web_fetch",
            arguments=Target,
            timeout_ms=self.params.external_timeout_ms,
        )

    async def stop(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def _fetch(self, target: Target) -> Answer:
        url = target.url.strip()
        if url[:5].lower() == "file:":
            return await self._file(url)
        return await self._page(url)

    async def _file(self, url: str) -> Answer:
        if self._folder is None:
            raise InvalidInput(detail="file URLs are not read here, only http and https")
        path = self._folder.find(url)
        body = await asyncio.to_thread(_read, path, self._limit)
        mime_type = content_type(path)
        return await self._answer(body, mime_type, None, content_type=mime_type)

    async def _page(self, url: str) -> Answer:
        page = await get(
            self._transport,
            parse_url(url),
            max_redirects=self.params.max_redirects,
            limit=self._limit,
        )
        hop: dict[str, JsonValue] = {
            "http_status": page.status,
            "content_type": page.content_type,
        }
        if page.redirects:
            hop.update(redirects=page.redirects, final_url=page.url)
        return await self._answer(page.body, page.content_type, page.charset, **hop)

    async def _answer(
        self, body: HttpBody, mime_type: str, charset: str | None, /, **hop: JsonValue
    ) -> Answer:
        text = await text_of(body.head, mime_type, charset)
        size = body.size if body.cut else None
        return Answer.capped(text, max_bytes=self.params.max_bytes, size=size, **hop)

    @property
    def _limit(self) -> int:
        return max(PAGE_LIMIT, self.params.max_bytes)


def _read(path: Path, limit: int) -> HttpBody:
    try:
        with path.open("rb") as file:
            head = file.read(limit)
            return HttpBody(head, max(len(head), path.stat().st_size))
    except OSError as error:
        raise Unreadable(detail=f"{path.name}: {error.strerror}") from error
