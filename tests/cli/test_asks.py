"""Asks of agents, listed and answered from the command line."""

from collections.abc import Iterator

import pytest

from tests.cli.agents import agent_up, waiting
from tests.cli.conftest import Colony
from tests.colonies.agent_colony import says

LONG = f"echo {'a' * 200}; rm everything"
CALL = {"id": "c", "name": "change", "arguments": {"n": LONG}}


@pytest.fixture(scope="module")
def asking() -> Iterator[Colony]:
    """An agent that asks before its change."""
    script = [{"tool_calls": [CALL]}, says("Done.")]
    with agent_up(script=script, permissions={"ask": ["change"]}) as colony:
        yield colony


def test_asks_are_listed_whole(asking: Colony) -> None:
    session = waiting(asking)

    (ask,) = asking.json("asks", "list", "--session", session)
    listed = asking("asks", "list").stdout

    assert (ask["session_id"], ask["tool"], ask["args"]) == (session, "change", {"n": LONG})
    assert ask["ask_id"] in listed
    assert LONG in listed


def test_an_ask_is_answered_once(asking: Colony) -> None:
    session = waiting(asking)
    (ask,) = asking.json("asks", "list", "--session", session)

    asking("asks", "answer", ask["ask_id"], "maybe", status=2)
    asking("asks", "answer", ask["ask_id"], "allow_once", "--args", "[]", status=2)
    answered = asking.json("asks", "answer", ask["ask_id"], "deny", "--reason", "no")
    again = asking("asks", "answer", ask["ask_id"], "allow_once", status=2)

    assert (answered["verdict"], answered["reason"]) == ("deny", "no")
    assert "ask_not_pending" in again.stderr
    assert asking.json("asks", "list", "--session", session) == []


def test_arguments_are_edited_only_where_a_call_is_allowed_once(asking: Colony) -> None:
    session = waiting(asking)
    (ask,) = asking.json("asks", "list", "--session", session)
    other = ("--args", '{"n": "other"}')

    assert "invalid_argument" in asking("asks", "answer", ask["ask_id"], "deny", *other,
                                        status=2).stderr  # fmt: skip
    answered = asking.json("asks", "answer", ask["ask_id"], "allow_once", *other)

    assert answered["args"] == {"n": "other"}
    assert answered["args_hash"] != ask["args_hash"]


def test_nothing_is_listed_of_a_session_that_is_not_there(asking: Colony) -> None:
    assert "session_not_found" in asking("asks", "list", "--session", "nothing", status=2).stderr
