"""What a client of gRPC can say wrong: it is told so, with a code."""

import grpc
import pytest

from colony.errors import SessionNotFound
from colony.rpc import agents_pb2 as pb
from colony.rpc.statuses import LONGEST, sentence_of
from tests.colonies.agent_colony import rounds, says
from tests.rpc.client import fails, opening, talking
from tests.rpc.conftest import Reach


@pytest.mark.parametrize(
    "written",
    [
        '{"n": NaN}',
        '{"n": 1e999}',
        '{"n": "\\ud800"}',
        '{"\\ud800": 1}',
        '{"n": 1, "n": 2}',
        '{"n": ' * 5000 + "1" + "}" * 5000,
        "[]",
        "null",
        "nonsense",
    ],
    ids=lambda written: written[:16],
)
async def test_what_is_no_json_object_is_refused_and_the_conversation_goes_on(
    reach: Reach, written: str
) -> None:
    reached = await reach(script=rounds([["change"]]), permissions={"ask": ["change"]})
    async with talking(reached) as client:
        run = await client.run()
        ask_id = (await client.asked())["ask_id"]
        allowed = pb.ResumeApproval(
            run_id=run, ask_id=ask_id, verdict=pb.VERDICT_ALLOW_ONCE, args_json=written
        )
        await client.say(resume_approval=allowed)
        assert (await client.until("refused", "resume_approval")).code == "invalid_argument"
        await client.say(prompt=pb.Prompt(text="Go.", limits_json=written))
        assert (await client.until("refused", "prompt")).code == "invalid_argument"

        allowed.args_json = ""
        await client.say(resume_approval=allowed)
        await client.until("accepted", "resume_approval")


@pytest.mark.parametrize("key", ["k" * 256, "a\nb", "\0"], ids=["long", "newline", "nul"])
async def test_what_is_no_idempotency_key_is_refused(reach: Reach, key: str) -> None:
    reached = await reach(script=[says("One.")])
    async with talking(reached) as client:
        await client.say(prompt=pb.Prompt(text="Go.", idempotency_key=key))
        assert (await client.until("refused", "prompt")).code == "invalid_argument"


@pytest.mark.parametrize("letter", ["s", "漢", "\0"])
async def test_a_sentence_that_repeats_too_much_does_not_hide_its_code(
    reach: Reach, letter: str
) -> None:
    reached = await reach(script=[says("One.")])
    async with talking(reached, opening(letter * 100_000)) as client:
        await fails(client, grpc.StatusCode.NOT_FOUND, "session_not_found")

    assert sentence_of(SessionNotFound(session_id="s")) == "there is no session s"
    assert len(sentence_of(SessionNotFound(session_id=letter * 100_000))) == LONGEST + 3
