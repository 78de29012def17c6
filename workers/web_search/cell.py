"""The cell type `web_search`: one query in, titles, URLs and snippets out."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Annotated, Self

import httpx
from pydantic import Field, SecretStr, model_validator

from colony.cell import Cell
from colony.envelope import Emission, Envelope
from colony.host import Host
from colony.topology.findings import Flaw
from colony.topology.model import CellSpec, ToolDeclaration
from workers.corpus import Corpus
from workers.documents import Folder
from workers.named_folders import folder
from workers.tool_call import Answer, Arguments, answer
from workers.web_search.endpoint import Endpoint
from workers.web_search.library import Library
from workers.web_search.results import Caps, Source


class Query(Arguments):
    """What is searched for."""

    query: Annotated[str, Field(min_length=1, description="What to search for, in a few words.")]


class WebSearch(Cell):
    """Search the web by an HTTP `endpoint`, or the documents of a folder, the `corpus`.

    A relative `corpus` is below the cell's own folder. Its results have URLs that a `web_fetch`
    cell with the same folder as its `root` can read.
    """

    class Params(Cell.Params):
        """Exactly one of `endpoint` and `corpus` is given; an empty one counts as absent."""

        endpoint: str = ""
        corpus: str = ""
        api_key: SecretStr = SecretStr("")
        external_timeout_ms: int = Field(default=15_000, ge=1)
        max_concurrency: int = Field(default=8, ge=1)
        max_results: int = Field(default=10, ge=1)
        max_bytes: int = Field(default=262_144, ge=1)

        @model_validator(mode="after")
        def _has_one_source(self) -> Self:
            if bool(self.endpoint) == bool(self.corpus):
                raise ValueError("exactly one of endpoint and corpus is needed")
            return self

    default_tool = ToolDeclaration(
        name="web_search",
        description="Search for documents. Returns titles, URLs and snippets.",
        parameters=Query.schema_of_tool(),
        read_only=True,
    )
    params: Params
    _source: Source

    @classmethod
    def flaws(cls, spec: CellSpec) -> Iterator[Flaw]:
        """An absolute `corpus` that is not there."""
        return folder(spec, "corpus")

    async def start(self, host: Host) -> None:
        """Open the client, or index the corpus; raises ConfigError where the folder is missing."""
        params = self.params
        caps = Caps(params.max_results, params.max_bytes)
        if params.endpoint:
            self._source = Endpoint(params.endpoint, params.api_key.get_secret_value(), caps)
            return
        corpus = Corpus(Folder.at(params.corpus, host.directory), host.log)
        await asyncio.to_thread(corpus.refresh)
        self._source = Library(corpus, caps)

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """Answer one `{query}`."""
        return await answer(
            envelope,
            self._search,
            host=host,
            operation="web_search",
            arguments=Query,
            timeout_ms=self.params.external_timeout_ms,
        )

    async def stop(self) -> None:
        """Close the endpoint's client."""
        await self._source.close()

    async def probe(self) -> str:
        """Search for one word."""
        found = await self._source.search("colony")
        asked = httpx.URL(self.params.endpoint).host or self.params.corpus
        return f"{asked} has {found.hop['result_count']} results for a word"

    async def _search(self, wanted: Query) -> Answer:
        return await self._source.search(wanted.query)
