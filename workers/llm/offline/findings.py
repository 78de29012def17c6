"""Findings: what the tools of a thread have found for its question so far."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from colony.body import Entry
from workers.llm.threads.thread import rounds

SEARCH = "web_search"
FETCH = "web_fetch"


@dataclass(frozen=True, slots=True)
class Result:
    """A document that a search named, and where in the ranking of that search."""

    url: str
    title: str
    snippet: str
    rank: int


@dataclass(slots=True)
class Findings:
    """The question, the rounds made for it, and what came back."""

    question: str = ""
    rounds: int = 0
    queries: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    pages: dict[str, str] = field(default_factory=dict)
    calls: int = 0
    failed: int = 0


def gather(entries: Sequence[Entry]) -> Findings:
    """What stands in the thread after the last thing a user said."""
    asked = [n for n, e in enumerate(entries) if e.origin == "user" and e.type == "text"]
    start = asked[-1] if asked else 0
    found = Findings(
        question=(entries[start].text or "") if asked else "", rounds=rounds(entries[start:])
    )
    calls: dict[str, tuple[str, dict[str, JsonValue]]] = {}
    for entry in entries[start:]:
        if entry.type == "tool_call":
            calls[entry.id or ""] = _function(entry.text or "")
        elif entry.type == "tool_result":
            name, arguments = calls.get(entry.id or "", ("", {}))
            _add(found, name, arguments, entry)
    return found


def _add(found: Findings, name: str, arguments: dict[str, JsonValue], entry: Entry) -> None:
    found.calls += 1
    text = entry.text or ""
    if entry.is_error:
        found.failed += 1
    elif name == SEARCH:
        found.queries.append(str(arguments.get("query", "")))
        found.results.extend(_results(text))
    elif name == FETCH:
        found.pages[str(arguments.get("url", ""))] = text


def _results(text: str) -> list[Result]:
    written = _object(text).get("results")
    rows = [row for row in written if isinstance(row, dict)] if isinstance(written, list) else []
    return [
        Result(str(row["url"]), str(row.get("title", "")), str(row.get("snippet", "")), rank)
        for rank, row in enumerate(rows)
        if row.get("url")
    ]


def _function(text: str) -> tuple[str, dict[str, JsonValue]]:
    function = _object(text)
    arguments = function.get("arguments")
    read = _object(arguments) if isinstance(arguments, str) else arguments
    return str(function.get("name", "")), read if isinstance(read, dict) else {}


def _object(text: str) -> dict[str, JsonValue]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}
