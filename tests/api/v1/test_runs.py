"""Runs over HTTP: begun, told things, ended, and refused."""

import asyncio

import httpx
import pytest

from tests.api.v1.conftest import TOKENS, Serve
from tests.api.v1.served import told
from tests.colonies.agent_colony import rounds, says

STREAM = {"Accept": "text/event-stream"}


async def test_a_prompt_is_answered_with_the_run_that_it_began(serve: Serve) -> None:
    served = await serve(script=[says("Blue.")])
    session = await served.session()

    run = await served.ran(session)

    found = (await served.http.get(f"/v1/sessions/{session}")).json()
    assert (found["state"], found["run_id"], found["stop"]) == ("completed", run, "end_turn")


async def test_a_prompt_that_is_streamed_tells_the_whole_run_and_nothing_else(
    serve: Serve,
) -> None:
    served = await serve(script=[says("One."), says("Two.")])
    session = await served.session()
    await served.ran(session)
    path = f"/v1/sessions/{session}/prompt"

    async with served.http.stream("POST", path, json={"text": "Go."}, headers=STREAM) as response:
        finishing = asyncio.create_task(served.harness.finish())
        events = [event async for event in told(response)]
        await finishing

    kinds = [event.data.get("type", event.event) for event in events]
    assert (kinds[0], kinds[-1]) == ("session.init", "result")
    assert kinds.count("live") == 1
    assert len({event.data["run_id"] for event in events if "run_id" in event.data}) == 1


async def test_a_repeat_under_its_key_is_told_the_first_run(serve: Serve) -> None:
    served = await serve(script=[says("One.")])
    session = await served.session()
    path, key = f"/v1/sessions/{session}/prompt", {"Idempotency-Key": "k"}

    first = await served.http.post(path, json={"text": "Go."}, headers=key)
    again = await served.http.post(path, json={"text": "Go."}, headers=key)
    other = await served.http.post(path, json={"text": "Stop."}, headers=key)

    assert first.json() == again.json()
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


async def test_a_session_takes_no_second_run(serve: Serve) -> None:
    served = await serve(script=rounds([["change"]]), permissions={"ask": ["change"]})
    session = await served.session()
    await served.prompted(session)

    busy = await served.post(session, "prompt", text="And this.")
    await served.harness.finish()
    awaiting = await served.post(session, "prompt", text="And this.")
    retried = await served.post(session, "retry")

    assert [r.status_code for r in (busy, awaiting, retried)] == [409] * 3
    assert [r.json()["code"] for r in (busy, awaiting)] == ["session_busy", "session_awaiting"]


async def test_an_ask_is_answered_once(serve: Serve) -> None:
    served = await serve(owners=True, script=rounds([["change"]]), permissions={"ask": ["change"]})
    served.http.headers["Authorization"] = f"Bearer {TOKENS['ann']}"
    session = await served.session()
    run = await served.ran(session)
    ask = await served.ask(session)
    given = {"run_id": run, "ask_id": ask["ask_id"], "verdict": "allow_once"}

    stale = await served.post(session, "controls/resolve-ask", **{**given, "run_id": "another"})
    answered = await served.post(session, "controls/resolve-ask", **given)
    again = await served.post(session, "controls/resolve-ask", **given)
    await served.harness.finish()

    assert (stale.status_code, stale.json()["code"]) == (409, "stale_run_control")
    assert run not in stale.text
    assert (answered.status_code, answered.json()["verdict"]) == (200, "allow_once")
    assert (again.status_code, again.json()["code"]) == (409, "ask_not_pending")
    events = await served.events(session, run_id=run)
    (approval,) = [e.data for e in events if e.data.get("type") == "approval"]
    assert approval["actor"] == "ann"


@pytest.mark.parametrize("verdict", ["yes", "", "ALLOW_ONCE", None, "allow"])
async def test_what_is_no_verdict_is_no_answer(serve: Serve, verdict: str | None) -> None:
    served = await serve(script=rounds([["change"]]), permissions={"ask": ["change"]})
    session = await served.session()
    run = await served.ran(session)
    ask = await served.ask(session)
    given = {} if verdict is None else {"verdict": verdict}

    refused = await served.post(
        session, "controls/resolve-ask", run_id=run, ask_id=ask["ask_id"], **given
    )

    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")
    assert (await served.ask(session))["ask_id"] == ask["ask_id"]


async def test_a_run_is_cancelled_once_and_for_all(serve: Serve) -> None:
    served = await serve(script=rounds([["change"]]), permissions={"ask": ["change"]})
    session = await served.session()
    run = await served.ran(session)
    ask = await served.ask(session)

    answers = [await served.post(session, "controls/cancel", run_id=run) for _ in range(2)]
    late = await served.post(
        session, "controls/resolve-ask", run_id=run, ask_id=ask["ask_id"], verdict="allow_once"
    )
    unknown = await served.post(session, "controls/cancel", run_id="another")

    assert [answer.status_code for answer in answers] == [202, 202]
    assert late.status_code == 409
    assert unknown.json()["code"] == "stale_run_control"
    found = (await served.http.get(f"/v1/sessions/{session}")).json()
    assert (found["state"], found["pending"]) == ("cancelled", 0)


async def test_a_steer_is_taken_up_by_the_run_under_way(serve: Serve) -> None:
    served = await serve(script=rounds([["look"]]))
    session = await served.session()
    run = await served.prompted(session)

    steered = await served.post(session, "controls/steer", text="And be short.")
    await served.harness.finish()
    late = await served.post(session, "controls/steer", text="And this.")

    assert (steered.status_code, steered.json()["run_id"]) == (202, run)
    assert (late.status_code, late.json()["code"]) == (409, "stale_run_control")
    kinds = [event.data.get("type") for event in await served.events(session, run_id=run)]
    assert kinds.count("steer") == 1


async def test_a_session_that_is_idle_can_be_folded(serve: Serve) -> None:
    served = await serve(script=[says("One.")])
    session = await served.session()
    await served.ran(session)

    folding = asyncio.create_task(served.http.post(f"/v1/sessions/{session}/compact"))

    async def finished() -> httpx.Response:
        while not folding.done():
            await served.harness.finish()
            await asyncio.wait([folding], timeout=0.05)
        return await folding

    folded = await finished()
    assert (folded.status_code, folded.json()) == (200, {"compacted": False})


async def test_who_goes_away_ends_nothing_unless_asked_to(serve: Serve) -> None:
    served = await serve(script=[says("One.")])
    for how, state in (("continue", "completed"), ("cancel", "cancelled")):
        session = await served.session()
        path = f"/v1/sessions/{session}/prompt"
        sent = {"text": "Go.", "on_disconnect": how}
        async with served.http.stream("POST", path, json=sent, headers=STREAM) as response:
            await anext(told(response))

        async with asyncio.timeout(20):
            while how == "cancel" and (await served.engine.session(session)).live:
                await asyncio.wait([asyncio.create_task(asyncio.sleep(0.02))])
        await served.harness.finish()

        assert (await served.engine.session(session)).state == state


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"text": "  "},
        {"text": "Go.", "max_turns": 3},
        {"text": 7},
        {"parts": [{"type": "image", "url": "x"}]},
        {"text": "Go.", "on_disconnect": "cancel"},
        {"text": "Go.", "limits": {"max_turns": "many"}},
    ],
)
async def test_a_prompt_that_cannot_be_meant_is_refused(
    serve: Serve, sent: dict[str, object]
) -> None:
    served = await serve(script=[says("one")])
    session = await served.session()

    refused = await served.post(session, "prompt", **sent)

    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")


async def test_parts_are_paragraphs_of_a_prompt(serve: Serve) -> None:
    served = await serve(script=[says("one")])
    session = await served.session()
    parts = [{"type": "text", "text": word} for word in ("One.", "Two.")]

    await served.post(session, "prompt", parts=parts)
    await served.harness.finish()

    (said, *_) = await served.engine.transcript(session)
    assert said.texts == ["One.\n\nTwo."]
