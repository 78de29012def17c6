"""The file cell: what it reads and writes, and that nothing outside of its folder is reached."""

import base64
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.errors import ConfigError, ToolError, Unreadable
from colony.testing.host import RecordingHost
from workers import fence
from workers.fence import Fence
from workers.file import File

SECRET = "what only others may read"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text(SECRET)
    base = tmp_path / "base"
    (base / "notes").mkdir(parents=True)
    (base / "notes" / "a.txt").write_text("first line\nsecond line\n")
    return base


async def ask(base: Path, host: RecordingHost | None = None, /, **arguments: Any) -> Emission:
    params = {"base_path": str(base), **arguments.pop("params", {})}
    cell = File(File.Params.model_validate(params))
    host = host or RecordingHost.of("file")
    await cell.start(host)
    body = Body.of(Entry.call("call-1", arguments))
    envelope = Envelope(id="e", trace_id="t", target="/file", ttl=9, body=body)
    [emission] = await cell.handle(envelope, host)
    [entry] = emission.body.entries
    assert (entry.type, entry.id) == ("tool_result", "call-1")
    return emission


def text(emission: Emission) -> str:
    return emission.body.entries[0].text or ""


async def failure(base: Path, **arguments: Any) -> object:
    emission = await ask(base, **arguments)
    assert emission.hop["finish_reason"] == "error"
    assert emission.body.entries[0].is_error
    assert SECRET not in text(emission)
    return emission.hop["error_code"]


async def test_a_file_is_read_by_a_relative_and_by_an_absolute_path(base: Path) -> None:
    for path in ("notes/a.txt", str(base / "notes" / "a.txt"), "notes/../notes/./a.txt"):
        emission = await ask(base, op="read", path=path)

        assert text(emission) == "first line\nsecond line\n"
        emission.hop.pop("duration_ms")
        assert emission.hop == {"operation": "read", "bytes": 23}


async def test_a_range_ends_between_characters_and_says_where_to_read_on(base: Path) -> None:
    (base / "ä.txt").write_text("äöü€")

    first = await ask(base, op="read", path="ä.txt", limit=3)
    rest = await ask(base, op="read", path="ä.txt", offset=first.hop["next_offset"])

    assert text(first) == "ä… [truncated, 9 bytes total; read on at offset 2]"
    assert (first.hop["truncated"], first.hop["bytes"]) == (True, 9)
    assert text(rest) == "öü€"
    assert "next_offset" not in rest.hop


async def test_ranges_put_together_are_the_file(base: Path) -> None:
    whole = "".join(chr(0x20 + n * 37 % 0x3000) for n in range(500))
    (base / "long.txt").write_text(whole, newline="")
    read, offset = "", 0
    while offset is not None:
        emission = await ask(base, op="read", path="long.txt", offset=offset, limit=101)
        read += text(emission).partition("… [truncated")[0]
        offset = emission.hop.get("next_offset")

    assert read.encode() == (base / "long.txt").read_bytes()


async def test_any_bytes_are_read_and_written_as_base64(base: Path) -> None:
    data = bytes(range(256))
    written = await ask(
        base, op="write", path="b", mode="base64", content=base64.b64encode(data).decode()
    )
    read = await ask(base, op="read", path="b", mode="base64")

    assert (base / "b").read_bytes() == data
    assert written.hop["bytes"] == 256
    assert base64.b64decode(text(read)) == data


async def test_a_write_replaces_the_file_and_keeps_its_mode(base: Path) -> None:
    path = base / "notes" / "a.txt"
    path.chmod(0o640)

    emission = await ask(base, op="write", path="notes/a.txt", content="new")

    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert emission.hop["operation"] == "write"
    assert os.listdir(base / "notes") == ["a.txt"]


async def test_a_folder_is_listed_and_a_path_described(base: Path) -> None:
    (base / "link").symlink_to("notes")
    listed = await ask(base, op="list", path=".")
    described = json.loads(text(await ask(base, op="stat", path="notes/a.txt")))

    assert text(listed) == "link (link)\nnotes/"
    assert listed.hop["count"] == 2
    assert (described["kind"], described["bytes"]) == ("file", 23)
    assert json.loads(text(await ask(base, op="stat", path=".")))["kind"] == "directory"


@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "notes/../../secret.txt", "/etc/passwd", "out", "out/secret.txt", "file-out"],
)
@pytest.mark.parametrize("op", ["read", "write", "stat", "list"])
async def test_nothing_outside_of_the_folder_is_reached(base: Path, op: str, path: str) -> None:
    (base / "out").symlink_to(base.parent)
    (base / "file-out").symlink_to(base.parent / "secret.txt")
    more = {"content": "x"} if op == "write" else {}

    assert await failure(base, op=op, path=path, **more) == "path_outside_boundary"
    assert (base.parent / "secret.txt").read_text() == SECRET


async def test_a_link_inside_of_the_folder_is_followed(base: Path) -> None:
    (base / "link").symlink_to("notes")

    assert text(await ask(base, op="read", path="link/a.txt")).startswith("first")


async def test_a_link_that_is_put_in_the_way_after_the_check_leads_nowhere(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = Fence._parts

    def swap(self: Fence, path: str) -> tuple[str, ...]:
        parts = resolved(self, path)
        (base / "notes").rename(base / "moved")
        (base / "notes").symlink_to(base.parent)
        return parts

    monkeypatch.setattr(Fence, "_parts", swap)

    code = await failure(base, op="read", path="notes/secret.txt")

    assert code in ("path_outside_boundary", "not_a_directory")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"op": "read", "path": "none"}, "not_found"),
        ({"op": "read", "path": "notes"}, "not_a_file"),
        ({"op": "read", "path": "."}, "not_a_file"),
        ({"op": "write", "path": "notes", "content": "x"}, "not_a_file"),
        ({"op": "write", "path": "new/x", "content": "x"}, "not_found"),
        ({"op": "read", "path": "notes/a.txt/b"}, "not_a_directory"),
        ({"op": "list", "path": "notes/a.txt"}, "not_a_directory"),
        ({"op": "read", "path": "a\0b"}, "invalid_input"),
        ({"op": "read", "path": ""}, "invalid_input"),
        ({"op": "read", "path": "x" * 5000}, "io_error"),
        ({"op": "write", "path": "x"}, "invalid_input"),
        ({"op": "write", "path": "x", "content": "?", "mode": "base64"}, "invalid_input"),
        ({"op": "write", "path": "x", "content": "y", "offset": 1}, "invalid_input"),
        ({"op": "read", "path": "notes/a.txt", "content": "x"}, "invalid_input"),
        ({"op": "delete", "path": "x"}, "invalid_input"),
        ({"op": "read", "path": "x", "more": 1}, "invalid_input"),
        ({"op": "read", "path": "notes/a.txt", "find": "third"}, "pattern_not_found"),
        ({"op": "read", "path": "notes/a.txt", "find": ""}, "invalid_input"),
        ({"op": "stat", "path": "notes/a.txt", "find": "x"}, "invalid_input"),
        ({"op": "write", "path": "blob:1", "content": "x"}, "invalid_input"),
        ({"op": "read", "path": "blob:1"}, "not_found"),
    ],
)
async def test_what_cannot_be_done_is_a_result_with_a_code(
    base: Path, arguments: dict[str, Any], code: str
) -> None:
    assert await failure(base, **arguments) == code


async def test_a_pipe_is_no_file_and_nobody_waits_for_it(base: Path) -> None:
    os.mkfifo(base / "pipe")

    assert await failure(base, op="read", path="pipe") == "not_a_file"
    assert await failure(base, op="write", path="pipe", content="x") == "not_a_file"


async def test_a_read_only_cell_writes_nothing_and_says_that_it_is(base: Path) -> None:
    code = await failure(base, op="write", path="x", content="y", params={"read_only": True})

    assert code == "invalid_input"
    assert not (base / "x").exists()
    assert File.declare({"base_path": str(base), "read_only": True}).read_only
    assert not File.declare({"base_path": str(base)}).read_only


@pytest.mark.parametrize("written", ["relative", "/nowhere/at/all"])
async def test_a_folder_that_cannot_be_fenced_keeps_the_cell_from_starting(written: str) -> None:
    cell = File(File.Params(base_path=written))

    with pytest.raises(ConfigError):
        await cell.start(RecordingHost.of("file"))


async def test_a_shelved_text_is_read_by_its_handle(base: Path) -> None:
    host = RecordingHost.of("file")
    handle = await host.shelve("0123456789")

    emission = await ask(base, host, op="read", path=handle, offset=4, limit=3)

    assert text(emission) == "456… [truncated, 10 bytes total; read on at offset 7]"


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
async def test_a_range_of_a_kept_text_begins_with_the_character_it_was_asked_for_in(
    base: Path, limit: int
) -> None:
    host, whole = RecordingHost.of("file"), "aä€😀z" * 3
    handle = await host.shelve(whole)
    size = len(whole.encode())
    starts = [len(whole[:n].encode()) for n in range(len(whole))]
    for offset in range(size):
        emission = await ask(base, host, op="read", path=handle, offset=offset, limit=limit)

        begun = max(n for n in range(len(starts)) if starts[n] <= offset)
        shown = text(emission).partition("… [truncated")[0].rstrip("\N{REPLACEMENT CHARACTER}")
        assert whole[begun:].startswith(shown)
        # Whoever reads on gets ahead.
        assert emission.hop.get("next_offset", size) > offset


async def test_ranges_of_a_kept_text_put_together_are_the_text(base: Path) -> None:
    host, whole = RecordingHost.of("file"), "".join(chr(0x20 + n * 37 % 0x3000) for n in range(500))
    handle, read, offset = await host.shelve(whole), "", 0
    while offset is not None:
        emission = await ask(base, host, op="read", path=handle, offset=offset, limit=101)
        read += text(emission).partition("… [truncated")[0]
        offset = emission.hop.get("next_offset")

    assert read == whole


async def test_a_kept_text_is_read_as_base64_from_any_byte_and_its_size_told(base: Path) -> None:
    host = RecordingHost.of("file")
    handle = await host.shelve("ä€😀")

    read = await ask(base, host, op="read", path=handle, mode="base64", offset=1, limit=3)
    described = await ask(base, host, op="stat", path=handle)

    assert base64.b64decode(text(read)) == "ä€😀".encode()[1:4]
    assert json.loads(text(described)) == {"kind": "blob", "bytes": 9}


@pytest.mark.parametrize("kept", [False, True], ids=["file", "kept"])
@pytest.mark.parametrize("before", [0, 5, (1 << 20) - 3, (1 << 20) + 7, 3 << 20])
async def test_a_text_is_found_wherever_it_is_and_read_from_there_on(
    base: Path, kept: bool, before: int
) -> None:
    host, whole = RecordingHost.of("file"), "x" * before + "the ölwick" + "y" * 100
    (base / "long.txt").write_text(whole)
    path = await host.shelve(whole) if kept else "long.txt"
    asked = {"op": "read", "path": path, "find": "the ölwick"}

    emission = await ask(base, host, **asked, offset=before // 2, limit=14)
    rest = await ask(base, host, **asked)

    size = before + 111
    mark = f"found at offset {before}; read on at offset {before + 14}"
    assert text(emission) == f"the ölwickyyy… [truncated, {size} bytes total; {mark}]"
    assert (emission.hop["found_at"], emission.hop["next_offset"]) == (before, before + 14)
    assert text(rest).endswith(f"y… [{size} bytes total; found at offset {before}]")
    behind = await ask(base, host, **asked, offset=before + 1)
    assert behind.hop["error_code"] == "pattern_not_found"


async def without_folder(host: RecordingHost, **arguments: Any) -> Emission:
    cell = File(File.Params())
    await cell.start(host)
    body = Body.of(Entry.call("call-1", arguments))
    [emission] = await cell.handle(
        Envelope(id="e", trace_id="t", target="/file", ttl=9, body=body), host
    )
    return emission


async def test_a_cell_without_a_folder_reads_what_is_kept_and_nothing_else() -> None:
    host = RecordingHost.of("file")
    handle = await host.shelve("kept")

    assert text(await without_folder(host, op="read", path=handle)) == "kept"
    for op in ("read", "write", "list", "stat"):
        more = {"content": "x"} if op == "write" else {}
        for path in (".", "/etc/passwd", "a.txt"):
            refused = await without_folder(host, op=op, path=path, **more)
            assert refused.hop["error_code"] == "invalid_input"
    assert (await without_folder(host, op="list", path=handle)).hop["error_code"] == "invalid_input"


def test_a_cell_without_a_folder_is_declared_with_what_it_can_do() -> None:
    declared = File.declare({"max_bytes": 16_384})

    assert declared.read_only
    properties = declared.parameters["properties"]
    assert isinstance(properties, dict)
    assert [*properties] == ["op", "path", "mode", "offset", "limit", "find"]
    assert properties["op"] == {
        "type": "string",
        "enum": ["read", "stat"],
        "description": "stat: its size only.",
    }


async def test_a_read_behind_any_end_holds_nothing_and_says_so(base: Path) -> None:
    host = RecordingHost.of("file")
    handle = await host.shelve("kept")
    for path, size in (("notes/a.txt", 23), (handle, 4)):
        for offset in (size, 100, 2**63 - 1, 2**63, 2**200):
            emission = await ask(base, host, op="read", path=path, offset=offset)

            assert text(emission) == f"… [{size} bytes total; offset {offset} is behind the end]"
            assert "error_code" not in emission.hop
            whole = await ask(base, host, op="read", path=path, offset=offset, mode="base64")
            assert text(whole) == ""


async def test_an_empty_file_is_read_without_a_mark(base: Path) -> None:
    (base / "empty").write_text("")

    assert text(await ask(base, op="read", path="empty")) == ""


async def test_what_is_no_text_is_read_on_where_what_is_shown_of_it_ends(base: Path) -> None:
    (base / "b").write_bytes(b"\xff" * 1_000)
    offsets, offset = [], 0
    while offset is not None:
        emission = await ask(base, op="read", path="b", offset=offset, params={"max_bytes": 600})
        shown = text(emission).partition("…")[0]
        offsets.append((offset, len(shown)))
        offset = emission.hop.get("next_offset")

    assert offsets == [(n * 200, 200) for n in range(5)]


@pytest.mark.parametrize("name", ["x" * 255, "文" * 85, "😀" * 63])
async def test_a_name_may_be_as_long_as_the_system_takes(base: Path, name: str) -> None:
    await ask(base, op="write", path=name, content="new")
    emission = await ask(base, op="read", path=name)

    assert text(emission) == "new"


async def test_a_chain_of_more_links_than_anybody_follows_is_an_error(base: Path) -> None:
    (base / "0").write_text("end")
    for n in range(1_200):
        (base / f"{n + 1}").symlink_to(str(n))

    assert text(await ask(base, op="read", path="10")) == "end"
    assert await failure(base, op="read", path="1200") == "io_error"


def test_a_long_path_is_not_resolved(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, asked = Fence(base), list[object]()
    monkeypatch.setattr(os.path, "realpath", asked.append)

    with pytest.raises(Unreadable):
        held.read("a/" * 50_000, offset=0, limit=1)

    assert asked == []


async def test_a_replaced_file_lends_nobody_the_rights_of_its_owner(base: Path) -> None:
    path = base / "notes" / "a.txt"
    path.chmod(0o6755)
    if os.geteuid() == 0:
        os.chown(path, 4_321, 4_321)
        path.chmod(0o6755)

    await ask(base, op="write", path="notes/a.txt", content="#!/bin/sh")

    found = path.stat()
    assert found.st_mode & 0o7777 == 0o755
    assert found.st_uid == (4_321 if os.geteuid() == 0 else os.geteuid())


async def test_a_folder_that_another_program_keeps_locked_is_not_waited_for_for_ever(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "LOCK_S", 0.05)
    folder = os.open(base, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        assert await failure(base, op="write", path="new", content="x") == "io_error"
    finally:
        os.close(folder)

    assert (await ask(base, op="write", path="new", content="x")).hop["bytes"] == 1
    assert sorted(os.listdir(base)) == ["new", "notes"]


def test_links_that_another_process_swaps_all_the_time_never_lead_out(base: Path) -> None:
    outside = base.parent / "secret.txt"
    (base / "in.txt").write_text("in")
    swapping = subprocess.Popen([sys.executable, "-c", SWAP, str(base), str(outside)])
    held, seen = Fence(base), set[object]()
    try:
        while not {b"in", "path_outside_boundary"} <= seen:
            for _ in range(500):
                seen.add(_tried(lambda: held.read("way", offset=0, limit=99).data))
                seen.add(_tried(lambda: held.read("way/secret.txt", offset=0, limit=99).data))
                _tried(lambda: held.write("way", b"in"))
                _tried(lambda: held.change("way", bytes, limit=99))
            assert outside.read_text() == SECRET
    finally:
        swapping.kill()
        swapping.wait()

    assert SECRET.encode() not in seen
    assert sorted(os.listdir(base.parent)) == ["base", "secret.txt"]


# `way` is now a file, now a link to one that may be read, now one that leads out.
SWAP = """
import itertools, os, sys
base, outside = sys.argv[1:]
os.chdir(base)
for target in itertools.cycle(["in.txt", outside, os.path.dirname(outside), None]):
    try:
        if target is None:
            with open("new", "w") as file:
                file.write("in")
        else:
            os.symlink(target, "new")
        os.replace("new", "way")
    except OSError:
        pass
"""


def _tried(do: Callable[[], object]) -> object:
    try:
        return do()
    except ToolError as error:
        return error.code
