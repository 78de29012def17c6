"""Functions: what a tool call says on its way to a model, in a form that every provider takes.

The text of a call is the JSON of a function object. What a model wrote there is not always what a
provider takes back: it wants a name, and the JSON of an object as arguments.
"""

import json
import re
from dataclasses import dataclass

from colony.body import Entry
from workers.written_arguments import NO_ARGUMENTS, argument_text, json_in

NAMELESS = "unknown"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


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
    written = json_in(call.text)
    if not isinstance(written, dict) or "name" not in written:
        return None
    name, arguments = written["name"], argument_text(written.get("arguments"))
    if not isinstance(name, str | None):
        return None
    return Function(
        name=name or NAMELESS,
        arguments=NO_ARGUMENTS if arguments is None else arguments,
        lost_name=not name,
        lost_arguments=arguments is None,
    )


def sendable_name(name: str, *, limit: int) -> str:
    """The name as providers take it back, which refuse a thread with any other letter in it.

    A model may call what nobody offered, under a name of its own.
    """
    return _NOT_IN_NAMES.sub("_", name)[:limit]


def write_function(name: str, arguments: str, *, problem: str | None = None) -> str:
    """The text of a call; one with a `problem` says so, and is not run."""
    function = {"name": name, "arguments": arguments}
    if problem is not None:
        function["problem"] = problem
    return json.dumps(function, ensure_ascii=False)
