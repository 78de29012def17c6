"""What a model may ask of an edit cell, and what that makes of a file."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from colony.errors import InvalidInput, PatternNotFound, UnexpectedMatchCount
from workers.tool_call import Arguments

# The largest file that is edited, and that an edit makes.
EDITABLE_BYTES: Final = 16 << 20

_TAKES = {
    "find_replace": {"find", "replace", "expected_matches"},
    "insert_at_line": {"line", "content"},
}
_NEEDS = {"find_replace": ("find", "replace"), "insert_at_line": ("line", "content")}


class Wish(Arguments):
    """One change of one file."""

    op: Annotated[
        Literal["find_replace", "insert_at_line"],
        Field(description="find_replace replaces every occurrence."),
    ]
    path: Annotated[str, Field(min_length=1, description="Relative to the folder.")]
    find: Annotated[str | None, Field(min_length=1, description="The exact text to find.")] = None
    replace: Annotated[str | None, Field(description="What stands there afterwards.")] = None
    expected_matches: Annotated[
        int | None, Field(ge=1, description="Change nothing unless it is found so often.")
    ] = None
    line: Annotated[
        int | None, Field(ge=1, description="Insert before this line; the first one is 1.")
    ] = None
    content: Annotated[str | None, Field(description="The lines to insert.")] = None

    @model_validator(mode="after")
    def _fits_its_operation(self) -> Self:
        extra = self.model_fields_set - {"op", "path"} - _TAKES[self.op]
        if extra:
            raise ValueError(f"{self.op} takes no {', '.join(sorted(extra))}")
        missing = [name for name in _NEEDS[self.op] if getattr(self, name) is None]
        if missing:
            raise ValueError(f"{self.op} needs {', '.join(missing)}")
        return self

    def applied_to(self, data: bytes) -> tuple[bytes, int]:
        """The file with the change in it, and in how many places; every other byte stays."""
        if self.op == "find_replace":
            return self._replaced(data)
        return self._inserted(data), 1

    def _replaced(self, data: bytes) -> tuple[bytes, int]:
        find, replace = _bytes(self.find), _bytes(self.replace)
        found = data.count(find)
        if not found:
            raise PatternNotFound(path=self.path)
        if self.expected_matches not in (None, found):
            raise UnexpectedMatchCount(path=self.path, found=found, expected=self.expected_matches)
        # Before it is made: a short text found often and replaced by a long one fills the memory.
        _bound(len(data) + found * (len(replace) - len(find)))
        return data.replace(find, replace), found

    def _inserted(self, data: bytes) -> bytes:
        lines, content = data.splitlines(keepends=True), _bytes(self.content)
        before = (self.line or 1) - 1
        if before > len(lines):
            raise InvalidInput(
                detail=f"{self.path} has {len(lines)} lines; line {self.line} is not"
            )
        if before and not lines[before - 1].endswith((b"\n", b"\r")):
            lines[before - 1] += b"\n"
        if content and not content.endswith(b"\n"):
            content += b"\n"
        _bound(len(data) + len(content))
        return b"".join([*lines[:before], content, *lines[before:]])


def _bound(size: int) -> None:
    if size > EDITABLE_BYTES:
        raise InvalidInput(detail=f"it would have {size} bytes; at most {EDITABLE_BYTES} are made")


def _bytes(text: str | None) -> bytes:
    try:
        return (text or "").encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(detail=f"the text cannot be written: {error}") from None
