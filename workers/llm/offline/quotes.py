"""Quotes: the sentences of some sources that bear most on a question, word for word."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from textwrap import wrap

from workers.language import sentences, subject, terms

LIMIT = 5
PER_SOURCE = 2
# A sentence that shares one word of several with the question is mostly about something else.
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
    # What is shorter is more often the name of something.
    is_sentence: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The quotes for a question, the best first; `fits` where they share more than a word with it
    or all that it is about."""

    quotes: Sequence[Quote] = ()
    fits: bool = False


def best_quotes(
    question: str, sources: Mapping[str, str], *, whole: str = "", limit: int = LIMIT
) -> Found:
    """The best sentences of `sources` (texts by URL): those that fit, or else the nearest.

    `whole` is what `question` is a part of: of two sentences for the part, the one that bears more
    on the whole is better.
    """
    about = subject(question)
    wanted = frozenset(terms(f"{question} {whole}"))
    candidates = [c for url, text in sources.items() for c in _candidates(url, text, wanted)]
    frequency = Counter(term for c in candidates for term in c.terms & wanted)
    for shared, is_wanted in _tiers(len(about)):
        scored = [
            (_score(c, wanted, frequency, len(candidates)), c.quote)
            for c in candidates
            if is_wanted(c) and len(c.terms & about) >= shared
        ]
        if scored:
            fits = shared == min(SHARED_TERMS, len(about))
            return Found(_spread(_worthy(scored), limit), fits)
    return Found()


def _tiers(about: int) -> Iterator[tuple[int, Callable[[_Candidate], bool]]]:
    """How many terms must be shared by what, the strictest demand first."""
    shares = min(SHARED_TERMS, about)
    for shared in range(shares, 0, -1):
        yield shared, lambda candidate: candidate.is_sentence
        yield shared, lambda candidate: True


def _candidates(url: str, text: str, wanted: frozenset[str]) -> list[_Candidate]:
    excerpts = (_excerpt(sentence, wanted) for sentence in sentences(text))
    return [
        _Candidate(Quote(e, url), frozenset(terms(e)), len(e.split()) >= SHORTEST_WORDS)
        for e in excerpts
        if e
    ]


def _excerpt(sentence: str, wanted: frozenset[str]) -> str:
    """A sentence, or the piece of a long one that holds most of what is wanted."""
    if len(sentence) <= LONGEST_CHARACTERS:
        return "" if CUT_MARK in sentence else sentence
    pieces = wrap(sentence, LONGEST_CHARACTERS, break_on_hyphens=False)
    whole = [piece for piece in pieces if CUT_MARK not in piece]
    best = max(whole, key=lambda piece: len(wanted.intersection(terms(piece))), default="")
    before = "" if best == pieces[0] else "… "
    return f"{before}{best}{'' if best == pieces[-1] else ' …'}" if best else ""


def _worthy(scored: Sequence[tuple[float, Quote]]) -> list[Quote]:
    best = max(score for score, _ in scored)
    worthy = [(score, quote) for score, quote in scored if score >= SHARE_OF_BEST * best]
    # Sorting is stable, so sentences of one score keep the order of their sources.
    return [quote for _, quote in sorted(worthy, key=lambda pair: -pair[0])]


def _score(
    candidate: _Candidate, wanted: frozenset[str], frequency: Counter[str], total: int
) -> float:
    """How much of what is wanted the sentence holds: rare words weigh more, padding less."""
    held = sorted(candidate.terms & wanted)
    weight = sum(log(1 + total / frequency[term]) for term in held)
    return weight / (1 + len(candidate.terms) / 40)


def _spread(quotes: Iterable[Quote], limit: int) -> list[Quote]:
    chosen: list[Quote] = []
    said: set[str] = set()
    of_source: Counter[str] = Counter()
    for quote in quotes:
        if quote.sentence in said or of_source[quote.url] == PER_SOURCE:
            continue
        said.add(quote.sentence)
        of_source[quote.url] += 1
        chosen.append(quote)
        if len(chosen) == limit:
            break
    return chosen
