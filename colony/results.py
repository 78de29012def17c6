"""Results: what stands for the result of a tool that gave none, and how large one may be."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from colony.body import Element, Entry
from colony.envelope import Emission

MAX_RESULT_BYTES = 256 * 1024

# What is longer is kept whole beside the message: a model may be shown less of it than there is.
SHELVED_BYTES = 16 * 1024

# How much is kept of one text: where nothing else is said, and at most.
KEPT_BYTES = 8 << 20
MOST_KEPT_BYTES = 64 << 20

# So much of a text that is kept whole is its end where only a part is shown, if that has room for
# it: what a command complains of stands there, and what a document comes to.
_END_BYTES = 4 * 1024
_LEAST_WITH_END = 4 * _END_BYTES

# The hop key with the handles of what an emission's results are kept under whole.
SHELVED_KEY = "shelved"

_HANDLE = "blob:"
# The digest of a text, and the trace that keeps it.
_NAMED = r"blob:(?P<digest>[0-9a-f]{32})@(?P<trace>[0-9A-Za-z._-]{1,64})"
_WRITTEN = re.compile(rf"{_NAMED}\Z")
# In a sentence: the point that may end it is none of the trace's.
_MENTIONED = re.compile(r"blob:[0-9a-f]{32}@[0-9A-Za-z._-]{0,63}[0-9A-Za-z_-]")
_KEPT = re.compile(rf"\n\[kept: (?P<size>[0-9]{{1,15}}) bytes at (?P<handle>{_NAMED})\]\Z")

# A tool that has cut its text to the limit itself is let through with the marks it has set.
_MARK_ROOM = 192


def failed_result(tool: str, code: str, problems: Mapping[str, str]) -> Emission:
    """An error under the id of each call in `problems`, with the same code for the edges."""
    results = [
        Entry.result(call_id, f"{code}: {problem}", is_error=True)
        for call_id, problem in problems.items()
    ]
    return Emission.of(*results, operation=tool, finish_reason="error", error_code=code)


def failed_handle(code: str, problem: str, call_id: str) -> Emission:
    """An error of a cell that is no tool, under the id of the call it was given, if any."""
    entry = Entry.result(call_id, f"{code}: {problem}", is_error=True)
    return Emission.of(entry, finish_reason="error", error_code=code)


def head_of(text: str, max_bytes: int, *, size: int | None = None) -> str:
    """`text`, or at most its first `max_bytes` bytes and a mark that says how many there were.

    `size` is that of the whole where `text` is only its beginning.
    """
    data = text.encode(errors="replace")
    whole = len(data) if size is None else size
    if whole == len(data) <= max_bytes:
        return data.decode()
    head = data[:max_bytes].decode(errors="ignore")
    return f"{head}… [truncated, {whole} bytes total]"


def ends_of(data: bytes, max_bytes: int) -> str:
    """As `head_of`, and behind the mark the end of `data` instead of as much of its head."""
    if len(data) <= max_bytes or max_bytes < _LEAST_WITH_END:
        return head_of(data.decode(errors="ignore"), max_bytes, size=len(data))
    head = data[: max_bytes - _END_BYTES].decode(errors="ignore")
    end = data[-_END_BYTES:].decode(errors="ignore")
    return f"{head_of(head, max_bytes, size=len(data))}\n{end}"


def within(text: str, max_bytes: int) -> str:
    """`text`, or its first `max_bytes` bytes at most, up to where a character ends."""
    # No character takes more than four bytes, so most texts need not be encoded to be measured.
    if len(text) * 4 <= max_bytes:
        return text
    data = text.encode(errors="replace")
    return text if len(data) <= max_bytes else data[:max_bytes].decode(errors="ignore")


def text_id(data: bytes) -> str:
    """What names a text among those of one trace; the same text has the same one."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def handle_of(data: bytes, trace_id: str) -> str:
    """The handle of a text that a trace keeps whole."""
    return f"{_HANDLE}{text_id(data)}@{trace_id}"


def read_handle(written: str) -> tuple[str, str] | None:
    """The `text_id` and the trace that a handle names; None for what is no handle."""
    found = _WRITTEN.match(written)
    return (found["digest"], found["trace"]) if found else None


def is_handle(written: str) -> bool:
    """Whether a path is meant as the handle of a text that is kept whole."""
    return written.startswith(_HANDLE)


def handles_in(text: str) -> list[str]:
    """The handles that a text names, in their order."""
    return _MENTIONED.findall(text)


def with_handle(text: str, handle: str, *, size: int) -> str:
    """What is shown of a text, and the handle under which `size` bytes of it are kept."""
    return f"{text}\n[kept: {size} bytes at {handle}]"


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a text is kept whole, and how many bytes it has there."""

    handle: str
    size: int


def kept_at(text: str) -> Kept | None:
    """What stands at the end of a text that `with_handle` made."""
    found = _KEPT.search(text)
    return Kept(found["handle"], int(found["size"])) if found else None


def bounded(emission: Emission) -> Emission:
    """The emission, each of its results cut to `MAX_RESULT_BYTES`; `hop.truncated` tells of it."""
    messages = emission.body.messages or ()
    cut = tuple(_cut(element) for element in messages)
    if all(after is before for after, before in zip(cut, messages, strict=True)):
        return emission
    body = emission.body.model_copy(update={"messages": cut})
    return Emission(hop={**emission.hop, "truncated": True}, body=body)


def _cut(element: Element) -> Element:
    if not isinstance(element, Entry) or element.type != "tool_result" or element.text is None:
        return element
    # No character takes more than four bytes, so most texts need not be encoded to be measured.
    if len(element.text) * 4 <= MAX_RESULT_BYTES:
        return element
    if len(element.text.encode(errors="replace")) <= MAX_RESULT_BYTES + _MARK_ROOM:
        return element
    return element.model_copy(update={"text": head_of(element.text, MAX_RESULT_BYTES)})
