"""Long results: what a tool gives above the limit is put on the shelf.

Its handle goes along in the hop, so that whoever shows only a part of it can name the whole.
"""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from colony.body import Element, Entry
from colony.envelope import Emission
from colony.host import Host
from colony.results import (
    MAX_RESULT_BYTES,
    MOST_KEPT_BYTES,
    SHELVED_BYTES,
    SHELVED_KEY,
    ends_of,
    head_of,
    read_handle,
    text_id,
    with_handle,
    within,
)


async def shelved(emission: Emission, host: Host) -> Emission:
    """The emission, its long results shelved; one above the limit is cut, and names the whole.

    Of one that is longer than anything is kept, the beginning is shelved.
    A cell that has cut a result itself has put the whole of it on the shelf before.
    """
    if SHELVED_KEY in emission.hop:
        return emission
    before = emission.body.messages or ()
    # A text that is there twice is kept once.
    kept = {
        text: within(text, MOST_KEPT_BYTES) for text in dict.fromkeys(map(_long, before)) if text
    }
    handles = {text: await host.shelve(beginning) for text, beginning in kept.items()}
    if not handles:
        return emission
    after = tuple(_shown(element, handles) for element in before)
    hop: dict[str, JsonValue] = {**emission.hop, SHELVED_KEY: [*handles.values()]}
    if after != before:
        hop["truncated"] = True
    return Emission(hop=hop, body=emission.body.model_copy(update={"messages": after}))


def named(result: Entry, hop: Mapping[str, JsonValue]) -> Entry:
    """A result with the handle of its whole text at its end, where `hop` says that it is kept.

    A result that was cut has the handle of what it was cut from already.
    """
    handles = hop.get(SHELVED_KEY)
    text = _long(result)
    if text is None or not isinstance(handles, list):
        return result
    data = text.encode(errors="replace")
    handle = _among(handles, text_id(data))
    if handle is None:
        return result
    return result.model_copy(update={"text": with_handle(text, handle, size=len(data))})


def _among(handles: Sequence[JsonValue], text: str) -> str | None:
    """The handle of a text among those of an emission."""
    for written in handles:
        named = read_handle(str(written))
        if named and named[0] == text:
            return str(written)
    return None


def _long(element: Element) -> str | None:
    """The text of a result that is too long to be only where it is."""
    if not isinstance(element, Entry) or element.type != "tool_result" or element.text is None:
        return None
    # No character takes more than four bytes, so most texts need not be encoded to be measured.
    short = len(element.text) * 4 <= SHELVED_BYTES or _size(element.text) <= SHELVED_BYTES
    return None if short else element.text


def _shown(element: Element, handles: Mapping[str, str]) -> Element:
    text = _long(element)
    if text is None or _size(text) <= MAX_RESULT_BYTES:
        return element
    kept = within(text, MOST_KEPT_BYTES).encode(errors="replace")
    ended = len(kept) == _size(text)
    part = ends_of(kept, MAX_RESULT_BYTES) if ended else head_of(text, MAX_RESULT_BYTES)
    shown = with_handle(part, handles[text], size=len(kept))
    return element.model_copy(update={"text": shown})


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
