"""A conversation with an agent, in a pipe and in a terminal."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.agents import Terminal, agent_up, piped
from tests.cli.conftest import Colony
from tests.colonies.agent_colony import calls, rounds, says

CTRL_C, CTRL_D = b"\x03", b"\x04"
ASKING: Any = [{"text": "I would change it.", **calls("change")}, says("Done.")]


@pytest.fixture(scope="module")
def answering() -> Iterator[Colony]:
    """An agent that looks once and answers."""
    with agent_up(script=rounds([["look"]], last="It is blue.")) as colony:
        yield colony


@pytest.fixture(scope="module")
def asking() -> Iterator[Colony]:
    """An agent that asks before its change."""
    with agent_up(script=ASKING, permissions={"ask": ["change"]}, stream=True) as colony:
        yield colony


def session_in(errors: str) -> str:
    return errors.split("session ")[1].split()[0]


def test_a_script_talks_through_a_pipe(answering: Colony) -> None:
    told = piped(answering, "What is it?\nAnd again?\n")

    assert (told.returncode, told.stdout.count("It is blue.")) == (0, 2), told.stderr
    assert "▸ look n=0-0" in told.stdout
    assert "✓ look: saw" in told.stdout


def test_a_session_is_gone_on_with(answering: Colony) -> None:
    session = session_in(piped(answering, "What is it?\n").stderr)
    piped(answering, "And again?\n", "--session", session)

    shown = answering.json("runs", "show", session)
    assert [row["kind"] for row in shown["messages"]].count("user") == 2


def test_commands_begin_with_a_slash(answering: Colony) -> None:
    told = piped(answering, "/help\n\n/compact\n/retry\n/new\n/quit\nnever said\n")

    assert told.returncode == 0
    assert "/compact" in told.stdout
    assert "failed_step_retry_ineligible" in told.stderr
    assert told.stderr.count("session ") >= 2
    assert "blue" not in told.stdout


def test_an_agent_that_is_not_there_is_told(answering: Colony) -> None:
    told = answering("chat", "nobody", status=2)

    assert "agent_not_found" in told.stderr


def test_an_ask_is_answered_from_the_input(asking: Colony) -> None:
    told = piped(asking, "Go.\nwhat\ny\n")

    assert "? change n=0-0" in told.stdout
    assert told.stdout.count("y once, a always") == 2
    assert "✓ change: changed" in told.stdout
    assert "Done." in told.stdout


def test_a_refusal_reaches_the_model(asking: Colony) -> None:
    told = piped(asking, "Go.\nn not on a Sunday\n")

    assert "✗ change: " in told.stdout
    assert "not on a Sunday" in told.stdout


def test_edited_arguments_are_what_is_run(asking: Colony) -> None:
    told = piped(asking, 'Go.\ne nonsense\ne {"n": "other"}\n')

    session = session_in(told.stderr)
    assert "Done." in told.stdout
    assert asking.json("runs", "show", session)["state"] == "completed"


def test_an_ask_that_nobody_answers_stays(asking: Colony) -> None:
    told = piped(asking, "Go.\n")

    session = session_in(told.stderr)
    (ask,) = asking.json("asks", "list", "--session", session)
    assert f"colony asks answer {ask['ask_id']} allow_once" in told.stderr
    assert asking.json("runs", "show", session)["state"] == "awaiting"

    again = piped(asking, "y\n", "--session", session)
    assert "Done." in again.stdout


def test_ctrl_c_ends_the_run_and_not_the_session(asking: Colony) -> None:
    with Terminal(asking) as chat:
        chat.until("> ")
        chat.type("Go.")
        chat.until("y once, a always")
        chat.press(CTRL_C)
        chat.until("cancelled")
        chat.until("> ")
        session = session_in(chat.shown)
        chat.type("Go on.")
        chat.until("y once, a always")
        chat.type("y")
        chat.until("Done.")
        chat.until("> ")
        chat.press(CTRL_C)

        assert chat.left() == 0
    assert asking.json("runs", "show", session)["state"] == "completed"


def test_ctrl_d_leaves(answering: Colony) -> None:
    with Terminal(answering) as chat:
        chat.until("> ")
        chat.press(CTRL_D)

        assert chat.left() == 0
