"""The edit cell: one change, in all its places or in none."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.testing.host import RecordingHost
from workers.edit import Edit
from workers.edit.wish import EDITABLE_BYTES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntwo\r\ntwo\r\n".encode())
    return path


def content(file: Path) -> bytes:
    return file.read_bytes()


async def ask(base: Path, **arguments: Any) -> Emission:
    cell = Edit(Edit.Params(base_path=str(base)))
    host = RecordingHost.of("edit")
    await cell.start(host)
    body = Body.of(Entry.call("call-1", arguments))
    envelope = Envelope(id="e", trace_id="t", target="/edit", ttl=9, body=body)
    [emission] = await cell.handle(envelope, host)
    assert emission.body.entries[0].id == "call-1"
    return emission


async def test_every_occurrence_is_replaced_and_every_other_byte_stays(file: Path) -> None:
    emission = await ask(
        file.parent, op="find_replace", path="a.txt", find="two", replace="2", expected_matches=2
    )

    assert content(file) == "\ufeffone\r\n2\r\n2\r\n".encode()
    emission.hop.pop("duration_ms")
    assert emission.hop == {"operation": "find_replace", "matches": 2, "bytes": 14}


@pytest.mark.parametrize(
    ("line", "content", "after"),
    [
        (1, "zero", b"zero\none\ntwo"),
        (2, "x\ny\n", b"one\nx\ny\ntwo"),
        (3, "end", b"one\ntwo\nend\n"),
        (2, "", b"one\ntwo"),
    ],
)
async def test_lines_are_inserted_before_a_line_or_at_the_end(
    tmp_path: Path, line: int, content: str, after: bytes
) -> None:
    (tmp_path / "b").write_bytes(b"one\ntwo")

    await ask(tmp_path, op="insert_at_line", path="b", line=line, content=content)

    assert (tmp_path / "b").read_bytes() == after


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"op": "find_replace", "find": "none", "replace": "x"}, "pattern_not_found"),
        (
            {"op": "find_replace", "find": "two", "replace": "x", "expected_matches": 1},
            "unexpected_match_count",
        ),
        ({"op": "find_replace", "find": "", "replace": "x"}, "invalid_input"),
        ({"op": "find_replace", "find": "two"}, "invalid_input"),
        ({"op": "find_replace", "find": "two", "replace": "x", "line": 1}, "invalid_input"),
        ({"op": "insert_at_line", "line": 9, "content": "x"}, "invalid_input"),
        ({"op": "insert_at_line", "line": 0, "content": "x"}, "invalid_input"),
        (
            {"op": "insert_at_line", "line": 1, "content": "x", "expected_matches": 1},
            "invalid_input",
        ),
        ({"op": "find_replace", "find": "a", "replace": "b", "path": "none"}, "not_found"),
        (
            {"op": "find_replace", "find": "a", "replace": "b", "path": "../a.txt"},
            "path_outside_boundary",
        ),
        ({"op": "find_replace", "find": "a", "replace": "b", "path": "."}, "not_a_file"),
    ],
)
async def test_what_cannot_be_done_changes_nothing_and_has_a_code(
    file: Path, arguments: dict[str, Any], code: str
) -> None:
    before = content(file)

    emission = await ask(file.parent, **{"path": "a.txt", **arguments})

    assert emission.hop["error_code"] == code
    assert emission.body.entries[0].is_error
    assert content(file) == before


async def test_a_change_that_would_make_a_file_too_large_is_not_even_made(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a" * 1_000_000)
    most = EDITABLE_BYTES // 1_000_000

    grown = await ask(tmp_path, op="find_replace", path="a.txt", find="a", replace="b" * most)
    beyond = await ask(tmp_path, op="find_replace", path="a.txt", find="b", replace="cc")

    assert grown.hop["bytes"] == most * 1_000_000
    assert beyond.hop["error_code"] == "invalid_input"
    assert path.stat().st_size == most * 1_000_000


async def test_changes_at_once_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("")

    await asyncio.gather(
        *(
            ask(tmp_path, op="insert_at_line", path="list", line=1, content=f"line {n}")
            for n in range(40)
        )
    )

    lines = (tmp_path / "list").read_text().splitlines()
    assert sorted(lines) == sorted(f"line {n}" for n in range(40))
