import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.errors import ConfigError
from colony.results import MAX_RESULT_BYTES
from colony.testing.host import RecordingHost
from workers.bash import Bash
from workers.bash.cell import COMMAND_LIMIT


def calling(*commands: str) -> Envelope:
    calls = [Entry.call(f"c-{number}", {"command": text}) for number, text in enumerate(commands)]
    return Envelope(id="m-1", trace_id="t-1", target="/cell", ttl=7, body=Body.of(*calls))


@asynccontextmanager
async def started(folder: Path | None = None, **params: Any) -> AsyncIterator[Any]:
    host = RecordingHost.of("bash", params, directory=folder)
    cell = Bash(Bash.Params.model_validate(params))
    await cell.start(host)

    async def call(*commands: str) -> Emission:
        (emission,) = await cell.handle(calling(*commands), host)
        return emission

    try:
        yield call
    finally:
        await cell.stop()


async def run(command: str, folder: Path | None = None, **params: Any) -> Emission:
    async with started(folder, **params) as call:
        emission: Emission = await call(command)
        return emission


def text_of(emission: Emission) -> str:
    return emission.body.entries[0].text or ""


async def test_output_and_errors_are_one_text_under_the_id_of_the_call() -> None:
    emission = await run("echo out; echo wrong >&2")

    (entry,) = emission.body.entries
    assert (entry.id, entry.is_error) == ("c-0", None)
    assert entry.text == "out\n##colony-stderr-start##\nwrong\n##colony-stderr-end##"
    assert isinstance(emission.hop["duration_ms"], int)
    assert {**emission.hop, "duration_ms": 0} == {
        "operation": "bash",
        "exit_code": 0,
        "had_stderr": True,
        "bytes": 10,
        "confinement": emission.hop["confinement"],
        "duration_ms": 0,
    }


async def test_a_command_that_fails_is_a_result() -> None:
    emission = await run("echo so far; exit 3")

    assert emission.hop["exit_code"] == 3
    assert "error_code" not in emission.hop
    assert text_of(emission) == "so far"


async def test_a_command_that_a_signal_ends_has_exit_code_minus_one_and_says_which() -> None:
    emission = await run("echo so far; kill -KILL $$")

    assert emission.hop["exit_code"] == -1
    assert text_of(emission) == "so far\n[ended by SIGKILL]"


async def test_a_command_that_takes_too_long_is_an_error_with_what_it_wrote() -> None:
    emission = await run("echo so far; sleep 60", external_timeout_ms=1_500)

    assert (emission.hop["error_code"], emission.hop["exit_code"]) == ("timeout", -1)
    assert text_of(emission) == "timeout: bash took longer than 1500 ms\nso far"
    assert emission.body.entries[0].is_error


async def test_a_command_whose_time_is_up_before_it_begins_takes_too_long() -> None:
    emission = await run("echo never", external_timeout_ms=1)

    assert (emission.hop["error_code"], emission.hop["exit_code"]) == ("timeout", -1)
    assert "never" not in text_of(emission)


@pytest.mark.parametrize("command", ["", "x" * COMMAND_LIMIT, "echo \0"])
async def test_a_command_that_cannot_be_run_is_invalid_input(command: str) -> None:
    assert (await run(command)).hop["error_code"] == "invalid_input"


async def test_the_longest_command_is_run() -> None:
    command = "echo fine #"

    assert text_of(await run(command + "x" * (COMMAND_LIMIT - 1 - len(command)))) == "fine"


async def test_two_calls_at_once_are_invalid_input_for_both() -> None:
    async with started() as call:
        emission = await call("echo a", "echo b")

    assert emission.hop["error_code"] == "invalid_input"
    assert [entry.id for entry in emission.body.entries] == ["c-0", "c-1"]


async def test_the_head_of_a_long_output_is_kept_beside_the_head_of_the_errors() -> None:
    emission = await run("yes | head -c 5000; yes oh | head -c 3000 >&2", max_bytes=400)

    output, errors = text_of(emission).split("\n##colony-stderr-start##\n")
    assert output == "y\n" * 132 + "y… [truncated, 5000 bytes total]"
    assert errors.startswith("oh\n" * 29 + "o… [truncated, 3000 bytes total]")
    assert (emission.hop["bytes"], emission.hop["truncated"]) == (8000, True)


async def test_the_end_of_a_long_output_is_shown_where_all_of_it_is_kept() -> None:
    command = "yes | head -c 50000; echo END"

    kept = await run(command, max_bytes=20_000)
    lost = await run(command, max_bytes=20_000, keep_bytes=40_000)

    head, end = text_of(kept).split("… [truncated, 50004 bytes total]\n")
    assert head == "y\n" * 7_952
    assert end.startswith("y\n" * 2_046 + "END\n[kept: 50004 bytes at ")
    assert "END" not in text_of(lost)


async def test_errors_alone_have_all_the_room() -> None:
    fits = await run("printf %300s >&2; echo", max_bytes=400)
    exceeds = await run("printf %400s >&2; echo", max_bytes=400)

    assert "truncated" not in fits.hop
    assert " " * 300 + "… [truncated, 400 bytes total]" in text_of(exceeds)


async def test_no_result_is_longer_than_any_may_be() -> None:
    emission = await run("yes | head -c 9000000; yes | head -c 9000000 >&2")

    assert len(text_of(emission).encode()) <= MAX_RESULT_BYTES


async def test_a_character_is_never_cut_in_two() -> None:
    emission = await run("printf ääää", max_bytes=3)

    assert text_of(emission).splitlines()[0] == "ä… [truncated, 8 bytes total]"


async def test_of_what_was_cut_off_as_much_is_kept_as_the_params_say() -> None:
    host = RecordingHost.of("bash")
    cell = Bash(Bash.Params(max_bytes=10, keep_bytes=1_000))
    await cell.start(host)

    (emission,) = await cell.handle(calling("yes | head -c 5000; echo oh >&2"), host)

    (whole,) = host.shelved.values()
    assert whole.decode().splitlines() == [
        *["y"] * 500,
        "… [truncated, 5000 bytes total]",
        "##colony-stderr-start##",
        "oh",
        "##colony-stderr-end##",
    ]
    assert f"[kept: {len(whole)} bytes at " in text_of(emission)


async def test_what_was_cut_off_is_kept_whole_where_it_is_not_too_much() -> None:
    host = RecordingHost.of("bash", {"max_bytes": 10})
    cell = Bash(Bash.Params(max_bytes=10))
    await cell.start(host)

    await cell.handle(calling("seq 100; echo oh >&2"), host)

    (whole,) = host.shelved.values()
    assert whole.decode().splitlines() == [
        *map(str, range(1, 101)),
        "##colony-stderr-start##",
        "oh",
        "##colony-stderr-end##",
    ]


@pytest.mark.parametrize("command", ["seq 100", "seq 100; echo; echo", "printf %0300d 1"])
async def test_what_is_kept_of_a_cut_output_is_as_long_as_the_cut_says(command: str) -> None:
    host = RecordingHost.of("bash", {"max_bytes": 10})
    cell = Bash(Bash.Params(max_bytes=10))
    await cell.start(host)

    (emission,) = await cell.handle(calling(command), host)

    sizes = re.findall(r"(\d+) bytes", text_of(emission))
    (whole,) = host.shelved.values()
    assert sizes == [str(len(whole))] * 2
    assert emission.hop["bytes"] == len(whole)


async def test_bytes_that_are_no_text_are_told_as_such() -> None:
    assert text_of(await run(r"printf 'a\377b'")) == "a\N{REPLACEMENT CHARACTER}b"


async def test_without_a_directory_each_command_has_an_empty_folder_that_is_gone_afterwards() -> (
    None
):
    async with started() as call:
        emission = await call("echo x > file; mkdir -m 000 shut; pwd; echo $HOME $TMPDIR")
        again = await call("ls")

    folder, homes = text_of(emission).splitlines()
    assert homes == f"{folder} {folder}"
    assert not os.path.exists(folder)  # noqa: ASYNC240  a look, no wait
    assert text_of(again) == ""


async def test_a_directory_is_below_the_folder_of_the_cell_and_kept(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()

    emission = await run("pwd; echo kept > file", tmp_path, directory="work")

    assert text_of(emission) == str(tmp_path / "work")
    assert (tmp_path / "work" / "file").read_text() == "kept\n"


async def test_a_directory_that_is_missing_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gone"):
        await run("pwd", tmp_path, directory="gone")


async def test_env_is_seen_and_wins() -> None:
    emission = await run("echo $A $HOME", env={"A": "given", "HOME": "/elsewhere"})

    assert text_of(emission) == "given /elsewhere"


@pytest.mark.parametrize(
    "params", [{"env": {"A=B": "x"}}, {"env": {"": "x"}}, {"max_processes": 0}]
)
def test_params_that_cannot_be_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Bash.Params.model_validate(params)


async def test_a_command_has_no_input_and_no_descriptor_of_ours() -> None:
    emission = await run("cat; ls /proc/self/fd")

    # The fourth is the listing itself.
    assert text_of(emission).split() == ["0", "1", "2", "3"]


async def test_memory_is_bounded() -> None:
    emission = await run("head -c 200000000 /dev/zero | tail", max_memory_bytes=100_000_000)

    assert emission.hop["had_stderr"] is True
    assert "memory" in text_of(emission)


def test_it_declares_itself_as_a_tool_that_changes_things() -> None:
    declared = Bash.declare({})

    assert declared is not None
    assert (declared.name, declared.read_only) == ("bash", False)


async def test_a_worker_without_descriptors_to_spare_answers_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full() -> tuple[int, int]:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr("colony.confinement.output.os.pipe", full)

    assert (await run("echo")).hop["error_code"] == "io_error"
