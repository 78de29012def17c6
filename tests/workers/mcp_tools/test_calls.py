"""Calls of real servers: what they offer, what they answer, what becomes of the rest."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from colony.testing.claims import eventually
from tests.workers.mcp_tools.servers import GIT, TIME, HttpServer, running, text

node = pytest.mark.needs("npm", "node")


async def test_the_tools_of_a_server_are_announced_under_its_name() -> None:
    async with running(command=TIME, name="clock") as cell:
        tool = cell.tools["clock__get_current_time"]

        assert [*cell.tools] == ["clock__get_current_time", "clock__convert_time"]
        assert "timezone" in tool.parameters["properties"]
        assert "time" in tool.description


async def test_the_name_is_that_of_the_cell_where_none_is_written() -> None:
    async with running(command=TIME) as cell:
        assert all(name.startswith("cell__") for name in cell.tools)


async def test_a_call_is_answered_with_the_text_of_the_server() -> None:
    async with running(command=TIME, name="time") as cell:
        emission = await cell.call("time__get_current_time", {"timezone": "Europe/Berlin"})

    assert json.loads(text(emission))["timezone"] == "Europe/Berlin"
    assert emission.hop["operation"] == "time__get_current_time"
    assert emission.hop["mcp_tool"] == "get_current_time"
    assert emission.hop["bytes"] == len(text(emission))
    assert not emission.hop.keys() & {"error_code", "finish_reason", "truncated"}


async def test_what_a_server_calls_an_error_is_an_error_result() -> None:
    async with running(command=TIME, name="time") as cell:
        emission = await cell.call("time__get_current_time", {"timezone": "No/Where"})

    assert emission.body.entries[0].is_error
    assert text(emission).startswith("tool_failed: ")
    assert "No/Where" in text(emission)
    assert emission.hop["error_code"] == "tool_failed"
    assert emission.hop["finish_reason"] == "error"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "the first one"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


@pytest.mark.needs("git")
async def test_a_server_of_a_repository_is_asked_for_its_log(repository: Path) -> None:
    async with running(command=(*GIT, "--repository", str(repository)), name="git") as cell:
        found = await cell.call("git__git_log", {"repo_path": str(repository)})
        outside = await cell.call("git__git_log", {"repo_path": "/"})

    assert "the first one" in text(found)
    assert outside.hop["error_code"] == "tool_failed"


async def test_a_tool_that_the_server_does_not_have_is_unknown() -> None:
    async with running(command=TIME, name="time") as cell:
        emission = await cell.call("time__get_weather")

    assert text(emission) == "unknown_tool: there is no tool 'time__get_weather'"


async def test_what_is_not_allowed_or_denied_is_not_offered_and_not_called() -> None:
    async with running(command=TIME, name="t", allow=["get_*", "convert_*"], deny=["con*"]) as cell:
        emission = await cell.call("t__convert_time", {})

        assert [*cell.tools] == ["t__get_current_time"]
        assert emission.hop["error_code"] == "unknown_tool"


async def test_a_large_answer_is_cut_and_says_so(growing: Path) -> None:
    async with running(command=(sys.executable, str(growing)), name="g", max_bytes=1000) as cell:
        emission = await cell.call("g__large", {"size": 2_000_000})

    assert text(emission).startswith("x" * 1000 + "… [truncated, 2000000 bytes total]")
    assert len(text(emission)) < 1200
    assert emission.hop["bytes"] == 2_000_000
    assert emission.hop["truncated"] is True


async def test_of_a_large_answer_as_much_is_kept_as_the_params_say(growing: Path) -> None:
    async with running(
        command=(sys.executable, str(growing)), name="g", max_bytes=1000, keep_bytes=1_500_000
    ) as cell:
        emission = await cell.call("g__large", {"size": 2_000_000})

    assert "\n[kept: 1500000 bytes at blob:" in text(emission)


async def test_a_message_above_the_cap_ends_the_connection_and_the_next_call_works(
    growing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.mcp_tools.child.MAX_MESSAGE_BYTES", 100_000)
    async with running(command=(sys.executable, str(growing)), name="g") as cell:
        lost = await cell.call("g__large", {"size": 1_000_000})
        found = await cell.call("g__large", {"size": 3})

    assert lost.hop["error_code"] == "connection_lost"
    assert "more than 100000 bytes" in text(lost)
    assert text(found) == "xxx"


async def test_a_name_with_odd_letters_is_called_by_the_name_it_is_declared_under(
    growing: Path,
) -> None:
    async with running(command=(sys.executable, str(growing)), name="g") as cell:
        [name] = [name for name in cell.tools if name.startswith("g__a_tool")]

        assert text(await cell.call(name)) == "odd"


async def test_a_server_that_gains_a_tool_is_listed_again(growing: Path) -> None:
    async with running(command=(sys.executable, str(growing)), name="g") as cell:
        assert "g__second" not in cell.tools

        await cell.call("g__grow")
        await eventually(lambda: "g__second" in cell.tools)

        assert text(await cell.call("g__second")) == "second"


async def test_only_what_is_named_of_the_environment_reaches_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "s")
    seen = tmp_path / "seen"
    command = ("/bin/sh", "-c", f"env > {seen}; exec {TIME[0]}")

    async with running(command=command, env={"GIVEN": "g"}, name="time"):
        names = {line.partition("=")[0] for line in seen.read_text().splitlines()}

    assert "GIVEN" in names
    assert "PATH" in names
    assert "SECRET_OF_THE_WORKER" not in names


@node
async def test_structured_content_stands_in_for_a_missing_text(everything: Path) -> None:
    async with running(command=(str(everything), "stdio"), name="e") as cell:
        emission = await cell.call("e__get-structured-content", {"location": "Chicago"})

    assert json.loads(text(emission)).keys() >= {"temperature", "conditions"}


@node
async def test_what_is_no_text_is_named_and_not_passed_on(everything: Path) -> None:
    async with running(command=(str(everything), "stdio"), name="e") as cell:
        image = text(await cell.call("e__get-tiny-image"))
        blob = {"resourceType": "Blob", "resourceId": 1}
        resource = text(await cell.call("e__get-resource-reference", blob))
        links = text(await cell.call("e__get-resource-links", {"count": 1}))

    assert "[image image/png, 4033 bytes, not shown]" in image
    assert "[resource demo://resource/dynamic/blob/1 text/plain, " in resource
    assert "[link demo://resource/dynamic/" in links
    assert max(map(len, (image, resource, links))) < 500


@node
@pytest.mark.parametrize("hints", ["ignore", "trust"])
async def test_a_hint_that_a_tool_only_reads_counts_where_it_is_trusted(
    everything: Path, hints: str
) -> None:
    async with running(command=(str(everything), "stdio"), name="e", read_only_hints=hints) as cell:
        said = {tool.read_only for tool in cell.tools.values()}

    assert said == ({False} if hints == "ignore" else {False, True})


@node
async def test_progress_is_told_while_a_call_runs(everything: Path) -> None:
    async with running(command=(str(everything), "stdio"), name="e") as cell:
        await cell.call("e__trigger-long-running-operation", {"duration": 0.2, "steps": 2})

    assert cell.told[0] == {
        "kind": "tool.progress",
        "tool_name": "e__trigger-long-running-operation",
        "tool_call_id": "call-1",
        "progress": 1.0,
        "total": 2.0,
        "message": "",
    }


@node
async def test_a_call_that_takes_too_long_is_cancelled_at_the_server(
    everything: Path, tmp_path: Path
) -> None:
    wire = tmp_path / "wire"
    command = ("/bin/sh", "-c", f"tee {wire} | {everything} stdio")
    async with running(command=command, name="e", external_timeout_ms=1000) as cell:
        long = {"duration": 1000, "steps": 10}
        emission = await cell.call("e__trigger-long-running-operation", long)
        await eventually(lambda: "notifications/cancelled" in wire.read_text())

    assert emission.hop["error_code"] == "timeout"
    assert emission.hop["mcp_tool"] == "trigger-long-running-operation"
    assert "told to cancel it; it may have been carried out or not" in text(emission)


@node
async def test_a_handle_that_is_given_up_cancels_its_call_at_the_server(
    everything: Path, tmp_path: Path
) -> None:
    wire = tmp_path / "wire"
    command = ("/bin/sh", "-c", f"tee {wire} | {everything} stdio")
    async with running(command=command, name="e") as cell:
        long = {"duration": 1000, "steps": 10}
        handle = asyncio.create_task(cell.call("e__trigger-long-running-operation", long))
        await eventually(lambda: "tools/call" in wire.read_text())
        handle.cancel()

        await eventually(lambda: "notifications/cancelled" in wire.read_text())
        with pytest.raises(asyncio.CancelledError):
            await handle


@node
async def test_a_hundred_calls_at_once_of_which_some_are_given_up_leave_the_session_alive(
    everything: Path,
) -> None:
    async with running(command=(str(everything), "stdio"), name="e") as cell:
        long = {"duration": 1000, "steps": 10}
        given_up = [
            asyncio.create_task(cell.call("e__trigger-long-running-operation", long))
            for _ in range(50)
        ]
        echoed = [
            asyncio.create_task(cell.call("e__echo", {"message": str(number)}))
            for number in range(50)
        ]
        await asyncio.gather(*echoed)
        for task in given_up:
            task.cancel()
        await asyncio.wait(given_up)

        assert [text(task.result()) for task in echoed] == [f"Echo: {n}" for n in range(50)]
        assert all(task.cancelled() for task in given_up)
        assert text(await cell.call("e__echo", {"message": "alive"})) == "Echo: alive"
    assert cell.events == ["mcp_server_reached"]


@node
async def test_a_server_is_called_over_http(everything_http: HttpServer) -> None:
    everything_http.start()

    async with running(url=everything_http.url, name="e") as cell:
        emission = await cell.call("e__echo", {"message": "hello"})

        assert "e__echo" in cell.tools
    assert text(emission) == "Echo: hello"
