"""Quotes: the sentences of some sources that bear most on a question, word for word."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log

from workers.language import sentences, terms

LIMIT = 5
PER_SOURCE = 2
# A sentence that shares one word of several with the question is about something else.
SHARED_TERMS = 2
SHARE_OF_BEST = 0.5
SHORTEST_WORDS = 4
LONGEST_CHARACTERS = 600
# What a tool appends where it cut a text is not a sentence of the source.
CUT_MARK = "[truncated,"


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence and the URL of the source it stands in."""

    sentence: str
    url: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    quote: Quote
    terms: frozenset[str]


def best_quotes(question: str, sources: Mapping[str, str]) -> list[Quote]:
    """The best sentences of `sources` (texts by URL), the best first; none if none fits."""
    wanted = frozenset(terms(question))
    candidates = [c for url, text in sources.items() for c in _candidates(url, text)]
    frequency = Counter(term for c in candidates for term in c.terms & wanted)
    scored = [
        (_score(c, wanted, frequency, len(candidates)), c.quote)
        for c in candidates
        if len(c.terms & wanted) >= min(SHARED_TERMS, len(wanted)) > 0
    ]
    best = max((score for score, _ in scored), default=0.0)
    worthy = [(score, quote) for score, quote in scored if score >= SHARE_OF_BEST * best]
    # Sorting is stable, so sentences of one score keep the order of their sources.
    return _spread(quote for _, quote in sorted(worthy, key=lambda pair: -pair[0]))


def _candidates(url: str, text: str) -> list[_Candidate]:
    return [
        _Candidate(Quote(sentence, url), frozenset(terms(sentence)))
        for sentence in sentences(text)
        if len(sentence.split()) >= SHORTEST_WORDS
        and len(sentence) <= LONGEST_CHARACTERS
        and CUT_MARK not in sentence
    ]


def _score(
    candidate: _Candidate, wanted: frozenset[str], frequency: Counter[str], total: int
) -> float:
    """How much of what is wanted the sentence holds: rare words weigh more, padding less."""
    held = sorted(candidate.terms & wanted)
    weight = sum(log(1 + total / frequency[term]) for term in held)
    return weight / (1 + len(candidate.terms) / 40)


def _spread(quotes: Iterable[Quote]) -> list[Quote]:
    chosen: list[Quote] = []
    said: set[str] = set()
    of_source: Counter[str] = Counter()
    for quote in quotes:
        if quote.sentence in said or of_source[quote.url] == PER_SOURCE:
            continue
        said.add(quote.sentence)
        of_source[quote.url] += 1
        chosen.append(quote)
        if len(chosen) == LIMIT:
            break
    return chosen
