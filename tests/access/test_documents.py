"""Documents: what is kept whole is read by its handle, whichever question and session made it."""

from collections.abc import AsyncIterator

import pytest

from colony.access import Access
from colony.body import Body, Entry
from colony.envelope import digest
from colony.errors import DocumentNotFound
from colony.results import handle_of
from colony.shelf import Shelf

TEXT = "".join(f"{n:06d}é" for n in range(300_000)).encode()


@pytest.fixture
async def access(redis_url: str) -> AsyncIterator[Access]:
    async with Access(redis_url, "documents") as access:
        yield access


async def shelve(access: Access, data: bytes, *, session: str = "") -> str:
    """The handle of a text that a trace of a session has kept."""
    birth = await access.traces.birth("/a", Body.of(Entry.say("user", "x")), ttl=9)
    named = digest(session) if session else ""
    shelf = Shelf(access.link, access.keys, birth.trace_id, session=named, server=None)
    handle, key = await shelf.put(data)
    await access.link.command("SADD", access.keys.belongings(birth.trace_id), key, "another")
    return handle


@pytest.mark.parametrize("session", ["", "me"])
async def test_a_document_is_read_whole_and_in_ranges(access: Access, session: str) -> None:
    found = await access.documents.find(await shelve(access, TEXT, session=session))

    assert found.size == len(TEXT)
    assert await access.documents.read(found, offset=0, limit=len(TEXT) + 1) == TEXT
    assert await access.documents.read(found, offset=7, limit=3) == TEXT[7:10]
    assert await access.documents.read(found, offset=len(TEXT), limit=3) == b""
    assert await access.documents.read(found, offset=2**63 - 1, limit=3) == b""


async def test_what_is_not_kept_is_refused(access: Access) -> None:
    handle = await shelve(access, b"kept")
    trace_id = handle.partition("@")[2]

    for wrong in ("", "blob:x", handle + " ", handle_of(b"other", trace_id), handle + "x"):
        with pytest.raises(DocumentNotFound):
            await access.documents.find(wrong)
    named = access.keys.shelved(trace_id, "", handle[5:37])
    assert await access.link.command("DEL", named) == 1
    with pytest.raises(DocumentNotFound, match="retention of it is over"):
        await access.documents.find(handle)


async def test_what_no_commit_kept_is_no_document(access: Access) -> None:
    handle = await shelve(access, b"kept")
    trace_id = handle.partition("@")[2]
    shelf = Shelf(access.link, access.keys, trace_id, session="", server=None)

    uncommitted, _ = await shelf.put(b"uncommitted")

    assert (await access.documents.find(handle)).size == 4
    with pytest.raises(DocumentNotFound):
        await access.documents.find(uncommitted)
