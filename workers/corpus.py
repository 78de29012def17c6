"""The corpus: a folder of documents that can be searched, by BM25, without a network."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from threading import Lock

import bm25s

from colony.log import Logger
from workers.documents import Folder
from workers.language import sentences, terms
from workers.readable import decode, readable

DOCUMENT_LIMIT = 4 << 20
SNIPPET_LIMIT = 400

_HTML = frozenset({".html", ".htm"})
_TEXT = frozenset({".md", ".markdown", ".txt"})
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


@dataclass(frozen=True)
class Document:
    """A document as it is searched."""

    url: str
    title: str
    text: str


@dataclass(frozen=True)
class Hit:
    """A document that answers a query, and the sentence of it that answers best."""

    title: str
    url: str
    snippet: str


class Corpus:
    """The documents of a folder. Reads files and computes: to be called in a thread.

    Any number of threads may search at once.
    """

    def __init__(self, folder: Folder, logger: Logger) -> None:
        self._folder = folder
        self._logger = logger
        self._refreshing = Lock()
        self._seen: tuple[object, ...] | None = None
        self._index = Index(())

    def search(self, query: str, limit: int) -> tuple[list[Hit], int]:
        """The best `limit` documents for `query` as they are now, and how many match it at all."""
        return self.refresh().search(query, limit)

    def refresh(self) -> "Index":
        """The index of the folder's files; made anew where a file came, went or changed."""
        with self._refreshing:
            paths = [path for path in self._folder.files() if path.suffix.lower() in _HTML | _TEXT]
            seen = tuple((path, *_version(path)) for path in paths)
            if seen != self._seen:
                self._index, self._seen = Index(self._documents(paths)), seen
            return self._index

    def _documents(self, paths: Iterable[Path]) -> list[Document]:
        found = []
        for path in paths:
            try:
                title, text = _read(path)
            except OSError as error:
                self._logger.warning("document_left_out", document=path, error=error)
            else:
                found.append(Document(self._folder.url(path), title or path.stem, text))
        return found


class Index:
    """Documents, ranked by BM25; those of equal rank by URL."""

    def __init__(self, documents: Sequence[Document]) -> None:
        indexed = [terms(f"{document.title}\n{document.text}") for document in documents]
        self._documents = documents
        self._frequency = Counter(term for found in indexed for term in set(found))
        self._bm25 = bm25s.BM25()
        # BM25 over no words divides by their mean number.
        if self._frequency:
            self._bm25.index(indexed, show_progress=False)

    def search(self, query: str, limit: int) -> tuple[list[Hit], int]:
        """The best `limit` documents for `query`, and how many match it at all."""
        wanted = {term for term in terms(query) if term in self._frequency}
        if not wanted:
            return [], 0
        scores = self._bm25.get_scores(sorted(wanted))
        ranked = sorted(
            (-float(score), document.url, document)
            for score, document in zip(scores, self._documents, strict=True)
            if score > 0
        )
        hits = [self._hit(document, wanted) for _, _, document in ranked[:limit]]
        return hits, len(ranked)

    def _hit(self, document: Document, wanted: set[str]) -> Hit:
        best = max(
            sentences(document.text), key=lambda text: self._weight(text, wanted), default=""
        )
        return Hit(document.title, document.url, best[:SNIPPET_LIMIT])

    def _weight(self, sentence: str, wanted: set[str]) -> float:
        """How much of what is wanted a sentence holds; rare words weigh more."""
        held = wanted.intersection(terms(sentence))
        return sum(log(1 + len(self._documents) / self._frequency[term]) for term in sorted(held))


def _version(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _read(path: Path) -> tuple[str, str]:
    with path.open("rb") as file:
        data = file.read(DOCUMENT_LIMIT)
    if path.suffix.lower() in _HTML:
        return readable(decode(data, None))
    text = data.decode(errors="replace")
    heading = _HEADING.search(text)
    return heading[1] if heading else "", text
