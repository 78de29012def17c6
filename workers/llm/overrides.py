"""Overrides: params that a message changes for the calls after it, kept beside the system state.

Where a request goes and with which key is not among them: whoever can write a message must not be
able to send a key somewhere else.
"""

import json
from collections.abc import Mapping
from typing import TypeVar

from pydantic import JsonValue, ValidationError

from colony.body import explain
from colony.errors import BodyError
from workers.llm.provider import Generation

PREFIX = "params."

G = TypeVar("G", bound=Generation)


def parse(params: JsonValue) -> dict[str, str]:
    """The leaves that a `params` slot puts; raises BodyError for what cannot be changed."""
    if not isinstance(params, dict):
        raise BodyError(detail="params is not an object")
    closed = sorted(set(params) - set(Generation.model_fields))
    if closed:
        raise BodyError(detail=f"params cannot change {', '.join(closed)}")
    return {PREFIX + name: json.dumps(value) for name, value in params.items()}


def overlaid(own: G, state: Mapping[str, str]) -> Generation:
    """The generation params of a cell with what `state` changes of them.

    Raises BodyError where a value does not fit.
    """
    changed = {
        path.removeprefix(PREFIX): json.loads(text)
        for path, text in state.items()
        if path.startswith(PREFIX)
    }
    values = {name: getattr(own, name) for name in Generation.model_fields}
    try:
        return Generation.model_validate({**values, **changed})
    except ValidationError as error:
        raise BodyError(detail=f"params: {explain(error)}") from None
