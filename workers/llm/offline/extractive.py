"""The extractive model: searches, reads and quotes, without a language model and without a key.

Round by round it asks for searches planned from the question, then for the documents that came out
best, and then answers with sentences quoted from them, each with its source. It uses only tools
that are offered, says what it is, and says so when nothing was found. Offered none, it has no
answer: what it would say of itself is not what whoever asks so goes on from.
"""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from workers.language import words
from workers.llm.answers.calls import made_up_id
from workers.llm.offline.findings import FETCH, SEARCH, Findings, gather
from workers.llm.offline.handed import handed
from workers.llm.offline.quotes import LIMIT, PER_SOURCE, Found, Quote, best_quotes
from workers.llm.provider import Answer, Call, Failure, Reply, Request, Witness

QUERIES = 4
QUERY_WORDS = 12
DOCUMENTS = 4
# Reciprocal rank fusion: what several searches name comes before what one names first.
FUSION = 60

WHAT_IT_IS = (
    "This is colony's extractive model: it quotes sources word for word and writes nothing."
)

UNEQUIPPED = Failure(
    "empty_answer",
    "the extractive model quotes what tools find, and it is offered no tool",
    source="request",
    disposition="permanent",
    progress="precommit",
)

_URL = re.compile(r"(?:https?|file)://[^\s<>\"')\]]+")
_QUOTED = re.compile(r"[\"\u201c]([^\"\u201d]{3,80})[\"\u201d]")
_CLAUSE = re.compile(
    r"[?;\n]+|,?\s+and\s+(?=(?:how|what|why|when|where|which|who|does|do|is|are|can)\b)", re.I
)


class Extractive:
    """The provider `extractive`."""

    def __init__(self, *, model: str) -> None:
        self._model = model

    async def complete(self, request: Request, witness: Witness) -> Reply:
        """The searches, the documents or the answer that the thread is ready for; a failure where
        there is no tool and was none."""
        witness.sent(handed(request, self._model))
        reply = await asyncio.to_thread(self._next, request)
        if isinstance(reply, Answer) and reply.text:
            await witness.text(reply.text)
        return reply

    async def close(self) -> None:
        """Nothing is held."""

    def _next(self, request: Request) -> Answer | Failure:
        found = gather(request.entries)
        if not request.tools and not found.calls:
            return UNEQUIPPED
        wanted = next_calls(found, {tool.name for tool in request.tools})
        if not wanted:
            said = answer(found)
            return Answer(model=self._model, outcome="message", finish_reason="stop", text=said)
        calls = tuple(
            Call(id=made_up_id(request.seed, n), name=name, arguments=json.dumps(arguments))
            for n, (name, arguments) in enumerate(wanted)
        )
        return Answer(
            model=self._model, outcome="tool_calls", finish_reason="tool_calls", calls=calls
        )


def next_calls(found: Findings, offered: set[str]) -> list[tuple[str, dict[str, str]]]:
    """The calls to make next, all at once; none when it is time to answer."""
    calls: list[tuple[str, dict[str, str]]] = []
    if found.rounds == 0:
        calls += [(SEARCH, {"query": query}) for query in plan_queries(found.question)]
        calls += [(FETCH, {"url": url}) for url in _URL.findall(found.question)]
    elif found.rounds == 1:
        unread = [url for url in rank(found) if url not in found.pages]
        calls += [(FETCH, {"url": url}) for url in unread[:DOCUMENTS]]
    return [call for call in calls if call[0] in offered]


def plan_queries(question: str) -> list[str]:
    """The searches for a question: one for the whole, one for each part, one for each quotation."""
    plain = _URL.sub(" ", question)
    parts = parts_of(question)
    texts = [*parts, *_QUOTED.findall(plain)] if len(parts) < 2 else [plain, *parts]
    queries = [" ".join(words(text)[:QUERY_WORDS]) for text in texts]
    return [query for query in dict.fromkeys(queries) if query][:QUERIES]


def parts_of(question: str) -> list[str]:
    """What is asked in a question, one thing after the other, without its URLs."""
    parts = _CLAUSE.split(_URL.sub(" ", question))
    return [part.strip() for part in parts if part.strip()]


def rank(found: Findings) -> list[str]:
    """The URLs that the searches named, the most promising first."""
    scores: dict[str, float] = defaultdict(float)
    for result in found.results:
        scores[result.url] += 1 / (FUSION + result.rank)
    return sorted(scores, key=lambda url: -scores[url])


def answer(found: Findings) -> str:
    """The answer that the findings allow."""
    # What could not be read is still known by what the search said of it.
    snippets = {r.url: r.snippet for r in found.results if r.url not in found.pages}
    said = [WHAT_IT_IS, *_said(found, {**found.pages, **snippets})]
    if found.failed:
        said.append(f"{found.failed} of {found.calls} tool calls failed.")
    return "\n\n".join(said)


def _said(found: Findings, sources: Mapping[str, str]) -> list[str]:
    parts = [part for part in parts_of(found.question) if words(part)]
    limit = max(PER_SOURCE, LIMIT // max(1, len(parts)))
    by_part = {
        part: best_quotes(part, sources, whole=found.question, limit=limit) for part in parts
    }
    if not any(of_part.quotes for of_part in by_part.values()):
        return [_nothing(found)]
    fitting = [quote for of_part in by_part.values() if of_part.fits for quote in of_part.quotes]
    said = []
    if fitting:
        about = found.question.strip()
        said.append(f"What the sources say about \u201c{about}\u201d:\n\n{_listing(fitting)}")
    for part, of_part in by_part.items():
        if not of_part.fits:
            said.append(_near(part if len(parts) > 1 else found.question.strip(), of_part))
    return said


def _near(part: str, found: Found) -> str:
    none = f"It found no sentence that answers \u201c{part}\u201d."
    return f"{none} The nearest it found:\n\n{_listing(found.quotes)}" if found.quotes else none


def _listing(quotes: Sequence[Quote]) -> str:
    lines = (f"- \u201c{quote.sentence}\u201d [source: {quote.url}]" for quote in quotes)
    return "\n".join(dict.fromkeys(lines))


def _nothing(found: Findings) -> str:
    question = found.question.strip()
    if not found.calls:
        return f"It has no tool to search for \u201c{question}\u201d with, so it found nothing."
    searched, read = _listed(found.queries), len(found.pages)
    return (
        f"It found no sentence that answers \u201c{question}\u201d. "
        f"It searched for {searched} and read {read} document{'' if read == 1 else 's'}."
    )


def _listed(queries: Sequence[str]) -> str:
    return ", ".join(f"\u201c{query}\u201d" for query in queries) or "nothing"
