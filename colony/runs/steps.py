"""Run steps: how what a step does to its run is written down with it.

Most steps are committed with others. One that asks, and one that ends its run, is settled by a
script of its own.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from colony.agent.asks import Ask
from colony.agent.changes import End, RunChanges, Written
from colony.codec import encode_head
from colony.envelope import Head, derived_id
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.lua.packing import pack
from colony.lua.registry import Argument, Call, bind

# What an envelope that waited for decisions says when it comes back.
DECIDED = {"decided": "1"}


@dataclass(frozen=True, slots=True)
class RunDelivery:
    """A delivery that is settled together with what changes in its run.

    `outputs` are the head and body of each envelope that goes on where a run that ends is steered.
    """

    source: str
    entry: str
    server: str
    head: Head
    body: bytes
    outputs: Sequence[tuple[bytes, bytes]]


def run_part(keys: Keys, changes: RunChanges | None) -> bytes:
    """What a commit is told of the changes of a run; empty where nothing changes."""
    if changes is None or not changes.any:
        return b""
    return pack(
        {
            "channel": keys.session_live(changes.session),
            "turn": str(changes.turn),
            "once": changes.once or (),
            "fields": [[*to, value] for to, value in changes.fields.items()],
            "counts": [[*to, by] for to, by in changes.counts.items()],
            "rows": [row.encode() for row in changes.rows],
            "steers": changes.steers_taken,
            "events": [
                [event.kind, str(event.turn), event.payload, int(event.durable)]
                for event in changes.events
            ],
        }
    )


def run_keys(keys: Keys, run_id: str, changes: RunChanges) -> list[Argument]:
    """The keys that the changes of a run are written to."""
    return [*_run_keys(keys, run_id, changes.session).values()]


async def commit_apart(link: Link, keys: Keys, delivery: RunDelivery, changes: RunChanges) -> Any:
    """Settle a delivery that asks, or that ends its run; the answer of the script.

    Raises ServerChanged and writes nothing where the delivery is another server's.
    """
    end = changes.end
    call = (
        _file_asks(keys, delivery, changes)
        if end is None
        else _finish(keys, delivery, changes, end)
    )
    return await link.run(call, server=delivery.server)


def _file_asks(keys: Keys, delivery: RunDelivery, changes: RunChanges) -> Call:
    run_id = delivery.head.trace_id
    waiting = delivery.head.model_copy(
        update={
            "id": derived_id(delivery.head.id, "decided"),
            "parent_message_id": delivery.head.id,
            "hop": {**delivery.head.hop, **DECIDED},
        }
    )
    told = [Written("permission.ask", changes.turn, json.dumps(_told(ask))) for ask in changes.asks]
    # Of its own: the changes may be sent again.
    changes = replace(changes, events=[*changes.events, *told])
    asked = [
        [ask.id, _kept(ask, waiting.id), ask.deadline, f"{changes.session} {run_id} {ask.id}"]
        for ask in changes.asks
    ]
    return bind(
        "file_asks",
        asks=keys.asks(run_id),
        deadlines=keys.ask_deadlines(),
        parked=waiting.id,
        envelope=pack([delivery.source, encode_head(waiting), delivery.body]),
        asked=pack(asked),
        **_settled(keys, delivery, changes),
    )


def _finish(keys: Keys, delivery: RunDelivery, changes: RunChanges, end: End) -> Call:
    return bind(
        "finish_run",
        open=keys.open_traces(),
        ended=keys.ended_traces(),
        deadlines=keys.deadlines(),
        router=keys.router(),
        state=end.state,
        result=json.dumps(_result(end)),
        outputs=pack([*delivery.outputs]),
        session_id=changes.session,
        asks=keys.asks(delivery.head.trace_id),
        pending=keys.ask_deadlines(),
        **_settled(keys, delivery, changes),
    )


def _settled(keys: Keys, delivery: RunDelivery, changes: RunChanges) -> dict[str, Argument]:
    """What every script is told that settles a delivery of a run."""
    run_id = delivery.head.trace_id
    return {
        "source": delivery.source,
        "trace": keys.trace(run_id),
        "quiet": keys.quiet(),
        "repairs": keys.repairs(),
        **_run_keys(keys, run_id, changes.session),
        "group": GROUP,
        "entry": delivery.entry,
        "trace_id": run_id,
        "changes": run_part(keys, changes),
    }


def _run_keys(keys: Keys, run_id: str, session: str) -> dict[str, Argument]:
    return {
        "run": keys.run(run_id),
        "session": keys.agent_session(session),
        "events": keys.session_events(session),
        "history": keys.history(session),
        "steers": keys.steers(session),
    }


def _told(ask: Ask) -> dict[str, JsonValue]:
    told = ask.model_dump(mode="json")
    return {"ask_id": told.pop("id"), **told}


def _kept(ask: Ask, group: str) -> str:
    return json.dumps({**ask.model_dump(mode="json"), "group": group, "state": "pending"})


def _result(end: End) -> dict[str, JsonValue]:
    return {
        "stop": end.stop,
        "text": end.text,
        "error": end.error,
        "retry_disposition": end.disposition,
        "stream_progress": end.progress,
    }
