"""Errors: the tree that is drawn is the tree that is, and every sentence can be spoken."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from colony import errors
from colony.errors import CellError, ColonyError, ToolError

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"[a-z][a-z0-9_]*")

# A call with wrong arguments has one code, whether a tool or a store is called.
SHARED = {"invalid_input"}


def classes(parent: type[ColonyError] = ColonyError) -> Iterator[type[ColonyError]]:
    yield parent
    for child in parent.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from classes(child)


def fields(error: type[ColonyError]) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(error.sentence) if name}


def drawn() -> list[tuple[str, str, str]]:
    """Name, code and parent of each class, as the docstring draws them."""
    found: list[tuple[str, str, str]] = []
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        branch = re.fullmatch(r"    ([│ ├└─]*)(\w+) +(\w+)", line)
        if branch is not None:
            depth = len(branch[1]) // 4
            parent = above[depth - 1]
            del above[depth:]
            above.append(branch[2])
            found.append((branch[2], branch[3], parent))
        elif line == "    ColonyError":
            above = ["ColonyError"]
    return found


def test_the_drawn_tree_is_the_tree_of_the_classes() -> None:
    real = [
        (error.__name__, error.code, error.__mro__[1].__name__)
        for error in classes()
        if error is not ColonyError
    ]

    assert sorted(drawn()) == sorted(real)


def test_every_class_has_a_code_of_its_own() -> None:
    counted = Counter(error.code for error in classes())

    assert {code for code, count in counted.items() if count > 1} == SHARED
    assert [code for code in counted if not CODE.fullmatch(code)] == []
    assert [error.__name__ for error in classes() if "code" not in vars(error)] == []


@pytest.mark.parametrize("error", [*classes()], ids=lambda error: error.__name__)
def test_a_sentence_is_built_from_its_facts(error: type[ColonyError]) -> None:
    facts = {name: f"<{name}>" for name in fields(error)}
    raised = error(**facts)

    assert raised.facts == facts
    assert facts
    assert all(value in str(raised) for value in facts.values())
    assert not str(raised).endswith(".")


def test_the_words_of_a_fact_are_no_format() -> None:
    assert str(ColonyError(detail="{nope} {0} {{")) == "{nope} {0} {{"


def test_a_cell_error_is_final_unless_it_says_otherwise() -> None:
    assert not CellError(detail="x").retryable
    assert CellError(detail="x", retryable=True).retryable
    assert CellError(detail="x", retryable=True).facts == {"detail": "x"}


def test_a_tool_error_tells_the_edges_what_it_is_given_for_them() -> None:
    assert ToolError(detail="x").hop == {}
    assert ToolError(detail="x", hop={"status": 404}).hop == {"status": 404}


def test_every_error_is_raised_with_the_facts_of_its_sentence() -> None:
    """A fact that is missing shows only when the error is raised, as a KeyError in its place."""
    sentences = {error.__name__: fields(error) for error in classes()}
    lacking = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {name} lacks {missing}"
        for path in [*ROOT.glob("colony/**/*.py"), *ROOT.glob("workers/**/*.py")]
        for name, call in calls(path, sentences)
        if (missing := sentences[name] - {keyword.arg for keyword in call.keywords})
    ]

    assert lacking == []


def calls(path: Path, names: dict[str, set[str]]) -> Iterator[tuple[str, ast.Call]]:
    """The calls of these classes in a file, save those that unpack their facts."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            unpacks = any(keyword.arg is None for keyword in node.keywords)
            if node.func.id in names and not unpacks:
                yield node.func.id, node
