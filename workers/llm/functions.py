"""Functions: what a tool call says on its way to a model, in a form that every provider takes.

The text of a call is the JSON of a function object. What a model wrote there is not always what a
provider takes back: it wants a name, and the JSON of an object as arguments.
"""

import json
from dataclasses import dataclass

from pydantic_core import from_json

from colony.body import Entry

NAMELESS = "unknown"
NO_ARGUMENTS = "{}"


@dataclass(frozen=True, slots=True)
class Function:
    """The function that a call names; `arguments` is the text of a JSON object.

    `lost_name` and `lost_arguments` tell that what the model wrote stands here no more.
    """

    name: str
    arguments: str
    lost_name: bool = False
    lost_arguments: bool = False

    @property
    def text(self) -> str:
        """The function as the text of a call."""
        return write_function(self.name, self.arguments)


def read_function(call: Entry) -> Function | None:
    """The function of a call; None where its text is no object that has a name."""
    written = _json(call.text)
    if not isinstance(written, dict) or "name" not in written:
        return None
    name, arguments = written["name"], _arguments(written.get("arguments"))
    if not isinstance(name, str | None):
        return None
    return Function(
        name=name or NAMELESS,
        arguments=NO_ARGUMENTS if arguments is None else arguments,
        lost_name=not name,
        lost_arguments=arguments is None,
    )


def write_function(name: str, arguments: str, *, problem: str | None = None) -> str:
    """The text of a call; one with a `problem` says so, and is not run."""
    function = {"name": name, "arguments": arguments}
    if problem is not None:
        function["problem"] = problem
    return json.dumps(function, ensure_ascii=False)


def _arguments(written: object) -> str | None:
    """The text of the argument object; None where something else is written."""
    if written is None or written == "":
        return NO_ARGUMENTS
    if isinstance(written, dict):
        return json.dumps(written)
    found = _json(written)
    if isinstance(found, dict):
        return str(written)
    # Some models write the object as a text within the text.
    return found if isinstance(found, str) and isinstance(_json(found), dict) else None


def _json(text: object) -> object:
    # What is not finite and half a surrogate pair can be read by some, and sent by nobody.
    try:
        found: object = from_json(text, allow_inf_nan=False) if isinstance(text, str) else None
    except ValueError:
        return None
    return found
