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
    return pb.ServerMessage(refused=pb.Refused(id=asked, code=error.code, message=str(error)))


def verdict_of(number: int) -> Verdict:
    """A verdict; raises InvalidArgument for one that is missing or unknown."""
    found = _VERDICTS.get(number)
    if found is None:
        raise InvalidArgument(detail="a verdict is ALLOW_ONCE, ALLOW_ALWAYS or DENY")
    return found


def on_disconnect(number: int) -> OnDisconnect:
    """What becomes of a run whose client goes away."""
    return "cancel" if number == pb.ON_DISCONNECT_CANCEL else "continue"


def object_in(text: str, name: str) -> dict[str, JsonValue] | None:
    """A JSON object, None where there is no text; raises InvalidArgument for another value."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidArgument(detail=f"{name} is not a JSON object")
    return found
