"""Language: the sentences of a text, and the words of it that carry meaning."""

import re
from functools import lru_cache

import Stemmer
from bm25s.stopwords import STOPWORDS_EN_PLUS

_STOPWORDS = frozenset(STOPWORDS_EN_PLUS)
_WORD = re.compile(r"\w+")
_HEADING = re.compile(r"^#{1,6}\s+\S")
_BREAK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+>#|]|\d+[.)])\s)")
_LINE_MARK = re.compile(r"^\s*(?:[-*+>]\s+|\d+[.)]\s+)")
# White space after a full stop and its quotation mark, before what can begin a sentence, unless the
# stop is of an initial or of a title.
_SENTENCE_END = re.compile(
    r"(?:(?<=[.!?])|(?<=[.!?][\"'\u201d\u2019)]))(?<!\b[A-Z]\.)(?<!\b(?:St|Dr|Mr|Ms|No)\.)"
    r"\s+(?=[\"'\u201c\u2018(*`]*[A-Z0-9])"
)


def sentences(text: str) -> list[str]:
    """The sentences of a text as they stand in it, but for line breaks; headings are left out."""
    paragraphs = (part for part in _BREAK.split(text) if not _HEADING.match(part.strip()))
    plain = (" ".join(_LINE_MARK.sub("", part).split()) for part in paragraphs)
    return [sentence for part in plain for sentence in _SENTENCE_END.split(part) if sentence]


def words(text: str) -> list[str]:
    """The words of a text that are not common ones, as they are written."""
    return [word for word in _WORD.findall(text) if word.casefold() not in _STOPWORDS]


def terms(text: str) -> list[str]:
    """The stems of the words that carry meaning, in their order."""
    return [_stem(word.casefold()) for word in words(text)]


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    # A stemmer keeps a cache of its own that is not safe among threads; one made per word is.
    return str(Stemmer.Stemmer("english", 0).stemWord(word))
