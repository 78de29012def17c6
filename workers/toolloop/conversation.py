"""Conversation: what was asked and answered in a session before, as far as the model is shown it.

A question is in its conversation once it has an answer. Of the view the oldest questions leave
first, each with its answer, and several at once, so that the requests of a long session begin alike
for a while; the one being answered never does. The rows stay.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Annotated

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from colony.body import Entry
from colony.envelope import Emission, Envelope
from colony.schema import Row
from workers.toolloop import requests
from workers.toolloop.eviction import first_of_newest, size_of, weight_of
from workers.toolloop.params import ConversationParams

COLUMNS = ("turn_id", "question", "answer")
RECALL = "recall"

# With more no body might hold it: a text is JSON in a row, which is JSON in the store's reply, and
# a byte can take seven there.
MAX_VIEW_BYTES = 1 << 20

# How long a row may be for each byte of its texts, before it is not read: JSON escapes some.
_BYTES_OF_ROW = 2

_SAID: TypeAdapter[tuple[Entry, ...]] = TypeAdapter(tuple[Entry, ...])


class RecallParams(ConversationParams):
    """How much of a conversation is shown, with the question that is asked."""

    max_questions: Annotated[int, Field(ge=1, le=1000)] = 20
    max_view_bytes: Annotated[int, Field(ge=1, le=MAX_VIEW_BYTES)] = 65_536


def question_row(turn_id: str, asked: Entry) -> Row:
    """The row of a question that is in no conversation yet."""
    return {"turn_id": turn_id, "question": json.dumps(asked.to_json(), ensure_ascii=False)}


def answer_row(turn_id: str, session_id: str, said: Sequence[Entry]) -> Row:
    """What is laid over the row of a question by its answer, and puts it into the conversation."""
    answer: list[JsonValue] = [entry.to_json() for entry in said]
    text = json.dumps(answer, ensure_ascii=False)
    return {"turn_id": turn_id, "session_id": session_id, "answer": text}


def recall(table: str, session_id: str, caps: RecallParams) -> Emission:
    """Ask the store for as much of a conversation as can be shown."""
    return requests.newest(
        table,
        {"session_id": session_id},
        columns=COLUMNS,
        limit=caps.max_questions,
        max_bytes=caps.max_view_bytes * _BYTES_OF_ROW,
        route=RECALL,
    )


def is_recalled(envelope: Envelope) -> bool:
    """Whether the store has answered `recall`, with rows or with an error."""
    # Not by its hop: whoever sends the question may have done some operation of his own.
    return any(entry.id == requests.CALL_ID for entry in envelope.body.each("tool_result"))


def shown(
    rows: Sequence[Row], asked: Entry, *, turn_id: str, questions: int, caps: RecallParams
) -> tuple[Entry, ...]:
    """What goes before `asked`, of a conversation with so many `questions`, the newest in `rows`.

    The first question that is shown says how many are not. Where none is, nothing does.
    """
    pairs = [_pair(row, but=turn_id) for row in rows]
    others = max(0, questions - len(rows))
    first = first_of_newest(
        [*map(weight_of, pairs), weight_of([asked])],
        before=others,
        most=caps.max_questions,
        most_bytes=caps.max_view_bytes,
        note=lambda left: size_of(_marker(left)),
    )
    return _marked([*chain(*pairs[first:])], left_out=others + first)


def _pair(row: Row, *, but: str) -> tuple[Entry, ...]:
    """A question and its answer; nothing where one cannot be read, or for the question itself."""
    if row.get("turn_id") == but:
        return ()
    question, answer = str(row.get("question")), str(row.get("answer"))
    with suppress(ValidationError):
        return (Entry.model_validate_json(question), *_SAID.validate_json(answer))
    # Anybody who may write to the store has written it; no later question is to fail for that.
    return ()


def _marked(entries: Sequence[Entry], *, left_out: int) -> tuple[Entry, ...]:
    if not entries or not left_out:
        return (*entries,)
    first, *rest = entries
    # Not a message of its own: some providers take no two of a user in a row.
    text = f"{_marker(left_out)}{first.text or ''}"
    return (first.model_copy(update={"text": text}), *rest)


def _marker(left_out: int) -> str:
    if not left_out:
        return ""
    some = "1 earlier question" if left_out == 1 else f"{left_out} earlier questions"
    verb = "is" if left_out == 1 else "are"
    return f"[{some} of this conversation {verb} not shown any more.]\n\n"
