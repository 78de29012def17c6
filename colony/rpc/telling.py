"""Telling: what the engine tells, as messages of gRPC, and what a client says, as the engine takes
it."""

import json
from typing import Final

from pydantic import JsonValue

from colony.access.run_follower import Frame
from colony.agent.asks import Verdict
from colony.agent.record import SessionRecord
from colony.engine import OnDisconnect
from colony.errors import ColonyError, InvalidArgument
from colony.rpc import agents_pb2 as pb
from colony.rpc.statuses import sentence_of

MAX_KEY: Final = 255

_VERDICTS: Final[dict[int, Verdict]] = {
    pb.VERDICT_ALLOW_ONCE: "allow_once",
    pb.VERDICT_ALLOW_ALWAYS: "allow_always",
    pb.VERDICT_DENY: "deny",
}
_OF_VERDICT: Final = {verdict: number for number, verdict in _VERDICTS.items()}


def session(found: SessionRecord) -> pb.ServerMessage:
    """A session as it is."""
    told = pb.Session(
        session_id=found.id, agent=found.agent, state=found.state, run_id=found.run_id
    )
    return pb.ServerMessage(session=told)


def frame(found: Frame) -> pb.ServerMessage:
    """Something that a follower is told."""
    event = found.event
    if event is None:
        live = found.phase == "mark"
        return pb.ServerMessage(live=pb.Live()) if live else pb.ServerMessage(gap=pb.Gap())
    told = pb.Event(
        kind=event.kind,
        run_id=event.run_id,
        turn=event.turn,
        seq=event.seq,
        cursor=found.cursor or "",
        at_ms=event.at,
        payload_json=json.dumps(dict(event.payload)),
    )
    return pb.ServerMessage(event=told)


def accepted(
    asked: str, *, run_id: str = "", verdict: Verdict | None = None, learned: bool = False
) -> pb.ServerMessage:
    """That a message of the client was taken."""
    number = pb.VERDICT_UNSPECIFIED if verdict is None else _OF_VERDICT[verdict]
    told = pb.Accepted(
        id=asked, run_id=run_id, verdict=pb.Verdict.ValueType(number), learned=learned
    )
    return pb.ServerMessage(accepted=told)


def refused(asked: str, error: ColonyError) -> pb.ServerMessage:
    """That a message of the client was not."""
    told = pb.Refused(id=asked, code=error.code, message=sentence_of(error))
    return pb.ServerMessage(refused=told)


def verdict_of(number: int) -> Verdict:
    """A verdict; raises InvalidArgument for one that is missing or unknown."""
    found = _VERDICTS.get(number)
    if found is None:
        raise InvalidArgument(detail="a verdict is ALLOW_ONCE, ALLOW_ALWAYS or DENY")
    return found


def on_disconnect(number: int) -> OnDisconnect:
    """What becomes of a run whose client goes away."""
    return "cancel" if number == pb.ON_DISCONNECT_CANCEL else "continue"


def key_in(text: str) -> str | None:
    """An idempotency key, None where there is no text; raises InvalidArgument for what is none."""
    if len(text) > MAX_KEY or not text.isprintable():
        raise InvalidArgument(detail=f"an idempotency key has 1 to {MAX_KEY} printable characters")
    return text or None


def object_in(text: str, name: str) -> dict[str, JsonValue] | None:
    """A JSON object, None where there is no text; raises InvalidArgument for another value, and for
    what another reader would take for something else."""
    if not text:
        return None
    try:
        found = json.loads(text, object_pairs_hook=_once)
        # Numbers without end and half a surrogate pair can be read here, and sent to nobody.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidArgument(detail=f"{name} is not a JSON object")
    return found


def _once(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is given twice in one object")
    return values
