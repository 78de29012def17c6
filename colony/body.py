"""Bodies: the universal body format, what an envelope carries beside its headers.

A body has at least one of `system`, `messages` and `attachments`; further slots are carried as they
are. Entries, pointers and attachments are closed objects (meclaw, body format).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    ValidationError,
    model_validator,
)

from colony.errors import BodyError

MAX_NESTING = 64

Origin = Literal["user", "assistant", "tool", "system"]
EntryType = Literal["text", "tool_call", "tool_result", "image", "audio"]


class Frozen(BaseModel):
    """An immutable, closed value with strict types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Entry(Frozen):
    """One element of `messages`: who said what.

    `text` of a tool call is the provider's function object on its way to a model, and the bare
    argument object on its way to a tool; both are JSON in a string.
    """

    origin: Origin
    type: EntryType
    text: str | None = None
    id: str | None = None
    happened_at: str | None = None
    is_error: bool | None = None
    vendor: dict[str, JsonValue] | None = None

    @model_validator(mode="after")
    def _has_what_its_type_has(self) -> Self:
        if self.id is None and self.type in ("tool_call", "tool_result"):
            raise ValueError(f"a {self.type} needs an id")
        if self.is_error is not None and self.type != "tool_result":
            raise ValueError("only a tool_result has is_error")
        return self

    @classmethod
    def say(cls, origin: Origin, text: str) -> Self:
        """A text entry."""
        return cls(origin=origin, type="text", text=text)

    @classmethod
    def call(cls, call_id: str, arguments: Mapping[str, JsonValue]) -> Self:
        """A tool call as a tool receives it: the bare argument object."""
        return cls(origin="assistant", type="tool_call", id=call_id, text=json.dumps(arguments))

    @classmethod
    def result(cls, call_id: str, text: str, *, is_error: bool = False) -> Self:
        """The answer of a tool to the call `call_id`."""
        result = cls(origin="tool", type="tool_result", id=call_id, text=text)
        return result.model_copy(update={"is_error": True}) if is_error else result

    def to_json(self) -> dict[str, JsonValue]:
        """The entry as a JSON object, unset keys left out."""
        return self.model_dump(exclude_unset=True)


class TextPointer(Frozen):
    """A blob that stands for exactly one entry."""

    text_id: str


class BulkPointer(Frozen):
    """A blob that stands for a list of entries, spliced in its place."""

    messages_id: str


class Attachment(Frozen):
    """A file that travels beside the messages, by the id of its blob."""

    blob_id: str
    mime_type: str
    size_bytes: int = Field(ge=0)
    filename: str | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


def _kind(element: object) -> str:
    keys: Any = element if isinstance(element, Mapping) else getattr(element, "__dict__", {})
    if "text_id" in keys:
        return "text_id"
    return "messages_id" if "messages_id" in keys else "entry"


Element = Annotated[
    Annotated[Entry, Tag("entry")]
    | Annotated[TextPointer, Tag("text_id")]
    | Annotated[BulkPointer, Tag("messages_id")],
    Discriminator(_kind),
]


class Body(BaseModel):
    """What an envelope carries. Slots beyond the three known ones are kept as they are."""

    # What is not finite has no form in JSON, whatever Python's json module writes for it.
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    system: dict[str, JsonValue] | None = None
    messages: tuple[Element, ...] | None = None
    attachments: tuple[Attachment, ...] | None = None

    @model_validator(mode="after")
    def _has_a_known_slot(self) -> Self:
        known = ("system", "messages", "attachments")
        if all(getattr(self, slot) is None for slot in known):
            raise ValueError("at least one of system, messages and attachments is needed")
        if any(getattr(self, slot) is None for slot in known if slot in self.model_fields_set):
            raise ValueError("a slot that is present cannot be null")
        return self

    @classmethod
    def parse(cls, value: object) -> Self:
        """The body that a JSON value describes; raises BodyError where it describes none."""
        if not isinstance(value, dict):
            raise BodyError(detail="a body is a JSON object")
        check_nesting(value)
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise BodyError(detail=explain(error)) from None

    @classmethod
    def of(cls, *entries: Entry) -> Self:
        """A body with these messages and nothing else."""
        return cls(messages=entries)

    def to_json(self) -> dict[str, JsonValue]:
        """The body as a JSON object, absent slots left out."""
        return self.model_dump(exclude_unset=True)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of `messages`, without pointers."""
        return tuple(e for e in self.messages or () if isinstance(e, Entry))

    def each(self, entry_type: EntryType, origin: Origin | None = None) -> Iterator[Entry]:
        """The entries of one type, and of one origin where it is given, in order."""
        for entry in self.entries:
            if entry.type == entry_type and origin in (None, entry.origin):
                yield entry

    def first(self, origin: Origin) -> Entry | None:
        """The first text entry of `origin`."""
        return next(self.each("text", origin), None)

    def last(self, origin: Origin) -> Entry | None:
        """The last text entry of `origin`."""
        return next(reversed([*self.each("text", origin)]), None)


def check_nesting(value: object) -> None:
    """Returns if `value` nests at most `MAX_NESTING` deep; raises BodyError otherwise."""
    layer, depth = [value], 0
    while layer:
        if depth > MAX_NESTING:
            raise BodyError(detail=f"nested deeper than {MAX_NESTING}")
        layer = [child for item in layer for child in _children(item)]
        depth += 1


def explain(error: ValidationError) -> str:
    """One sentence that names every place a validation found wrong."""
    found = [
        f"{'.'.join(str(part) for part in problem['loc']) or 'body'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False)
    ]
    return "; ".join(found)


def _children(item: object) -> list[object]:
    if isinstance(item, dict):
        return [child for child in item.values() if isinstance(child, (dict, list))]
    if isinstance(item, list):
        return [child for child in item if isinstance(child, (dict, list))]
    return []
