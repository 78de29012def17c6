"""A run in the words of AG-UI, held against the order that its clients insist on."""

from collections.abc import Sequence
from typing import Any

from ag_ui.core import Event
from pydantic import TypeAdapter

from tests.api.v1.conftest import Serve
from tests.api.v1.served import Told
from tests.colonies.agent_colony import calls, says

EVENT: TypeAdapter[Any] = TypeAdapter(Event)
TALKING = [{"text": "Let me look.", **calls("look", "change")}, says("It is blue.")]


def held(events: Sequence[Told]) -> list[Any]:
    """The events as the protocol's own types, each in an order it may come in."""
    told = [EVENT.validate_python(event.data) for event in events]
    opened: set[str] = set()
    run = False
    for event in told:
        kind = event.type.value
        assert run or kind == "RUN_STARTED", kind
        name = getattr(event, "message_id", None) or getattr(event, "tool_call_id", None)
        name = name or getattr(event, "step_name", None) or kind
        if kind.endswith("_STARTED") or kind.endswith("_START"):
            assert name not in opened or kind == "RUN_STARTED"
            opened.add(name)
            run = True
        elif kind in ("TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS"):
            assert name in opened
        elif kind in ("TEXT_MESSAGE_END", "TOOL_CALL_END", "STEP_FINISHED"):
            assert name in opened
            opened.remove(name)
        elif kind in ("RUN_FINISHED", "RUN_ERROR"):
            assert opened == {"RUN_STARTED"}
            opened.clear()
            run = False
    return told


def said(told: Sequence[Any]) -> str:
    return "".join(event.delta for event in told if event.type == "TEXT_MESSAGE_CONTENT")


async def test_a_run_is_told_in_an_order_that_clients_take(serve: Serve) -> None:
    served = await serve(script=TALKING, stream=True)
    session = await served.session()
    run = await served.ran(session)

    told = held(await served.events(session, run_id=run, format="ag-ui"))

    kinds = [event.type.value for event in told]
    assert (kinds[0], kinds[-1]) == ("RUN_STARTED", "RUN_FINISHED")
    assert (told[0].thread_id, told[0].run_id) == (session, run)
    assert said(told) == "Let me look.It is blue."
    assert kinds.count("STEP_STARTED") == 2
    assert [e.tool_call_name for e in told if e.type == "TOOL_CALL_START"] == ["look", "change"]
    assert [e.tool_call_id for e in told if e.type == "TOOL_CALL_RESULT"] == ["c0-0", "c0-1"]
    assert told[-1].outcome.type == "success"


async def test_who_comes_in_the_middle_is_told_what_is_open(serve: Serve) -> None:
    served = await serve(script=TALKING, stream=True)
    session = await served.session()
    run = await served.ran(session)
    events = await served.events(session, run_id=run, format="ag-ui")
    cursors = [event.id for event in events if event.id]

    for cursor in cursors[:-1]:
        rest = held(await served.events(session, run_id=run, format="ag-ui", cursor=cursor))
        assert rest[-1].type == "RUN_FINISHED"


async def test_an_ask_is_told_by_its_own_name(serve: Serve) -> None:
    served = await serve(script=TALKING, permissions={"allow": ["look"], "ask": ["change"]})
    session = await served.session()
    await served.ran(session)

    told = held(await served.events(session, follow="false", format="ag-ui"))

    (ask,) = [e for e in told if e.type == "CUSTOM" and e.name == "permission.ask"]
    assert ask.value["tool"] == "change"


async def test_a_run_that_failed_and_one_that_was_cancelled_end_as_such(serve: Serve) -> None:
    served = await serve(script=[{"error": "auth"}])
    failed, cancelled = [await served.session() for _ in range(2)]
    await served.ran(failed)
    run = await served.prompted(cancelled)
    await served.post(cancelled, "controls/cancel", run_id=run)

    (*_, last) = held(await served.events(failed, follow="false", format="ag-ui"))
    assert (last.type, last.code) == ("RUN_ERROR", "auth")
    (*_, last) = held(await served.events(cancelled, run_id=run, format="ag-ui"))
    assert last.outcome.type == "cancelled"
