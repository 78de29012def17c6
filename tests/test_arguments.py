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


@pytest.mark.parametrize("multiple", [0.01, 0.1, 1e-300])
@pytest.mark.parametrize("number", ["1" + "0" * 400, "-" + "9" * 4_000, "1e308", "1e400"])
def test_numbers_of_any_size_are_held_against_the_schema(multiple: float, number: str) -> None:
    parameters = {"properties": {"value": {"type": "number", "multipleOf": multiple}}}

    assert isinstance(wrong(f'{{"value": {number}}}', parameters), str)


def test_a_number_that_cannot_be_reckoned_with_is_said() -> None:
    parameters = {"properties": {"value": {"multipleOf": 0.01}}}

    assert "cannot be reckoned with" in wrong('{"value": 1' + "0" * 400 + "}", parameters)


def test_a_schema_nested_deeper_than_can_be_followed_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(60):
        schema = {"anyOf": [{"properties": {"a": schema}}]}

    with pytest.raises(ConfigError):
        declared(schema)


STRANGE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^\\p{L}+(?<rest>.*)$"},
        "slow": {"type": "string", "pattern": "^(a|a)*$"},
        "pattern": {"type": "integer"},
    },
    "required": ["name"],
    "propertyNames": {"pattern": "^(a|a)*$"},
}


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"name": "x"}, True),
        ({"name": 1}, False),
        ({}, False),
        ({"name": "x", "pattern": "1"}, False),
        ({"name": "x", "slow": "a" * 5_000 + "!"}, True),
    ],
)
def test_the_patterns_of_a_strangers_tool_are_left_to_the_stranger(
    arguments: dict[str, Any], fits: bool
) -> None:
    tool = ToolDeclaration(name="f", description="d", parameters=STRANGE)
    body = Body.of(Entry.call("c", arguments))

    assert (DeclaredTool.of_stranger(tool).misfits(body) == {}) == fits
    with pytest.raises(ConfigError, match="regex"):
        DeclaredTool.of(tool)


@pytest.mark.parametrize(("more", "fits"), [({}, False), ({"patternProperties": {"(": {}}}, True)])
def test_what_is_additional_is_refused_where_no_pattern_has_a_say(
    more: dict[str, Any], fits: bool
) -> None:
    parameters = {"properties": {"a": {}}, "additionalProperties": False, **more}
    tool = ToolDeclaration(name="f", description="d", parameters=parameters)

    misfits = DeclaredTool.of_stranger(tool).misfits(Body.of(Entry.call("c", {"b": 1})))

    assert (misfits == {}) == fits
