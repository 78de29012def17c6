"""Language: the sentences of a text, and the words of it that carry meaning."""

import re
from functools import cache, lru_cache

import Stemmer
from bm25s.stopwords import STOPWORDS_EN_PLUS

from workers.prose import Paragraph, blocks

_STOPWORDS = frozenset(STOPWORDS_EN_PLUS)
# What a question says of itself and of where it looks, not of what it is about.
_ASKING = frozenset(
    "answer describe explain find give happen know list mention please say show state summarise "
    "summarize tell many much kind sort thing anything everything something article corpus "
    "document file folder information note page paper source text".split()
)
_WORD = re.compile(r"\w+")
# White space after a full stop and its quotation mark, before what can begin a sentence, unless the
# stop is of an initial or of a title.
_SENTENCE_END = re.compile(
    r"(?:(?<=[.!?])|(?<=[.!?][\"'\u201d\u2019)]))(?<!\b[A-Z]\.)(?<!\b(?:St|Dr|Mr|Ms|No)\.)"
    r"\s+(?=[\"'\u201c\u2018(*`]*[A-Z0-9])"
)


def sentences(text: str) -> list[str]:
    """The sentences of a text as they stand in it, but for line breaks; headings are left out."""
    paragraphs = (block.text for block in blocks(text) if isinstance(block, Paragraph))
    return [s for paragraph in paragraphs for s in _SENTENCE_END.split(paragraph) if s]


def words(text: str) -> list[str]:
    """The words of a text that are not common ones, as they are written."""
    return [word for word in _WORD.findall(text) if word.casefold() not in _STOPWORDS]


def terms(text: str) -> list[str]:
    """The stems of the words that carry meaning, in their order."""
    return [_stem(word.casefold()) for word in words(text)]


def subject(question: str) -> frozenset[str]:
    """The stems of what a question is about; all it has where it is about nothing else."""
    found = frozenset(terms(question))
    return found - _asking() or found


@cache
def _asking() -> frozenset[str]:
    return frozenset(map(_stem, _ASKING))


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    # A stemmer keeps a cache of its own that is not safe among threads; one made per word is.
    return str(Stemmer.Stemmer("english", 0).stemWord(word))
