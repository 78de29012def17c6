"""JSON texts: what somebody else wrote as JSON, read without ever raising.

Half a surrogate pair, numbers that JSON has not, and values nested hundreds deep are refused: what
is read here is sent on.
"""

from pydantic import JsonValue
from pydantic_core import from_json


def parse(text: str) -> JsonValue:
    """The value that `text` is; None where it is none."""
    try:
        found: JsonValue = from_json(text.removeprefix("\ufeff"), allow_inf_nan=False)
    except ValueError:
        return None
    return found


def is_json(text: str) -> bool:
    """Whether `text` is a value, null included."""
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError:
        return False
    return True


def is_begun(text: str) -> bool:
    """Whether `text` is an object as far as it goes."""
    try:
        return isinstance(from_json(text, allow_inf_nan=False, allow_partial=True), dict)
    except ValueError:
        return False
