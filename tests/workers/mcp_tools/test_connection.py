"""The connection: servers that are not there, die, come back, and are ended."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from colony.testing.claims import eventually
from tests.workers.mcp_tools.servers import (
    TIME,
    HttpServer,
    children,
    group,
    running,
    text,
)

node = pytest.mark.needs("npm", "node")
NOW = ("time__get_current_time", {"timezone": "UTC"})


async def test_a_server_that_is_killed_is_there_for_the_next_call() -> None:
    async with running(command=TIME, name="time") as cell:
        await cell.call(*NOW)
        os.kill(cell.process(), signal.SIGKILL)
        await eventually(lambda: "mcp_connection_lost" in cell.events)

        emission = await cell.call(*NOW)

    assert "error_code" not in emission.hop
    assert cell.host.logged[1]["detail"] == "signal 9 ended the server"


async def test_a_call_under_way_when_the_server_is_killed_may_have_been_carried_out(
    growing: Path, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    async with running(command=(sys.executable, str(growing)), name="g") as cell:
        call = asyncio.create_task(cell.call("g__slow", {"path": str(begun)}))
        await eventually(begun.exists)
        os.kill(cell.process(), signal.SIGKILL)

        lost = await call
        found = await cell.call("g__large", {"size": 2})

    assert lost.hop["error_code"] == "connection_lost"
    assert "may have been carried out or not: signal 9 ended the server" in text(lost)
    assert text(found) == "xx"


async def test_a_program_that_is_not_there_does_not_keep_its_cell_from_running() -> None:
    async with running(command=("/no/such/program",), name="x") as cell:
        emission = await cell.call("x__anything")

        assert cell.tools == {}
    assert emission.hop["error_code"] == "not_connected"
    assert "the call was not made" in text(emission)
    assert "/no/such/program" in text(emission)


async def test_a_program_that_ends_at_once_is_told_of_with_its_last_words() -> None:
    command = ("/bin/sh", "-c", "echo the reason >&2; exit 3")
    async with running(command=command, name="x") as cell:
        emission = await cell.call("x__anything")

    assert "the server ended with 3; it said: the reason" in text(emission)


async def test_a_server_that_stays_down_is_logged_once_until_the_reason_changes(
    tmp_path: Path,
) -> None:
    status = tmp_path / "status"
    status.write_text("3")
    # Its last words differ each time.
    command = ("/bin/sh", "-c", f"echo $$ >&2; exit $(cat {status})")
    async with running(command=command, name="x") as cell:
        for _ in range(3):
            await cell.call("x__anything")
        assert cell.events == ["mcp_server_down"]

        status.write_text("4")
        await eventually(lambda: len(cell.events) > 1)
        await cell.call("x__anything")

        assert cell.events == ["mcp_server_down"] * 2
        assert "ended with 4" in str(cell.host.logged[-1]["detail"])


async def test_a_program_that_says_nothing_does_not_hold_its_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.mcp_tools.cell.START_S", 0.05)
    async with running(command=("/bin/sleep", "1000"), name="x", external_timeout_ms=50) as cell:
        emission = await cell.call("x__anything")

        assert cell.events == ["mcp_server_slow"]
    assert emission.hop["error_code"] == "not_connected"
    assert "no connection within 50 ms" in text(emission)


async def test_nothing_of_a_server_is_left_once_its_cell_has_stopped() -> None:
    command = ("/bin/sh", "-c", f"sleep 1000 & sleep 1001 & exec {TIME[0]}")
    async with running(command=command, name="time") as cell:
        leader = cell.process()
        assert len(group(leader)) == 3

    assert group(leader) == set()
    assert leader not in children()


async def test_nothing_of_a_server_that_was_killed_is_left(tmp_path: Path) -> None:
    command = ("/bin/sh", "-c", f"sleep 1000 & exec {TIME[0]}")
    async with running(command=command, name="time") as cell:
        first = cell.process()
        os.kill(first, signal.SIGKILL)

        await eventually(lambda: not group(first))


async def test_a_server_that_will_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.mcp_tools.child.ENDS_S", 0.05)
    monkeypatch.setattr("workers.mcp_tools.child.TERMINATES_S", 0.05)
    command = ("/bin/sh", "-c", f"trap '' TERM; {TIME[0]}; sleep 1000")
    async with running(command=command, name="time") as cell:
        leader = cell.process()

    assert group(leader) == set()


@node
async def test_a_call_that_found_a_server_anew_is_made_on_a_new_session(
    everything_http: HttpServer,
) -> None:
    everything_http.start()
    async with running(url=everything_http.url, name="e") as cell:
        everything_http.kill()
        everything_http.start()

        emission = await cell.call("e__echo", {"message": "again"})

    assert text(emission) == "Echo: again"
    assert cell.events == ["mcp_server_reached", "mcp_connection_lost", "mcp_server_reached"]


@node
async def test_a_server_that_is_away_is_reached_once_it_is_there(
    everything_http: HttpServer,
) -> None:
    async with running(url=everything_http.url, name="e") as cell:
        away = await cell.call("e__echo", {"message": "x"})
        everything_http.start()
        there = await cell.call("e__echo", {"message": "x"})
        everything_http.kill()
        gone = await cell.call("e__echo", {"message": "x"})

    assert away.hop["error_code"] == "not_connected"
    assert text(there) == "Echo: x"
    assert gone.hop["error_code"] == "not_connected"


@node
async def test_a_call_under_way_over_http_may_have_been_carried_out(
    everything_http: HttpServer,
) -> None:
    everything_http.start()
    async with running(url=everything_http.url, name="e") as cell:
        long = {"duration": 1000, "steps": 100_000}
        call = asyncio.create_task(cell.call("e__trigger-long-running-operation", long))
        await eventually(lambda: cell.told)
        everything_http.kill()

        lost = await call

    assert lost.hop["error_code"] == "connection_lost"
