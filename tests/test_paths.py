"""Paths: what a written address means, and what can be part of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colony.errors import PathError
from colony.paths import check_segment, parent, resolve, within

SEGMENTS = st.text(st.characters(codec="utf-8", exclude_characters="/:{}"), min_size=1, max_size=8)
WRITTEN = st.text(st.sampled_from("/.ab"), max_size=12)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/a/b", "/a/b"),
        ("/", "/"),
        (".", "/agent/llm"),
        ("./", "/agent/llm"),
        ("", "/agent/llm"),
        ("./x", "/agent/llm/x"),
        ("x", "/agent/llm/x"),
        ("x/y", "/agent/llm/x/y"),
        ("../x", "/agent/x"),
        ("..", "/agent"),
        ("../../..", "/"),
        ("../../../../x", "/x"),
        ("/../x", "/x"),
        ("/a//b///c", "/a/b/c"),
        ("/a/b/", "/a/b"),
        ("/a/./b", "/a/b"),
        ("/a/../b", "/b"),
        (".../x", "/agent/llm/.../x"),
    ],
)
def test_a_written_path_means(written: str, meant: str) -> None:
    assert resolve(written, "/agent/llm") == meant


def test_at_the_root_a_bare_name_is_below_it() -> None:
    assert resolve("x", "/") == "/x"
    assert resolve(".", "/") == "/"


@given(WRITTEN, WRITTEN)
def test_a_resolved_path_is_normal(written: str, base: str) -> None:
    path = resolve(written, base)

    assert path.startswith("/")
    assert "//" not in path
    assert path == "/" or not path.endswith("/")
    assert not {".", ".."} & set(path.split("/"))
    assert resolve(path, base) == path
    assert resolve(".", path) == path


@pytest.mark.parametrize(
    ("path", "hive"), [("/", "/"), ("/a", "/"), ("/a/b", "/a"), ("/a/b/c", "/a/b")]
)
def test_parent(path: str, hive: str) -> None:
    assert parent(path) == hive


@pytest.mark.parametrize(
    ("path", "scope", "inside"),
    [
        ("/a", "/a", True),
        ("/a/b", "/a", True),
        ("/a/b/c", "/a", True),
        ("/ab", "/a", False),
        ("/b", "/a", False),
        ("/", "/a", False),
        ("/a", "/", True),
        ("/", "/", True),
    ],
)
def test_within(path: str, scope: str, inside: bool) -> None:
    assert within(path, scope) is inside


@pytest.mark.parametrize("segment", ["a", "tool-loop", "a.b", "...", "Ünï", "a_1", "x" * 120])
def test_a_segment_is_returned_as_it_is(segment: str) -> None:
    assert check_segment(segment) == segment


@pytest.mark.parametrize(
    "segment",
    [
        "",
        ".",
        "..",
        "a/b",
        "a:b",
        "{a",
        "a}",
        "a b",
        "a\n",
        "\x00",
        "\x1f",
        "\u2028",
        "x" * 121,
        "\udcff",
    ],
)
def test_a_segment_that_no_key_could_hold_is_refused(segment: str) -> None:
    with pytest.raises(PathError) as caught:
        check_segment(segment)

    assert caught.value.code == "path_invalid"


@given(SEGMENTS)
def test_a_segment_that_passes_survives_resolution(segment: str) -> None:
    try:
        check_segment(segment)
    except PathError:
        return
    path = resolve(segment, "/hive")

    assert path == f"/hive/{segment}"
    assert parent(path) == "/hive"
    assert path.encode()
