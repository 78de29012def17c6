"""The guarantees: each promise of `docs/guarantees.md` names tests that hold it, and they exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/guarantees.md").read_text()
BULLET = re.compile(r"^- \*\*(.+?)\*\*(.*?)(?=^- |^$|\Z)", re.MULTILINE | re.DOTALL)
PROMISES = dict(BULLET.findall(PAGE))
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@cache
def named_in(file: str) -> frozenset[str]:
    """The names of the functions of a file, which is not run; none where there is no such file."""
    path = ROOT / file
    body = ast.parse(path.read_text()).body if path.is_file() else []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in body if isinstance(node, kinds))


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_is_a_sentence_that_tests_hold(promise: str) -> None:
    _, _, holders = PROMISES[promise].partition("*Held by*")

    found = TEST.findall(holders)

    assert re.fullmatch(r"[^.]+\.", promise)
    assert found
    assert holders.count("`") == 2 * len(found), "something else than tests is named"


def test_every_test_that_is_named_exists() -> None:
    missing = [f"{file}::{name}" for file, name in TEST.findall(PAGE) if name not in named_in(file)]

    assert missing == []


def test_every_promise_has_the_same_form() -> None:
    assert len(PROMISES) > 40
    assert len(re.findall("^- ", PAGE, re.MULTILINE)) == len(PROMISES)
    assert PAGE.count("*Held by*") == len(PROMISES)
    assert PAGE.count("`tests/") == len(TEST.findall(PAGE))
