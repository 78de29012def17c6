"""Written arguments: the argument object of a call, however a model or a store wrote it."""

import json

from pydantic_core import from_json

NO_ARGUMENTS = "{}"


def argument_text(written: object) -> str | None:
    """The text of the argument object; None where something else is written."""
    if written is None or written == "":
        return NO_ARGUMENTS
    if isinstance(written, dict):
        return json.dumps(written, ensure_ascii=False)
    found = json_in(written)
    if isinstance(found, dict):
        return str(written)
    # Some models write the object as a text within the text.
    return found if isinstance(found, str) and isinstance(json_in(found), dict) else None


def json_in(text: object) -> object:
    """The value that `text` is the JSON of; None where it is none.

    What is not finite and half a surrogate pair can be read by some, and sent by nobody.
    """
    try:
        found: object = from_json(text, allow_inf_nan=False) if isinstance(text, str) else None
        # A number may be too large to be one, however it is written.
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return found
