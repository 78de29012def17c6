"""Archive: a finished answer is kept beside the question it answers, and joins its conversation."""

from pydantic import JsonValue

from colony.envelope import Emission, Envelope, derived_id, session_of
from workers.toolloop import requests
from workers.toolloop.conversation import answer_row
from workers.toolloop.params import ConversationParams
from workers.toolloop.turns import question_id


class Params(ConversationParams):
    """Where answers are kept."""

    table: str = "answers"


def archive(envelope: Envelope, own: Params) -> list[Emission] | None:
    """The row of the answer, and in a session that of its conversation.

    Nothing for a message without an answer, such as a reply of the store. An answer that says
    nothing is in no conversation.
    """
    answer = envelope.body.first("assistant")
    if answer is None:
        return None
    row_id = derived_id(envelope.id, "archive")
    call_id = f"archive-{row_id[:8]}"
    row: dict[str, JsonValue] = {
        "id": row_id,
        "question": envelope.context.get("question"),
        "answer": answer.text,
    }
    made = [requests.insert(own.table, row, route="store", call_id=call_id)]
    said = [
        entry for entry in envelope.body.each("text", "assistant") if (entry.text or "").strip()
    ]
    session_id = session_of(envelope.context)
    if own.conversation is not None and session_id and said:
        joined = answer_row(question_id(envelope), session_id, said)
        made.append(requests.upsert(own.conversation, joined, route="store", call_id=call_id))
    return made
