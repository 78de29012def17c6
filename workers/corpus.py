"""The corpus: a folder of documents that can be searched, by BM25, without a network."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import log
from pathlib import Path
from threading import Lock

import bm25s

from colony.errors import Unreadable
from colony.log import Logger
from workers.charset import decode
from workers.documents import Folder
from workers.extraction import HTML, PDF, PDF_LIMIT, extract_blocking
from workers.language import sentences, terms
from workers.prose import title as heading_of

DOCUMENT_LIMIT = 4 << 20
SNIPPET_LIMIT = 400

_TEXT = frozenset({".md", ".markdown", ".txt"})
_PROGRAMS = {".html": HTML, ".htm": HTML, ".pdf": PDF}
# Pages and PDFs are read in processes, so many at once.
_READERS = 2

Version = tuple[Path, int, int]


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
        self._read: dict[Version, Document | None] | None = None
        self._index = Index(())

    def search(self, query: str, limit: int) -> tuple[list[Hit], int]:
        """The best `limit` documents for `query` as they are now, and how many match it at all."""
        return self.refresh().search(query, limit)

    def refresh(self) -> "Index":
        """The index of the folder's files; made anew where a file came, went or changed."""
        with self._refreshing:
            seen = [(path, *_version(path)) for path in self._folder.files() if _is_document(path)]
            known = self._read
            if known is None or seen != [*known]:
                self._read = self._documents(seen, known or {})
                self._index = Index([found for found in self._read.values() if found])
            return self._index

    def _documents(
        self, seen: Iterable[Version], known: Mapping[Version, Document | None]
    ) -> dict[Version, Document | None]:
        """What each file holds, None where it cannot be read; only one that is new is read."""
        unread = [version for version in seen if version not in known]
        with ThreadPoolExecutor(_READERS) as pool:
            found = dict(zip(unread, pool.map(self._document, unread), strict=True))
        both = {**known, **found}
        return {version: both[version] for version in seen}

    def _document(self, version: Version) -> Document | None:
        path, *_ = version
        try:
            title, text = _read(path)
        except (OSError, Unreadable) as error:
            self._logger.warning("document_left_out", document=path, error=error)
            return None
        return Document(self._folder.url(path), title or path.stem, text)


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


def _is_document(path: Path) -> bool:
    return path.suffix.lower() in _TEXT | _PROGRAMS.keys()


def _read(path: Path) -> tuple[str, str]:
    program = _PROGRAMS.get(path.suffix.lower())
    limit = PDF_LIMIT if program == PDF else DOCUMENT_LIMIT
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if program == PDF and len(data) > limit:
        raise Unreadable(detail=f"the PDF is larger than {limit} bytes")
    if program:
        found = extract_blocking(data[:limit], program)
        return found.title, found.text
    text = decode(data[:limit], None)
    return heading_of(text), text
