"""Ending: how a run ends from outside, by whoever may end its trace."""

from typing import Any, Literal

from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import bind

INTERRUPTED = {
    "cancelled": "interrupted: the run was cancelled while this call was under way; "
    "whether it had an effect is not known",
    "failed": "interrupted: the run failed before the result of this call was recorded; "
    "whether it had an effect is not known",
}


async def end_run(
    link: Link,
    keys: Keys,
    run_id: str,
    session_id: str,
    *,
    cause: Literal["cancelled", "failed"],
    reason: str,
    only_quiet: bool = False,
    server: str | None = None,
) -> Any:
    """The answer of the script: `ended`, `before` with the cause, `stale`, or `unknown`.

    Without a `reason` it is the code of the newest dead letter, or `stalled`.
    """
    call = bind(
        "end_run",
        trace=keys.trace(run_id),
        open=keys.open_traces(),
        ended=keys.ended_traces(),
        deadlines=keys.deadlines(),
        quiet=keys.quiet(),
        run=keys.run(run_id),
        session=keys.agent_session(session_id),
        events=keys.session_events(session_id),
        history=keys.history(session_id),
        steers=keys.steers(session_id),
        asks=keys.asks(run_id),
        pending=keys.ask_deadlines(),
        run_id=run_id,
        session_id=session_id,
        cause=cause,
        reason=reason,
        disposition="unknown",
        interrupted=INTERRUPTED[cause],
        channel=keys.session_live(session_id),
        only="quiet" if only_quiet else "",
    )
    return await link.run(call, server=server)
