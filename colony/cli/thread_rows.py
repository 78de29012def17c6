"""The record of a question for people: who said what in which round, and the answer."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

if TYPE_CHECKING:
    from colony.access.thread_tables import RecordedRow

TEXT_CHARS: Final = 400
SUMMARY: Final = "summary"

# What the guard of a round says: the one update that may change it decides who goes on.
_GUARD: Final = {0: "open", 1: "claimed"}


def row_lines(row: "RecordedRow") -> Iterator[str]:
    """A row: where it lies and whose it is, and what was said below."""
    from colony.cli.screen import counted, faint, heading, legible

    values = row.values
    role, iteration = str(values.get("role")), values.get("iter")
    said = said_in(values.get("turn"))
    head = [
        faint(legible(f"{row.store}:{row.table} {row.number}")),
        f"iter {iteration}" if role != SUMMARY else f"iter 0…{iteration}",
        heading(legible(role)),
    ]
    # That of a question names no call.
    if values.get("call_id") and role != "user":
        head.append(legible(str(values["call_id"])))
    if values.get("fired") is not None:
        head.append(legible(_GUARD.get(values["fired"], f"fired {values['fired']}")))  # type: ignore[arg-type]
    if role == "user" and len(said) > 1:
        head.append(f"behind {counted(len(said) - 1, 'earlier entry', 'earlier entries')}")
    yield "  ".join([*head, faint(f"{sum(map(_size, said))} bytes")])
    for entry in said:
        yield entry_line(entry)


def answer_lines(
    answers: Sequence["RecordedRow"], outputs: Sequence[Mapping[str, JsonValue]]
) -> Iterator[str]:
    """The answer to a question, whole: that of its conversation, else what its trace put out."""
    from colony.cli.answers import texts
    from colony.cli.screen import bad, faint, heading, legible
    from colony.traces import error_of

    title = heading("answer")
    for row in answers:
        yield f"{faint(legible(f'{row.store}:{row.table} {row.number}'))}  {title}"
        yield from (legible(text_of(said)) for said in said_in(row.values.get("answer")))
    for output in () if answers else outputs:
        where = faint(legible(f"output at {output.get('path')}"))
        error = error_of(output)
        yield f"{where}  {title}" + ("" if error is None else f"  {bad(legible(error))}")
        yield from map(legible, texts(output))
    if not answers and not outputs:
        yield faint("no answer is found")


def said_in(turn: JsonValue) -> list[JsonValue]:
    """What a row says: one entry or several; a text that is no JSON is one of its own."""
    if not isinstance(turn, str):
        return [turn]
    try:
        value: JsonValue = json.loads(turn)
    except (ValueError, RecursionError):
        return [turn]
    return value if isinstance(value, list) else [value]


def entry_line(entry: JsonValue) -> str:
    """Who says what in an entry, long texts shortened; anything else as JSON."""
    text = text_of(entry)
    if not isinstance(entry, dict) or "text" not in entry:
        return excerpt_of(text)
    match entry.get("type"):
        case "tool_call":
            name, arguments = _called(text)
            return excerpt_of(f"→ {name} {entry.get('id')}  {arguments}", of=arguments)
        case "tool_result":
            error = "error: " * (entry.get("is_error") is True)
            return excerpt_of(f"← {entry.get('id')}  {error}{text}", of=text)
        case _:
            return excerpt_of(f"{entry.get('origin')}: {text}", of=text)


def excerpt_of(line: str, *, of: str | None = None) -> str:
    """A text as it may be shown, cut where it is long, with the size of what it is `of`."""
    from colony.cli.screen import faint, legible

    if len(line) <= TEXT_CHARS:
        return legible(line)
    size = len((line if of is None else of).encode(errors="replace"))
    return f"{legible(line[:TEXT_CHARS])}{faint(f'… [{size} bytes]')}"


def text_of(entry: JsonValue) -> str:
    """The text of an entry; of what has none, its JSON."""
    text = entry.get("text") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else json.dumps(entry, ensure_ascii=False)


def summaries(rows: Sequence["RecordedRow"]) -> Mapping[str, int]:
    """The texts of the summaries among rows, each with the last round it stands for."""
    found: dict[str, int] = {}
    for row in rows:
        iteration = row.values.get("iter")
        if row.values.get("role") == SUMMARY and isinstance(iteration, int):
            found |= {text_of(entry): iteration for entry in said_in(row.values.get("turn"))}
    return found


def _called(text: str) -> tuple[str, str]:
    """The tool that is called, and with what, as the provider's function object tells."""
    try:
        function: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        function = None
    if not isinstance(function, dict) or "name" not in function:
        return "", text
    arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return str(function["name"]), written


def _size(entry: JsonValue) -> int:
    return len(text_of(entry).encode(errors="replace"))
