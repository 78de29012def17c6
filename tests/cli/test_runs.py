"""Runs and asks of agents, seen and steered from the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from colony.errors import ServerMissing
from colony.sync import SyncEngine
from colony.testing.model_server import ModelServer
from tests.cli.agents import agent_up, piped
from tests.cli.conftest import Colony
from tests.cli.test_chat import ASKING, session_in


@pytest.fixture(scope="module")
def asking() -> Iterator[Colony]:
    """An agent that asks before its change."""
    with agent_up(script=ASKING, permissions={"ask": ["change"]}) as colony:
        yield colony


@pytest.fixture(scope="module")
def failing() -> Iterator[Colony]:
    """An agent whose model is away."""
    with ModelServer(lambda request: {"status": 503, "body": {}}) as server:
        model = {"provider": "openai", "model": "m", "base_url": server.base_url, "api_key": ""}
        with agent_up(**model, attempts=1) as colony:
            yield colony


def waiting(colony: Colony) -> str:
    """A session whose run waits for an answer."""
    return session_in(piped(colony, "Go.\n").stderr)


def test_runs_are_listed_by_agent_and_state(asking: Colony) -> None:
    session = waiting(asking)

    listed = asking.json("runs", "list", "--agent", "assistant", "--state", "awaiting")
    assert session in [found["id"] for found in listed]
    assert asking.json("runs", "list", "--agent", "nobody") == []
    assert session in asking("runs", "list").stdout


def test_a_run_is_shown_by_its_id_or_that_of_its_session(asking: Colony) -> None:
    session = waiting(asking)
    shown = asking.json("runs", "show", session)

    assert asking.json("runs", "show", shown["run_id"])["id"] == session
    (ask,) = shown["asks"]
    text = asking("runs", "show", session).stdout
    assert ask["ask_id"] in text
    assert "I would change it." in text
    assert "session_not_found" in asking("runs", "show", "nothing", status=2).stderr


def test_an_ask_is_answered_once(asking: Colony) -> None:
    session = waiting(asking)
    (ask,) = asking.json("asks", "list", "--session", session)

    assert "change" in asking("asks", "list").stdout
    asking("asks", "answer", ask["ask_id"], "maybe", status=2)
    asking("asks", "answer", ask["ask_id"], "allow_once", "--args", "[]", status=2)
    answered = asking.json("asks", "answer", ask["ask_id"], "deny", "--reason", "no")
    again = asking("asks", "answer", ask["ask_id"], "allow_once", status=2)

    assert (answered["verdict"], answered["reason"]) == ("deny", "no")
    assert "ask_not_pending" in again.stderr


def test_a_run_is_watched_to_its_end(asking: Colony) -> None:
    session = waiting(asking)
    assert asking("runs", "cancel", session).stdout == "cancelled\n"
    assert asking("runs", "cancel", session).stdout == "it had ended before\n"

    watched = asking("runs", "watch", session).stdout
    told = asking("runs", "watch", session, "--format", "json").stdout.splitlines()

    assert "permission.ask" in watched
    assert "cancelled, cancelled" in watched.splitlines()[-1]
    assert '"type": "result"' in told[-1]


def test_a_step_that_failed_is_made_again(failing: Colony) -> None:
    session = session_in(piped(failing, "Go.\n").stderr)
    assert failing.json("runs", "show", session)["disposition"] == "retryable"

    once = failing("runs", "retry", session, status=1)
    more = failing("runs", "retry", session, "--auto", "3", status=1)

    assert once.stdout.count("failed, error") == 1
    assert more.stdout.count("failed, error") == 3


def test_a_run_that_did_not_fail_is_not_made_again(asking: Colony) -> None:
    session = waiting(asking)

    refused = asking("runs", "retry", session, status=2)

    assert "session_awaiting" in refused.stderr or "ineligible" in refused.stderr


def test_an_engine_finds_the_server_that_the_command_line_finds(
    asking: Colony, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in asking.env.items():
        monkeypatch.setenv(name, value)

    with SyncEngine.connect() as engine:
        assert engine.agents() == ["assistant"]


def test_an_engine_says_that_no_server_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLONY_DATA", str(tmp_path))

    with pytest.raises(ServerMissing, match="colony up"):
        SyncEngine.connect()
