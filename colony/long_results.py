"""Long results: what a tool gives above the limit is put on the shelf.

Its handle goes along in the hop, so that whoever shows only a part of it can name the whole.
"""

from collections.abc import Mapping

from pydantic import JsonValue

from colony.body import Element, Entry
from colony.cell import Host
from colony.envelope import Emission
from colony.results import (
    MAX_RESULT_BYTES,
    SHELVED_BYTES,
    SHELVED_KEY,
    handle_of,
    head_of,
    with_handle,
)


async def shelved(emission: Emission, host: Host) -> Emission:
    """The emission, its long results shelved; one above the limit is cut, and names the whole.

    A cell that has cut a result itself has put the whole of it on the shelf before.
    """
    if SHELVED_KEY in emission.hop:
        return emission
    before = emission.body.messages or ()
    # A text that is there twice is kept once.
    handles = {text: await host.shelve(text) for text in dict.fromkeys(map(_long, before)) if text}
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
    handle = handle_of(data)
    if handle not in handles:
        return result
    return result.model_copy(update={"text": with_handle(text, handle, size=len(data))})


def _long(element: Element) -> str | None:
    """The text of a result that is too long to be only where it is."""
    if not isinstance(element, Entry) or element.type != "tool_result" or element.text is None:
        return None
    # No character takes more than four bytes, so most texts need not be encoded to be measured.
    short = len(element.text) * 4 <= SHELVED_BYTES or _size(element.text) <= SHELVED_BYTES
    return None if short else element.text


def _shown(element: Element, handles: Mapping[str, str]) -> Element:
    text = _long(element)
    if text is None or (size := _size(text)) <= MAX_RESULT_BYTES:
        return element
    shown = with_handle(head_of(text, MAX_RESULT_BYTES), handles[text], size=size)
    return element.model_copy(update={"text": shown})


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
