"""The cell type `web_fetch`: one URL in, the readable text of what it names out."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import httpcore
from pydantic import Field, JsonValue

from colony.cell import Cell
from colony.envelope import Emission, Envelope
from colony.errors import InvalidInput, Unreadable
from colony.host import Host
from colony.results import KEPT_BYTES, MAX_RESULT_BYTES
from colony.topology.findings import Flaw
from colony.topology.model import CellSpec, ToolDeclaration
from workers.charset import decode
from workers.documents import Folder, content_type
from workers.extraction import HTML, PDF, PDF_LIMIT, Extract, extract, may_be_pdf, program_for
from workers.http_body import HttpBody
from workers.named_folders import folder
from workers.tool_call import Answer, Arguments, KeepBytes, answer, kept_of
from workers.web_fetch.page import get, parse_url
from workers.web_fetch.screen import Resolver, Screen, system_resolver
from workers.web_fetch.transport import ScreenedTransport

# Of a page, text is taken from so much; its markup may be many times its text, and more than twice
# of that is more than its reader may hold.
PAGE_LIMIT = 8 << 20


Port = Annotated[int, Field(ge=1, le=65_535)]


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
        keep_bytes: KeepBytes = KEPT_BYTES
        max_redirects: int = Field(default=5, ge=0)
        ports: tuple[Port, ...] = ()
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

    def __init__(
        self,
        params: Params,
        *,
        resolve: Resolver = system_resolver,
        network: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        super().__init__(params)
        self._resolve = resolve
        self._network = network

    @classmethod
    def flaws(cls, spec: CellSpec) -> Iterator[Flaw]:
        """An absolute `root` that is not there."""
        return folder(spec, "root")

    async def start(self, host: Host) -> None:
        """Open the connection pool; raises ConfigError where `root` is missing on this host."""
        root = self.params.root
        self._folder = Folder.at(root, host.directory) if root else None
        screen = Screen(
            self._resolve,
            allow_private_networks=self.params.allow_private_networks,
            ports=self.params.ports,
        )
        self._transport = ScreenedTransport(screen, self._network)

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """Answer one `{url}`."""
        return await answer(
            envelope,
            self._fetch,
            host=host,
            operation="web_fetch",
            arguments=Target,
            timeout_ms=self.params.external_timeout_ms,
        )

    async def stop(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def probe(self) -> str:
        """What can be read; no host is asked."""
        files = f", and files below {self._folder.root}" if self._folder else ""
        return f"reads http and https{files}"

    async def _fetch(self, target: Target) -> Answer:
        url = target.url.strip()
        if url[:5].lower() == "file:":
            return await self._file(url)
        return await self._page(url)

    async def _file(self, url: str) -> Answer:
        if self._folder is None:
            raise InvalidInput(detail="file URLs are not read here, only http and https")
        path = self._folder.find(url)
        mime_type = content_type(path)
        body = await asyncio.to_thread(_read, path, self._limit(mime_type))
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
        found = await _extract(body, mime_type, charset)
        text = f"{found.title}\n\n{found.text}" if found.title else found.text
        size = body.size if body.cut else None
        max_bytes, keep_bytes = self.params.max_bytes, self.params.keep_bytes
        if body.counted and found.whole:
            return Answer.capped(text, max_bytes=max_bytes, keep_bytes=keep_bytes, size=size, **hop)
        return _beginning(text, max_bytes=max_bytes, keep_bytes=keep_bytes, size=size, hop=hop)

    def _limit(self, mime_type: str) -> int:
        if program_for(mime_type, b"") == HTML:
            return PAGE_LIMIT
        pdf = PDF_LIMIT if may_be_pdf(mime_type) else 0
        return max(MAX_RESULT_BYTES, self.params.max_bytes, self.params.keep_bytes, pdf)


async def _extract(body: HttpBody, mime_type: str, charset: str | None) -> Extract:
    program = program_for(mime_type, body.head)
    if program is None:
        return Extract("", decode(body.head, charset), whole=True)
    if body.cut and program == PDF:
        raise Unreadable(detail=f"the PDF is larger than {PDF_LIMIT} bytes")
    return await extract(body.head, program, charset)


def _beginning(
    text: str,
    *,
    max_bytes: int,
    keep_bytes: int,
    size: int | None,
    hop: Mapping[str, JsonValue],
) -> Answer:
    """An answer with the beginning of a text whose whole size nobody knows."""
    data = text.encode(errors="replace")
    known = max(len(data), size or 0)
    head = data[:max_bytes].decode(errors="ignore")
    counters: dict[str, JsonValue] = {"bytes": known, **hop, "truncated": True}
    shown = f"{head}… [truncated, at least {known} bytes]"
    return Answer(shown, counters, kept_of(text, shown_bytes=max_bytes, keep_bytes=keep_bytes))


def _read(path: Path, limit: int) -> HttpBody:
    try:
        with path.open("rb") as file:
            head = file.read(limit)
            return HttpBody(head, max(len(head), path.stat().st_size))
    except OSError as error:
        raise Unreadable(detail=f"{path.name}: {error.strerror}") from error
