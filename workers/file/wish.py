"""What a model may ask of a file cell."""

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from workers.tool_call import Arguments

# What each operation takes beside a path.
_TAKES = {
    "read": {"mode", "offset", "limit", "find"},
    "write": {"mode", "content"},
    "list": set(),
    "stat": set(),
}


class Wish(Arguments):
    """One operation on one path."""

    op: Annotated[
        Literal["read", "write", "list", "stat"],
        Field(description="write makes the file or replaces all of it; folders are not made."),
    ]
    path: Annotated[
        str,
        Field(
            min_length=1,
            description="Relative to the folder; read and stat take a blob: handle as well.",
        ),
    ]
    mode: Annotated[
        Literal["text", "base64"], Field(description="How content is written down.")
    ] = "text"
    offset: Annotated[int, Field(ge=0, description="First byte to read.")] = 0
    limit: Annotated[int | None, Field(ge=1, description="At most so many bytes.")] = None
    find: Annotated[
        str | None,
        Field(min_length=1, description="Read from where this exact text is, at or after offset."),
    ] = None
    content: Annotated[str | None, Field(description="What to write.")] = None

    @model_validator(mode="after")
    def _fits_its_operation(self) -> Self:
        extra = self.model_fields_set - {"op", "path"} - _TAKES[self.op]
        if extra:
            raise ValueError(f"{self.op} takes no {', '.join(sorted(extra))}")
        if self.op == "write" and self.content is None:
            raise ValueError("write needs content")
        return self


def schema_of_kept() -> dict[str, JsonValue]:
    """The JSON Schema of what can be asked where only what is kept can be read."""
    asked = Wish.schema_of_tool()["properties"]
    assert isinstance(asked, dict)
    properties: dict[str, JsonValue] = {
        "op": {"type": "string", "enum": ["read", "stat"], "description": "stat: its size only."},
        "path": {"type": "string", "description": "The blob: handle."},
        **{name: asked[name] for name in ("mode", "offset", "limit", "find")},
    }
    return {
        "type": "object",
        "properties": properties,
        "required": ["op", "path"],
        "additionalProperties": False,
    }
