"""Results: what stands for the result of a tool that gave none, and how large one may be."""

import hashlib
from collections.abc import Mapping

from colony.body import Element, Entry
from colony.envelope import Emission

MAX_RESULT_BYTES = 256 * 1024

# What is longer is kept whole beside the message: a model may be shown less of it than there is.
SHELVED_BYTES = 16 * 1024

# The hop key with the handles of what an emission's results are kept under whole.
SHELVED_KEY = "shelved"

_HANDLE = "blob:"

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


def handle_of(data: bytes) -> str:
    """The handle of a text that is kept whole; the same text has the same one."""
    return _HANDLE + hashlib.blake2b(data, digest_size=16).hexdigest()


def is_handle(written: str) -> bool:
    """Whether a path is the handle of a text that is kept whole."""
    return written.startswith(_HANDLE)


def with_handle(text: str, handle: str, *, size: int) -> str:
    """What is shown of a text, and the handle under which `size` bytes of it are kept."""
    return f"{text}\n[kept: {size} bytes at {handle}]"


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
