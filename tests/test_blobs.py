"""Blobs: what is large travels as a reference, and a cell never knows."""

from collections.abc import AsyncIterator

import pytest

from colony.blobs import UNREFERENCED_MS, Blobs
from colony.body import Body, Entry
from colony.codec import blob_reference, encode_blob_reference, encode_body, pack
from colony.errors import (
    BlobRecursionTooDeep,
    BlobUnavailable,
    BodyError,
    EnvelopeError,
    ServerUnavailable,
)
from colony.keys import Keys
from colony.link import Link

KEYS = Keys("test")
SAID = Entry.say("user", "hello").model_dump(mode="json", exclude_none=True)


@pytest.fixture
async def blobs(redis_url: str) -> AsyncIterator[Blobs]:
    link = Link(redis_url)
    yield Blobs(link, KEYS, inline_max_bytes=1000, max_recursion=4)
    await link.close()


def body_of(size: int) -> bytes:
    """A body of exactly so many bytes."""
    filler = size - len(encode_body(Body.of(Entry.say("user", "x" * 500)))) + 500
    data = encode_body(Body.of(Entry.say("user", "x" * filler)))
    assert len(data) == size
    return data


async def expiry(blobs: Blobs, blob_id: str) -> int:
    return int(await blobs.link.command("PTTL", KEYS.blob(blob_id)))


async def pointing(blobs: Blobs, pointer: str, blob_id: str) -> Body:
    return await blobs.open(pack({"messages": [{f"{pointer}_id": blob_id}]}))


async def test_a_body_below_the_limit_stays_and_one_at_the_limit_travels_as_a_reference(
    blobs: Blobs,
) -> None:
    assert await blobs.offload(body_of(999), "t") == (body_of(999), None)

    travelling, blob = await blobs.offload(body_of(1000), "t")

    assert blob is not None
    assert blob_reference(travelling) == blob
    assert await blobs.get(blob) == body_of(1000)
    assert 0 < await expiry(blobs, blob) <= UNREFERENCED_MS


async def test_the_default_limit_is_64_kib_inclusive(blobs: Blobs) -> None:
    default = Blobs(blobs.link, KEYS)

    assert (await default.offload(body_of(65_535), "t"))[1] is None
    assert (await default.offload(body_of(65_536), "t"))[1] is not None


async def test_a_reference_travels_on_as_it_is(blobs: Blobs) -> None:
    reference = encode_blob_reference("known")

    assert await blobs.offload(reference, "t") == (reference, "known")


async def test_the_same_body_twice_is_one_blob_for_each_trace(blobs: Blobs) -> None:
    ids = [(await blobs.offload(body_of(1000), trace))[1] for trace in "aab"]

    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("name", ["offload", "admit"])
async def test_writing_a_blob_again_does_not_let_it_expire(blobs: Blobs, name: str) -> None:
    """Else a late handle would take away what a living trace needs."""
    _, blob = await blobs.offload(body_of(1000), "t")
    await blobs.link.command("PERSIST", KEYS.blob(str(blob)))

    assert (await getattr(blobs, name)(body_of(1000), "t"))[1] == blob

    assert await expiry(blobs, str(blob)) == -1


@pytest.mark.parametrize("name", ["offload", "admit"])
async def test_writing_a_blob_again_lets_it_live_as_long_as_a_new_one(
    blobs: Blobs, name: str
) -> None:
    _, blob = await blobs.offload(body_of(1000), "t")
    await blobs.link.command("PEXPIRE", KEYS.blob(str(blob)), 1000)

    await getattr(blobs, name)(body_of(1000), "t")

    assert await expiry(blobs, str(blob)) > 1000


async def test_a_cell_sees_the_body_and_never_the_reference(blobs: Blobs) -> None:
    travelling, _ = await blobs.offload(body_of(2000), "t")

    assert encode_body(await blobs.open(travelling)) == body_of(2000)
    assert await blobs.inline(travelling) == body_of(2000)
    assert await blobs.inline(body_of(999)) == body_of(999)


async def test_a_blob_that_is_gone_is_unavailable(blobs: Blobs) -> None:
    gone = encode_blob_reference("gone")

    with pytest.raises(BlobUnavailable):
        await blobs.open(gone)
    assert await blobs.inline(gone) == gone
    assert await blobs.inline(b"\xc7\xff") == b"\xc7\xff"


async def test_pointers_are_replaced_by_what_they_name(blobs: Blobs) -> None:
    await blobs.put("one", pack(SAID))
    await blobs.put("many", pack([SAID, {"text_id": "one"}, SAID]))

    assert len((await pointing(blobs, "text", "one")).entries) == 1
    opened = await pointing(blobs, "messages", "many")
    assert [entry.text for entry in opened.entries] == ["hello"] * 3


async def test_pointers_in_a_circle_or_too_deep_are_refused(blobs: Blobs) -> None:
    await blobs.put("a", pack({"text_id": "b"}))
    await blobs.put("b", pack({"text_id": "a"}))
    for n in range(5):
        await blobs.put(f"d{n}", pack({"text_id": f"d{n + 1}"}))
    await blobs.put("d5", pack(SAID))

    with pytest.raises(BlobRecursionTooDeep):
        await pointing(blobs, "text", "a")
    with pytest.raises(BlobRecursionTooDeep):
        await pointing(blobs, "text", "d0")
    assert len((await pointing(blobs, "text", "d2")).entries) == 1


async def test_a_pointer_to_nothing_or_to_no_message_is_refused(blobs: Blobs) -> None:
    await blobs.put("broken", b"\xc1")
    await blobs.put("other", pack({"type": "nonsense"}))

    with pytest.raises(BlobUnavailable):
        await pointing(blobs, "text", "gone")
    with pytest.raises(EnvelopeError):
        await pointing(blobs, "text", "broken")
    with pytest.raises(BodyError):
        await pointing(blobs, "text", "other")


async def test_a_full_server_takes_the_body_of_a_commit_and_none_of_a_birth(blobs: Blobs) -> None:
    await blobs.link.command("CONFIG", "SET", "maxmemory", 1)
    try:
        _, blob = await blobs.offload(body_of(2000), "t")
        assert await blobs.get(str(blob)) == body_of(2000)
        with pytest.raises(ServerUnavailable):
            await blobs.admit(body_of(2001), "t")
    finally:
        await blobs.link.command("CONFIG", "SET", "maxmemory", 0)
