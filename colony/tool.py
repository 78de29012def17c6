"""Tools: a Python function as a tool that a model may call.

`@tool` makes a function the handler of a `code` cell. Its type hints become the schema a model is
told, its docstring the description; what it returns is the result of the call.
"""

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, Protocol, get_type_hints, overload

from pydantic import JsonValue, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from colony.body import Entry, Frozen, explain
from colony.envelope import Emission, Envelope
from colony.errors import InvalidInput, ToolError, TopologyError
from colony.topology.model import ToolDeclaration

Function = Callable[..., object]
Params = Mapping[str, JsonValue]

_ANYTHING: TypeAdapter[object] = TypeAdapter(object)
_CALLED_WITH = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name in ("envelope", "params")
    ]
)


class ToolHandler(Protocol):
    """A handler that knows how a model is told of it."""

    declaration: ToolDeclaration

    def __call__(self, envelope: Envelope, params: Params) -> Emission | Awaitable[Emission]:
        """The result of the one call in `envelope`, under its id."""


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        return False


@overload
def tool(function: Function) -> ToolHandler: ...
@overload
def tool(*, read_only: bool = ...) -> Callable[[Function], ToolHandler]: ...
def tool(
    function: Function | None = None, *, read_only: bool = False
) -> ToolHandler | Callable[[Function], ToolHandler]:
    """The function as a tool. One that changes nothing says `read_only=True`: it may be repeated.

    Raises TopologyError where a parameter has no type hint or the function no docstring. Whatever
    a call raises is its result, an error the model sees.
    """

    def decorate(function: Function) -> ToolHandler:
        arguments = _arguments(function)
        schema = arguments.model_json_schema(schema_generator=_Untitled)
        declaration = ToolDeclaration(
            name=function.__name__,
            description=_description(function),
            parameters={key: part for key, part in schema.items() if key != "title"},
            read_only=read_only,
        )
        handler: Any = _handler(function, arguments)
        handler.declaration = declaration
        # It stands for the function, and is called otherwise.
        handler.__signature__ = _CALLED_WITH
        return handler  # type: ignore[no-any-return]

    return decorate if function is None else decorate(function)


def _handler(function: Function, arguments: type[Frozen]) -> Function:
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def handle_async(envelope: Envelope, params: Params) -> Emission:
            call = _Call(envelope, function.__name__)
            try:
                return call.result(await function(**call.arguments(arguments)))
            except Exception as error:  # A tool is foreign code: what it raises is its answer.
                return call.failure(error)

        return handle_async

    @wraps(function)
    def handle(envelope: Envelope, params: Params) -> Emission:
        call = _Call(envelope, function.__name__)
        try:
            return call.result(function(**call.arguments(arguments)))
        except Exception as error:  # As above.
            return call.failure(error)

    return handle


class _Call:
    """The call in an envelope, on its way to a result."""

    def __init__(self, envelope: Envelope, name: str) -> None:
        self._calls = [*envelope.body.each("tool_call")]
        self._name = name
        self._started = time.monotonic()

    def arguments(self, model: type[Frozen]) -> dict[str, Any]:
        if len(self._calls) != 1:
            raise InvalidInput(detail=f"one call is handled at a time, not {len(self._calls)}")
        try:
            found = model.model_validate_json(self._calls[0].text or "")
        except ValidationError as error:
            raise InvalidInput(detail=explain(error)) from None
        return {name: getattr(found, name) for name in model.model_fields}

    def result(self, value: object) -> Emission:
        text = value if isinstance(value, str) else _ANYTHING.dump_json(value).decode()
        return self._emission(text)

    def failure(self, error: Exception) -> Emission:
        code = error.code if isinstance(error, ToolError) else ToolError.code
        told = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
        return self._emission(f"{code}: {told}", finish_reason="error", error_code=code)

    def _emission(self, text: str, **hop: JsonValue) -> Emission:
        failed = "error_code" in hop
        entries = [Entry.result(call.id or "", text, is_error=failed) for call in self._calls]
        taken = round((time.monotonic() - self._started) * 1000)
        # Without a call there is no id to answer; the edges still learn what went wrong.
        return Emission.of(
            *(entries or [Entry.say("tool", text)]),
            operation=self._name,
            duration_ms=taken,
            **hop,
        )


def _arguments(function: Function) -> type[Frozen]:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in hints or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
            parameter.POSITIONAL_ONLY,
        ):
            raise TopologyError(
                detail=f"the tool {function.__name__} needs a named parameter with a type hint, "
                f"which {name} is not"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints[name], default)
    return create_model(function.__name__, __base__=Frozen, **fields)


def _description(function: Function) -> str:
    text = inspect.getdoc(function)
    if not text:
        raise TopologyError(detail=f"the tool {function.__name__} needs a docstring")
    return " ".join(text.partition("\n\n")[0].split())
