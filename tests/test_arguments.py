"""Whether a call fits what its tool declares."""

from typing import Any

import pytest

from colony.arguments import DeclaredTool
from colony.body import Body, Entry
from colony.errors import ConfigError
from colony.topology.model import ToolDeclaration

CONVERT = {
    "type": "object",
    "properties": {"value": {"type": "number"}, "unit": {"enum": ["ft", "m"]}},
    "required": ["value"],
    "additionalProperties": False,
}


def declared(parameters: dict[str, Any]) -> DeclaredTool:
    return DeclaredTool.of(ToolDeclaration(name="f", description="d", parameters=parameters))


def call(text: str | None, call_id: str = "c") -> Entry:
    return Entry(origin="assistant", type="tool_call", id=call_id, text=text)


def wrong(text: str | None, parameters: dict[str, Any] = CONVERT) -> str:
    return declared(parameters).misfits(Body.of(call(text))).get("c", "")


def test_a_call_that_fits_has_nothing_wrong() -> None:
    assert wrong('{"value": 3, "unit": "ft"}') == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "'value' is a required property"),
        ('{"value": "3"}', "value: '3' is not of type 'number'"),
        ('{"value": 3, "unit": "km"}', "unit: 'km' is not one of"),
        ('{"value": 3, "uint": "m"}', "'uint' was unexpected"),
        ("[3]", "not a JSON object"),
        ('"3"', "not a JSON object"),
        ("", "no JSON"),
        (None, "no JSON"),
        ('{"value": ', "no JSON"),
        ('{"value": NaN}', "NaN is no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"value": ' + "[" * 70 + "]" * 70 + "}", "nested deeper than 64"),
    ],
)
def test_what_does_not_fit_is_said(text: str | None, said: str) -> None:
    assert said in wrong(text)


def test_only_the_calls_that_do_not_fit_are_told_of() -> None:
    body = Body.of(call('{"value": 1}', "fits"), call("{}", "lacks"), Entry.say("user", "{}"))

    assert [*declared(CONVERT).misfits(body)] == ["lacks"]


def test_what_is_said_is_short_and_can_be_sent() -> None:
    said = wrong('{"value": "' + "x" * 100_000 + '\\ud800"}')
    half = wrong('{"value": 1, "unit": "\\ud800"}')
    many = wrong("{" + ",".join(f'"{n}": 1' for n in range(10_000)) + "}")

    assert all(0 < len(text.encode()) < 2_000 for text in (said, half, many))


def test_parameters_that_are_no_schema_are_refused() -> None:
    with pytest.raises(ConfigError, match="tool f are no JSON Schema: type: 'strnig'"):
        declared({"type": "strnig"})


def test_a_schema_elsewhere_is_not_fetched() -> None:
    said = wrong('{"a": 1}', {"properties": {"a": {"$ref": "http://127.0.0.1:9/schema"}}})

    assert "lead nowhere" in said


def test_a_schema_may_refer_to_itself() -> None:
    tree = {"$ref": "#/$defs/node", "$defs": {"node": {"additionalProperties": {"$ref": "#"}}}}

    assert wrong('{"a": {"b": {}}}', tree) == ""
