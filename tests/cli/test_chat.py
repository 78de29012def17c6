"""A conversation with an agent, in a pipe and in a terminal."""

import os
from collections.abc import Iterator

import pytest

from colony.cli.asking import Answer, answer_of, ask_lines
from colony.testing.model_server import ModelServer
from tests.cli.agents import ASKING, Terminal, agent_up, piped, session_in
from tests.cli.conftest import Colony
from tests.colonies.agent_colony import rounds

CTRL_C, CTRL_D = b"\x03", b"\x04"
STORY = "It is a very long story. " * 400


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


@pytest.fixture(scope="module")
def slow() -> Iterator[Colony]:
    """An agent that tells a long story slowly."""
    with ModelServer(lambda request: {"text": STORY, "pause_s": 0.05}) as server:
        model = {"provider": "openai", "model": "m", "base_url": server.base_url, "api_key": ""}
        with agent_up(**model, stream=True) as colony:
            yield colony


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


def test_a_session_of_another_agent_is_as_if_it_were_not_there(answering: Colony) -> None:
    session = session_in(piped(answering, "").stderr)

    told = answering("chat", "nobody", "--session", session, status=2)

    assert "session_not_found" in told.stderr


def test_nobody_is_there_to_say_anything(answering: Colony) -> None:
    with open(os.devnull) as nothing:
        told = piped(answering, nothing)

    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("y", Answer("allow_once")),
        (" a ", Answer("allow_always")),
        ("n", Answer("deny")),
        ("n not now", Answer("deny", reason="not now")),
        ('e {"n": 1}', Answer("allow_once", args={"n": 1})),
        *((other, None) for other in ("", "Y", "yes", "y, but", "a b", "e", "e [1]", "e {", "no")),
    ],
)
def test_only_an_answer_is_one(line: str, answer: Answer | None) -> None:
    assert answer_of(line) == answer


def test_an_ask_shows_all_that_it_is_about_as_it_is() -> None:
    long = "a" * 500
    args = {"command": f"{long}; rm\n\x1b[2K\u202e", "n\rm": 1}
    told = {"kind": "permission", "tool": "sh\x07", "args": args, "reason": "no rule\x9b"}

    shown = list(ask_lines(told))

    assert shown[0] == "? sh\\x07  (no rule\\x9b)"
    assert shown[1] == f'    command = "{long}; rm\\n\\u001b[2K\\u202e"'
    assert shown[2] == "    n\\rm = 1"


def test_an_ask_is_answered_from_the_input(asking: Colony) -> None:
    told = piped(asking, "Go.\nwhat\ny\n")

    assert "? change  (" in told.stdout
    assert '    n = "0-0"\n' in told.stdout
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


def test_edited_arguments_that_nobody_can_mean_are_asked_for_again(asking: Colony) -> None:
    told = piped(asking, 'Go.\ne {"n": NaN}\ny\n')

    assert "invalid_argument" in told.stderr
    assert "Done." in told.stdout


def test_what_was_typed_before_an_ask_is_no_answer_to_it(asking: Colony) -> None:
    with Terminal(asking) as chat:
        chat.until("> ")
        chat.type("Go.\ny\ny")
        chat.until("y once, a always")
        session = session_in(chat.shown)
        chat.type("n too early")
        chat.until("too early")
        chat.until("> ")

        assert "✓" not in chat.shown
    assert asking.json("runs", "show", session)["state"] == "completed"


def test_an_ask_that_somebody_else_answers_is_asked_no_more(asking: Colony) -> None:
    with Terminal(asking) as chat:
        chat.until("> ")
        chat.type("Go.")
        chat.until("y once, a always")
        (ask,) = asking.json("asks", "list", "--session", session_in(chat.shown))
        asking("asks", "answer", ask["ask_id"], "allow_once")
        chat.until("Done.")
        chat.until("> ")


def test_ctrl_c_ends_a_run_in_the_middle_of_a_sentence(slow: Colony) -> None:
    with Terminal(slow) as chat:
        chat.until("> ")
        chat.type("Tell me.")
        chat.until("very long")
        chat.press(CTRL_C)
        chat.until("cancelled, cancelled")
        chat.until("> ")
        shown = slow.json("runs", "show", session_in(chat.shown))
        chat.press(CTRL_C)

        assert chat.left() == 0
    assert (shown["state"], shown["stop"]) == ("cancelled", "cancelled")


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
