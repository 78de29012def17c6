from pathlib import Path

import pytest

from colony.errors import SubstitutionError, VariableUnset
from colony.topology.substitution import lay_in, resolve, substitute, variables


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("${NAME}", "Ada"),
        ("to ${NAME}, from ${NAME}", "to Ada, from Ada"),
        ("${MISSING:-nobody}", "nobody"),
        ("${MISSING:-}", ""),
        ("${NAME:-nobody}", "Ada"),
        ("${EMPTY}", ""),
        ("${EMPTY:-nobody}", "nobody"),
        ("${MISSING:-http://x/y?a=b:-c}", "http://x/y?a=b:-c"),
        ("$${NAME}", "${NAME}"),
        ("$NAME {NAME} $", "$NAME {NAME} $"),
        ("${TRICK}", "${NAME}"),
    ],
)
def test_a_reference_becomes_its_value(written: str, expected: str) -> None:
    environment = {"NAME": "Ada", "EMPTY": "", "TRICK": "${NAME}"}

    assert substitute({"key": written}, environment) == {"key": expected}


def test_strings_are_replaced_at_any_depth_and_nothing_else_is() -> None:
    params = {"a": [{"b": "${X}"}, 7, None], "${X}": True}

    assert substitute(params, {"X": "1"}) == {"a": [{"b": "1"}, 7, None], "${X}": True}


def test_unset_variables_are_all_named() -> None:
    with pytest.raises(VariableUnset, match="API_KEY, MODEL") as caught:
        substitute({"a": "${MODEL}${API_KEY}", "b": ["${API_KEY}"]}, {})

    assert caught.value.code == "variable_unset"


@pytest.mark.parametrize("written", ["${X:=1}", "${X:?no}", "${x.y}", "${}", "${open", "${1}"])
def test_a_reference_of_another_form_is_refused(written: str) -> None:
    with pytest.raises(SubstitutionError) as caught:
        substitute({"key": f"a {written}"}, {"X": "1", "open": "1"})

    assert written in str(caught.value)


def test_resolve_names_the_place_of_what_is_unset() -> None:
    result = resolve({"a": [{"b": "x${X}"}], "c": "${Y}"}, {"Y": "y"})

    assert result.unset == ((("a", 0, "b"), "X"),)
    assert result.failed(("a",))
    assert not result.failed(("c",))
    assert result.value == {"a": [{"b": "x0"}], "c": "y"}


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=file\nB=file\nC=${B}\n# D=file\nE\n")

    assert variables(tmp_path, {"A": "environment"}) == {
        "A": "environment",
        "B": "file",
        "C": "${B}",
    }


def test_a_value_handed_to_a_template_keeps_its_type() -> None:
    handed = {"name": "Ada", "most": 3, "tools": ["a"], "flag": True}
    written = {
        "whole": ["${with.most}", "${with.tools}", "${with.flag}"],
        "inside": "${with.name}: ${with.most}, ${with.flag}",
        "later": "${NAME} $${with.name}",
    }

    result = lay_in(written, handed)

    assert result.value == {
        "whole": [3, ["a"], True],
        "inside": "Ada: 3, true",
        "later": "${NAME} $${with.name}",
    }
    assert not result.unset


def test_a_value_that_is_not_handed_over_is_named() -> None:
    assert lay_in({"a": "${with.model}"}, {}).unset == ((("a",), "model"),)


def test_a_value_that_is_handed_over_has_no_default_in_its_reference() -> None:
    laid = lay_in({"a": "${with.model:-small}"}, {"model": "large"})

    assert resolve(laid.value, {}).unsupported == ((("a",), "${with.model:-small}"),)
