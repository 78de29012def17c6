"""The library: a folder of documents as something to search."""

import asyncio
import json
from dataclasses import asdict

from workers.corpus import Corpus
from workers.tool_call import Answer
from workers.web_search.results import Caps


class Library:
    """A corpus, searched in threads. It answers in the shape an endpoint would."""

    def __init__(self, corpus: Corpus, caps: Caps) -> None:
        self._corpus = corpus
        self._caps = caps

    async def search(self, query: str) -> Answer:
        """The documents that match best, each with its best sentence."""
        hits, total = await asyncio.to_thread(self._corpus.search, query, self._caps.max_results)
        results = [asdict(hit) for hit in hits]
        size = len(json.dumps({"results": results}, ensure_ascii=False).encode(errors="replace"))
        return self._caps.fit({}, results, total=total, size=size)

    async def close(self) -> None:
        """Nothing is held."""
