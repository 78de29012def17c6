"""Functions as tools: what a model is told of them, and how they answer."""

import asyncio
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from colony.body import Body, Entry
from colony.cell import tool_declaration
from colony.envelope import Emission, Envelope
from colony.errors import NotFound, TopologyError
from colony.tool import ToolHandler, tool
from colony.topology.model import CellSettings, CellSpec


@tool(read_only=True)
def forecast(
    city: Annotated[str, Field(description="Where.")], days: int = 1, unit: Literal["c", "f"] = "c"
) -> dict[str, Any]:
    """Tell the weather
    of a city.

    Nothing of this paragraph is told.
    """
    if city == "Atlantis":
        raise NotFound(what="city Atlantis")
    return {"city": city, "days": days, "unit": unit}


@tool
async def slow(x: float) -> str:
    """Wait a moment."""
    await asyncio.sleep(0)
    return f"{x / 0 if x < 0 else x}"


def call(handler: ToolHandler, *arguments: dict[str, Any]) -> Emission:
    calls = [Entry.call(f"call-{n}", given) for n, given in enumerate(arguments)]
    body = Body.of(*(calls or [Entry.say("user", "hello")]))
    answered = handler(Envelope(id="m", trace_id="t", target="/x", ttl=9, body=body), {})
    assert isinstance(answered, Emission)
    return answered


def test_a_function_declares_itself() -> None:
    declared = forecast.declaration

    assert (declared.name, declared.description) == ("forecast", "Tell the weather of a city.")
    assert (declared.read_only, slow.declaration.read_only) == (True, False)
    assert declared.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "default": 1},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_a_call_is_answered_under_its_id() -> None:
    answered = call(forecast, {"city": "Bremen", "days": 3})

    [result] = answered.body.entries
    assert (result.type, result.id, result.is_error) == ("tool_result", "call-0", None)
    assert result.text == '{"city":"Bremen","days":3,"unit":"c"}'
    assert answered.hop.keys() == {"operation", "duration_ms"}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ({}, "invalid_input", "city: Field required"),
        ({"city": "x", "days": "three"}, "invalid_input", "days: "),
        ({"city": "x", "day": 3}, "invalid_input", "day: "),
        ({"city": "x", "unit": "k"}, "invalid_input", "unit: "),
        ({"city": "Atlantis"}, "not_found", "there is no city Atlantis"),
    ],
)
def test_what_goes_wrong_is_a_result_the_model_sees(
    arguments: dict[str, Any], code: str, told: str
) -> None:
    answered = call(forecast, arguments)

    [result] = answered.body.entries
    assert result.is_error is True
    assert result.id == "call-0"
    assert (result.text or "").startswith(f"{code}: {told}")
    assert (answered.hop["error_code"], answered.hop["finish_reason"]) == (code, "error")


def test_two_calls_at_once_are_both_answered_with_an_error() -> None:
    answered = call(forecast, {"city": "a"}, {"city": "b"})

    assert [(entry.id, entry.is_error) for entry in answered.body.entries] == [
        ("call-0", True),
        ("call-1", True),
    ]


def test_a_message_without_a_call_is_an_error_for_the_edges() -> None:
    assert call(forecast).hop["error_code"] == "invalid_input"


async def test_an_async_function_is_a_tool_as_well() -> None:
    envelope = Envelope(
        id="m", trace_id="t", target="/x", ttl=9, body=Body.of(Entry.call("c", {"x": 2}))
    )
    answered = slow(envelope, {})
    assert not isinstance(answered, Emission)
    assert (await answered).body.entries[0].text == "2.0"

    failing = envelope.model_copy(update={"body": Body.of(Entry.call("c", {"x": -1}))})
    answered = slow(failing, {})
    assert not isinstance(answered, Emission)
    told = (await answered).body.entries[0].text
    assert told == "tool_failed: ZeroDivisionError: float division by zero"


def test_a_function_that_cannot_be_told_of_is_refused() -> None:
    def unhinted(x) -> str:  # type: ignore[no-untyped-def]
        """Do."""
        return str(x)

    def open_ended(*x: int) -> str:
        """Do."""
        return str(x)

    def silent(x: int) -> str:
        return str(x)

    for function, why in (
        (unhinted, "type hint"),
        (open_ended, "type hint"),
        (silent, "docstring"),
    ):
        with pytest.raises(TopologyError, match=why):
            tool(function)


def test_a_cell_is_declared_by_its_handler(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        'from colony.tool import tool\n\n@tool\ndef add(a: int) -> int:\n    "Add."\n    return a\n'
    )
    (tmp_path / "declared_tools.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    def declared(handler: str) -> Any:
        spec = CellSpec(path="/x", cell=CellSettings(type="code"), params={"handler": handler})
        return tool_declaration(spec)

    assert declared("declared_tools:add").name == "add"
    assert declared("declared_tools:tool") is None
    assert declared("nowhere:add") is None
