"""Agents over gRPC: a conversation, a retry, and what is refused."""

import json
from typing import Any

import grpc
import pytest

from colony.rpc import agents_pb2 as pb
from colony.testing.claims import eventually
from colony.testing.model_server import ModelServer
from tests.colonies.agent_colony import rounds, says
from tests.rpc.client import Client, fails, opening, talking
from tests.rpc.conftest import Reach

ASKING: Any = {"script": rounds([["change"]]), "permissions": {"ask": ["change"]}}


async def test_a_prompt_is_told_to_its_result_and_the_call_ends(reach: Reach) -> None:
    reached = await reach(script=rounds([["look"]]))
    async with talking(reached) as client:
        session = await client.until("session")
        run = await client.run()
        await client.call.done_writing()
        await reached.harness.finish()
        events = await client.rest()

    assert session.agent == "assistant"
    assert (events[0].kind, events[-1].kind) == ("session.init", "result")
    assert {event.run_id for event in events} == {run}
    kept = [event.seq for event in events if event.cursor]
    assert kept == [*range(1, len(kept) + 1)]
    assert json.loads(events[-1].payload_json)["text"] == "Done."


async def test_an_ask_is_answered_in_the_conversation(reach: Reach) -> None:
    reached = await reach(owners=("ann",), **ASKING)
    async with talking(reached, token="ann") as client:
        run = await client.run()
        ask = await client.asked()
        approval = pb.ResumeApproval(
            run_id=run,
            ask_id=ask["ask_id"],
            verdict=pb.VERDICT_ALLOW_ONCE,
            args_json='{"n": "other"}',
        )
        await client.say(resume_approval=approval)
        answer = await client.until("accepted", "resume_approval")
        await client.call.done_writing()
        await reached.harness.finish()
        events = await client.rest()

    assert answer.verdict == pb.VERDICT_ALLOW_ONCE
    (approved,) = [json.loads(e.payload_json) for e in events if e.kind == "approval"]
    assert approved["actor"] == "ann"
    assert approved["args_hash"] != ask["args_hash"]
    assert json.loads(events[-1].payload_json)["state"] == "completed"


async def test_what_is_refused_does_not_end_the_conversation(reach: Reach) -> None:
    reached = await reach(**ASKING)
    async with talking(reached) as client:
        run = await client.run()
        ask_id = (await client.asked())["ask_id"]
        approvals = [
            (pb.ResumeApproval(run_id=run, ask_id=ask_id), "invalid_argument"),
            (
                pb.ResumeApproval(run_id="another", ask_id=ask_id, verdict=pb.VERDICT_DENY),
                "stale_run_control",
            ),
            (
                pb.ResumeApproval(run_id=run, ask_id="another", verdict=pb.VERDICT_DENY),
                "ask_not_pending",
            ),
            (
                pb.ResumeApproval(
                    run_id=run, ask_id=ask_id, verdict=pb.VERDICT_ALLOW_ONCE, args_json="[]"
                ),
                "invalid_argument",
            ),
        ]
        for approval, code in approvals:
            await client.say(resume_approval=approval)
            assert (await client.until("refused", "resume_approval")).code == code
        await client.say(prompt=pb.Prompt(text="And this."))
        assert (await client.until("refused", "prompt")).code == "session_awaiting"
        await client.say(open=pb.Open(agent="assistant"))
        assert (await client.until("refused", "open")).code == "invalid_argument"
        await client.say(cancel=pb.Cancel(run_id=run))
        await client.until("accepted", "cancel")
        await client.call.done_writing()
        events = await client.rest()

    assert json.loads(events[-1].payload_json)["state"] == "cancelled"


async def test_a_steer_reaches_the_run(reach: Reach) -> None:
    reached = await reach(script=rounds([["look"]]))
    async with talking(reached) as client:
        run = await client.run()
        await client.say(steer=pb.Steer(text="Be short."))
        assert (await client.until("accepted", "steer")).run_id == run
        await client.call.done_writing()
        await reached.harness.finish()
        kinds = [event.kind for event in await client.rest()]

    assert kinds.count("steer") == 1


async def test_a_client_that_comes_back_is_told_exactly_the_rest(reach: Reach) -> None:
    reached = await reach(script=rounds([["look"], ["look"]]))
    async with talking(reached) as client:
        session = await client.until("session")
        await client.run()
        await client.call.done_writing()
        await reached.harness.finish()
        log = [event for event in await client.rest() if event.cursor]

    for cut in (0, 3, len(log) - 2):
        opened = opening(session.session_id, log[cut].cursor)
        async with talking(reached, opened) as client:
            told = [await client.until("event") for _ in log[cut + 1 :]]
            await client.until("live")
        assert told == log[cut + 1 :]


async def test_a_client_that_goes_away_ends_nothing_unless_it_said_so(reach: Reach) -> None:
    reached = await reach(script=[says("One.")])
    for how, state in (
        (pb.ON_DISCONNECT_UNSPECIFIED, "completed"),
        (pb.ON_DISCONNECT_CANCEL, "cancelled"),
    ):
        async with talking(reached) as client:
            session = (await client.until("session")).session_id
            await client.say(prompt=pb.Prompt(text="Go.", on_disconnect=how))
            await client.until("accepted", "prompt")
        if how == pb.ON_DISCONNECT_CANCEL:

            async def ended(session: str = session) -> bool:
                return not (await reached.engine.session(session)).live

            await eventually(ended)
        await reached.harness.finish()
        assert (await reached.engine.session(session)).state == state


async def test_a_session_of_somebody_else_is_not_found(reach: Reach) -> None:
    reached = await reach(owners=("ann", "bob"), script=[says("One.")])
    async with talking(reached, token="ann") as client:
        session = (await client.until("session")).session_id

    for named in (session, "nothing"):
        async with talking(reached, opening(named), token="bob") as client:
            await fails(client, grpc.StatusCode.NOT_FOUND, "session_not_found")
    async with talking(reached) as client:
        await fails(client, grpc.StatusCode.UNAUTHENTICATED, "unauthorized")


@pytest.mark.parametrize(
    ("opened", "status", "code"),
    [
        (pb.ClientMessage(open=pb.Open()), grpc.StatusCode.INVALID_ARGUMENT, "invalid_argument"),
        (
            pb.ClientMessage(prompt=pb.Prompt(text="Go.")),
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid_argument",
        ),
        (
            pb.ClientMessage(open=pb.Open(agent="nobody")),
            grpc.StatusCode.NOT_FOUND,
            "agent_not_found",
        ),
        (
            pb.ClientMessage(open=pb.Open(agent="assistant", cursor="nonsense")),
            grpc.StatusCode.INVALID_ARGUMENT,
            "cursor_malformed",
        ),
    ],
)
async def test_a_conversation_that_cannot_begin_ends_with_a_code(
    reach: Reach, opened: pb.ClientMessage, status: grpc.StatusCode, code: str
) -> None:
    reached = await reach(script=[says("One.")])
    async with talking(reached, opened) as client:
        await fails(client, status, code)


async def test_a_step_that_failed_is_made_again(reach: Reach) -> None:
    answers: list[Any] = [{"status": 503, "body": {}}, {"text": "Blue."}]
    with ModelServer(answers) as server:
        model = {"provider": "openai", "model": "m", "base_url": server.base_url, "api_key": ""}
        reached = await reach(**model, attempts=1, stream=True)
        async with talking(reached) as client:
            session = (await client.until("session")).session_id
            await client.run()
            await client.call.done_writing()
            await reached.harness.finish()
            events = await client.rest()
        assert json.loads(events[-1].payload_json)["retry_disposition"] == "retryable"

        again = Client(reached, reached.agents.RetryStart(pb.RetryRequest(session_id=session)))
        await again.until("event", "session.init")
        await reached.harness.finish()
        (*_, last) = await again.rest()
        assert json.loads(last.payload_json)["text"] == "Blue."

        once_more = Client(reached, reached.agents.RetryStart(pb.RetryRequest(session_id=session)))
        code = "failed_step_retry_ineligible"
        await fails(once_more, grpc.StatusCode.FAILED_PRECONDITION, code)


async def test_a_server_that_stops_says_so(reach: Reach) -> None:
    reached = await reach(script=[says("One.")])
    async with talking(reached) as client:
        await client.until("live")
        reached.server.stop()
        await fails(client, grpc.StatusCode.UNAVAILABLE, "server_stopping")
