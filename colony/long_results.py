"""Long results: what a tool gives above the limit is put on the shelf.

The handle of a text follows from the text, so whoever shows only a part of it can name the whole.
"""

from colony.body import Element, Entry
from colony.cell import Host
from colony.envelope import Emission
from colony.results import MAX_RESULT_BYTES, SHELVED_BYTES, SHELVED_KEY, head_of, with_handle


async def shelved(emission: Emission, host: Host) -> Emission:
    """The emission, its long results shelved; one above the limit is cut, and names the whole.

    A cell that has cut a result itself has put the whole of it on the shelf before.
    """
    if SHELVED_KEY in emission.hop:
        return emission
    before = emission.body.messages or ()
    after = tuple([await _shown(element, host) for element in before])
    if after == before:
        return emission
    hop = emission.hop if _within(emission) else {**emission.hop, "truncated": True}
    return Emission(hop=hop, body=emission.body.model_copy(update={"messages": after}))


def _within(emission: Emission) -> bool:
    results = emission.body.each("tool_result")
    return all(_size(entry.text or "") <= MAX_RESULT_BYTES for entry in results)


async def _shown(element: Element, host: Host) -> Element:
    if not isinstance(element, Entry) or element.type != "tool_result" or element.text is None:
        return element
    # No character takes more than four bytes, so most texts need not be encoded to be measured.
    if len(element.text) * 4 <= SHELVED_BYTES:
        return element
    size = _size(element.text)
    if size <= SHELVED_BYTES:
        return element
    handle = await host.shelve(element.text)
    if size <= MAX_RESULT_BYTES:
        return element
    shown = with_handle(head_of(element.text, MAX_RESULT_BYTES), handle, size=size)
    return element.model_copy(update={"text": shown})


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
