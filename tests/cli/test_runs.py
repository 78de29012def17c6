"""Runs of agents, seen and steered from the command line."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from colony.errors import ServerMissing
from colony.sync import SyncEngine
from colony.testing.model_server import ModelServer
from tests.cli.agents import ASKING, agent_up, piped, session_in, waiting
from tests.cli.conftest import Colony, Process


@pytest.fixture(scope="module")
def asking() -> Iterator[Colony]:
    """An agent that asks before its change."""
    with agent_up(script=ASKING, permissions={"ask": ["change"]}) as colony:
        yield colony


@pytest.fixture(scope="module")
def failing() -> Iterator[Colony]:
    """An agent whose model is away."""
    with failing_with({"status": 503, "body": {}}) as colony:
        yield colony


@pytest.fixture(scope="module")
def breaking_off() -> Iterator[Colony]:
    """An agent whose model breaks off in the middle of a sentence."""
    with failing_with({"text": "It is a very long story.", "cut_after": 3}) as colony:
        yield colony


@contextmanager
def failing_with(answer: Any) -> Iterator[Colony]:
    with ModelServer(lambda request: answer) as server:
        model = {"provider": "openai", "model": "m", "base_url": server.base_url, "api_key": ""}
        with agent_up(**model, attempts=1, stream=True) as colony:
            yield colony


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
    assert (shown["run"]["id"], shown["run"]["turns"]) == (shown["run_id"], 1)
    (ask,) = shown["asks"]
    text = asking("runs", "show", session).stdout
    assert ask["ask_id"] in text
    assert "I would change it." in text
    assert "session_not_found" in asking("runs", "show", "nothing", status=2).stderr


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


def test_a_step_of_which_some_was_shown_is_left_to_a_person(breaking_off: Colony) -> None:
    session = session_in(piped(breaking_off, "Go.\n").stderr)
    shown = breaking_off.json("runs", "show", session)
    assert (shown["disposition"], shown["progress"]) == ("retryable", "visible")

    assert "--yes" in breaking_off("runs", "retry", session, "--auto", "3", status=2).stderr
    breaking_off("runs", "retry", session, input="n\n", status=1)
    breaking_off("runs", "retry", session, input="", status=1)
    assert breaking_off.json("runs", "show", session)["runs"] == 1
    breaking_off("runs", "retry", session, input="y\n", status=1)
    breaking_off("runs", "retry", session, "--yes", "--auto", "3", status=1)

    # The second of the three would have been automation's.
    assert breaking_off.json("runs", "show", session)["runs"] == 3


def test_a_run_that_is_over_stands_for_no_other(asking: Colony) -> None:
    session = waiting(asking)
    old = asking.json("runs", "show", session)["run_id"]
    asking("runs", "cancel", old)
    piped(asking, "Again.\n", "--session", session)

    assert asking("runs", "cancel", old).stdout == "it had ended before\n"
    assert "stale_run_control" in asking("runs", "retry", old, status=2).stderr
    shown = asking.json("runs", "show", old)
    assert (shown["state"], shown["run"]["id"]) == ("awaiting", old)
    told = asking("runs", "watch", old, "--format", "json").stdout.splitlines()
    assert {line.get("run_id", old) for line in map(json.loads, told)} == {old}
    assert json.loads(told[-1])["type"] == "result"


def test_watching_goes_on_behind_a_cursor(asking: Colony) -> None:
    session = waiting(asking)
    asking("runs", "cancel", session)
    whole = asking("runs", "watch", session, "--format", "json").stdout.splitlines()
    cursor = json.loads(whole[2])["cursor"]

    rest = asking("runs", "watch", session, "--cursor", cursor, "--format", "json").stdout
    assert rest.splitlines() == whole[3:]
    assert "cursor" in asking("runs", "watch", session, "--cursor", "nonsense", status=2).stderr


def test_watching_goes_on_with_the_next_run(asking: Colony, run: type[Process]) -> None:
    session = waiting(asking)
    asking("runs", "cancel", session)

    with run("runs", "watch", session, "--follow", "--format", "json", env=asking.env) as watch:
        ended = 0
        while ended < 2:
            event = json.loads(watch.line())
            ended += event.get("type") == "result"
            if event["phase"] == "mark":
                piped(asking, "Again.\n", "--session", session)
                asking("runs", "cancel", session)
        assert watch.end(signal.SIGINT)[0] == 130


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
