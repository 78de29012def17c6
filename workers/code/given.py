"""Given: what a handler is given beside the envelope.

One that annotates its second parameter with a pydantic model is given the model, made of the params
that are not the cell's own; any other is given the params as they are written.
"""

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import get_type_hints

from pydantic import BaseModel, JsonValue

from colony.agent.in_hand import RunInHand

Given = BaseModel | Mapping[str, JsonValue]


def given(function: Callable[..., object], params: Mapping[str, JsonValue]) -> Given:
    """What `function` is given of `params`; raises ValidationError where its model refuses them."""
    model = params_model(function)
    # As JSON, as the params of a cell are read: a tuple can be written, and a number as text.
    return params if model is None else model.model_validate_json(json.dumps(dict(params)))


def wants_run(function: Callable[..., object]) -> bool:
    """Whether a handler annotates its third parameter as the run that it is to be given."""
    return _annotation(function, 2) is RunInHand


def params_model(function: Callable[..., object]) -> type[BaseModel] | None:
    """The model that `function` wants its params as; None where it takes any."""
    found = _annotation(function, 1)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _annotation(function: Callable[..., object], position: int) -> object:
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # Not every callable can be looked into.
        return None
    given = parameters[position].annotation if len(parameters) > position else None
    return _evaluated(given, function)


def _evaluated(annotation: object, function: Callable[..., object]) -> object:
    """What an annotation stands for, also where it is kept as text; None where it says nothing."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    holder = SimpleNamespace(__annotations__={"params": annotation})
    try:
        return get_type_hints(holder, globalns=vars(module) if module else {})["params"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        # A name that is imported for type checkers only is no model that anybody could make.
        return None
