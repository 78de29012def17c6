"""How a call over gRPC comes to its end, and what becomes of the run it leaves behind."""

from typing import Any

import grpc
import pytest

from colony.rpc import agents_pb2 as pb
from colony.testing.claims import eventually
from colony.testing.model_server import ModelServer
from tests.colonies.agent_colony import rounds, says
from tests.rpc.client import Client, fails, opening, talking
from tests.rpc.conftest import Reach, Reached


async def ran(reached: Reached, key: str = "") -> tuple[str, list[Any]]:
    """A session with one run that has ended, and the events that are kept of it."""
    async with talking(reached) as client:
        session = (await client.until("session")).session_id
        await client.say(prompt=pb.Prompt(text="Go.", idempotency_key=key))
        await client.until("accepted", "prompt")
        await client.call.done_writing()
        await reached.harness.finish()
        return session, [event for event in await client.rest() if event.cursor]


async def test_a_client_that_says_nothing_is_told_what_is_kept_and_the_call_ends(
    reach: Reach,
) -> None:
    reached = await reach(script=rounds([["look"], ["look"]]))
    session, log = await ran(reached)

    for cut in range(len(log)):
        async with talking(reached, opening(session, log[cut].cursor)) as client:
            await client.call.done_writing()
            told = await client.rest()

        assert told == log[cut + 1 :]
        kinds = [message.WhichOneof("kind") for message in client.told]
        assert kinds.count("live") == 1


async def test_a_run_that_ended_before_it_was_accepted_is_told_to_its_result(reach: Reach) -> None:
    reached = await reach(script=[says("One.")])
    session, log = await ran(reached, "key")

    async with talking(reached, opening(session)) as client:
        await client.say(prompt=pb.Prompt(text="Go.", idempotency_key="key"))
        await client.call.done_writing()

        assert await client.rest() == log


async def test_a_key_of_a_run_that_was_told_before_keeps_no_call_open(reach: Reach) -> None:
    reached = await reach(script=[says("One.")])
    session, log = await ran(reached, "key")
    run = await reached.engine.run(session, "And this.")

    async with talking(reached, opening(session, log[-1].cursor)) as client:
        await client.say(prompt=pb.Prompt(text="Go.", idempotency_key="key"))
        assert (await client.until("accepted", "prompt")).run_id == log[0].run_id
        await client.call.done_writing()
        await reached.harness.finish()
        events = await client.rest()

    assert {event.run_id for event in events} == {run.id}
    assert events[-1].kind == "result"


async def test_a_client_that_does_not_read_is_gone_all_the_same(reach: Reach) -> None:
    """It is written to when it goes: nothing of it is read."""
    reached = await reach(script=[says("x" * 900_000)])
    session = await long_session(reached)

    async with talking(reached, opening(session)) as client:
        await client.say(prompt=pb.Prompt(text="Go.", on_disconnect=pb.ON_DISCONNECT_CANCEL))

        async def begun() -> bool:
            return (await reached.engine.session(session)).live

        await eventually(begun)

    async def ended() -> bool:
        return not (await reached.engine.session(session)).live

    await eventually(ended)
    assert (await reached.engine.session(session)).state == "cancelled"


async def test_a_process_that_stops_takes_no_run_along(reach: Reach) -> None:
    reached = await reach(script=[says("One.")])
    async with talking(reached) as client:
        session = (await client.until("session")).session_id
        await client.say(prompt=pb.Prompt(text="Go.", on_disconnect=pb.ON_DISCONNECT_CANCEL))
        await client.until("accepted", "prompt")
        await client.until("live")
        reached.server.stop()
        await fails(client, grpc.StatusCode.UNAVAILABLE, "server_stopping")

    await reached.harness.finish()
    assert (await reached.engine.session(session)).state == "completed"


@pytest.mark.parametrize("stops", [False, True])
async def test_a_retry_goes_with_its_client_and_not_with_the_process(
    reach: Reach, stops: bool
) -> None:
    answers: list[Any] = [{"status": 503, "body": {}}, {"text": "Blue."}]
    with ModelServer(answers) as server:
        model = {"provider": "openai", "model": "m", "base_url": server.base_url, "api_key": ""}
        reached = await reach(**model, attempts=1, stream=True)
        session, _ = await ran(reached)
        asked = pb.RetryRequest(session_id=session, on_disconnect=pb.ON_DISCONNECT_CANCEL)
        client = Client(reached, reached.agents.RetryStart(asked))
        await client.until("live")
        if stops:
            reached.server.stop()
            await fails(client, grpc.StatusCode.UNAVAILABLE, "server_stopping")
        else:
            client.call.cancel()

            async def ended() -> bool:
                return not (await reached.engine.session(session)).live

            await eventually(ended)
        await reached.harness.finish()

        state = (await reached.engine.session(session)).state
        assert state == ("completed" if stops else "cancelled")


async def long_session(reached: Reached) -> str:
    """A session whose events are more than a call holds that is not read."""
    session = (await reached.engine.create_session("assistant")).id
    for _ in range(8):
        await reached.engine.run(session, "Go.")
        await reached.harness.finish()
    return session
