"""Codec: what is written is read back, and whatever else is read ends as an EnvelopeError."""

import math
from functools import reduce
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colony.body import Body, Entry
from colony.codec import (
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    WIRE_VERSION,
    blob_reference,
    decode_body,
    decode_head,
    encode_blob_reference,
    encode_body,
    encode_head,
    encode_kept_head,
    pack,
    unpack,
)
from colony.envelope import MAX_TTL, Head
from colony.errors import BodyError, BodyTooLarge, EnvelopeError, HeaderTooLarge

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
HEADERS = st.dictionaries(TEXT, JSON, max_size=4)
HEADS = st.builds(
    Head,
    id=TEXT,
    trace_id=TEXT,
    target=st.none() | TEXT,
    ttl=st.integers(0, MAX_TTL),
    parent_message_id=st.none() | TEXT,
    correlation_id=st.none() | TEXT,
    sender=TEXT,
    reply_to=st.none() | TEXT,
    context=HEADERS,
    hop=HEADERS,
    created_at=st.integers(0, 2**62),
    session=st.none() | TEXT,
)
ENTRIES = st.builds(Entry.say, st.sampled_from(["user", "assistant", "tool", "system"]), TEXT)
BODIES = st.builds(
    lambda messages, system, extra: Body.parse(
        {**extra, "system": system, "messages": [entry.to_json() for entry in messages]}
    ),
    st.lists(ENTRIES, max_size=3),
    HEADERS,
    HEADERS.map(lambda slots: {f"x{name}": value for name, value in slots.items()}),
)
HEAD = Head(
    id="m-1",
    trace_id="t-1",
    target="/store",
    ttl=64,
    parent_message_id="m-0",
    reply_to="/collector",
    context={"turn_id": "q-1", "iter": 2},
    hop={"route": "cstore", "ids": ["a", "b"], "ratio": 0.5},
)
BODY = Body.parse(
    {
        "messages": [{"origin": "tool", "type": "tool_result", "id": "c-1", "text": "žluťoučký"}],
        "params": {"rows": [1, 2.5, None, True, {}], "big": 2**63},
    }
)


def nested(levels: int) -> Any:
    innermost: Any = {}
    return reduce(lambda inner, _: {"x": inner}, range(levels - 1), innermost)


def written(**fields: object) -> bytes:
    """A head with these fields instead of its own, however wrong they are."""
    values = [fields.get(name, getattr(HEAD, name)) for name in Head.model_fields]
    return bytes(msgpack.packb([WIRE_VERSION, *values]))


def same(one: object, other: object) -> bool:
    """Whether two values are equal in type as well: 1, 1.0 and True are three."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


# What is written is read back


@given(HEADS)
def test_a_head_is_read_as_it_was_written(head: Head) -> None:
    again = decode_head(encode_head(head))

    assert again == head
    assert same(again.context, head.context)
    assert same(again.hop, head.hop)


@given(BODIES)
def test_a_body_is_read_as_it_was_written(body: Body) -> None:
    again = decode_body(encode_body(body))

    assert again == body
    assert same(again.to_json(), body.to_json())


@pytest.mark.parametrize(
    "value",
    [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**64 - 1, 1.0, -0.0, 1e308, True, 1, None, [],
     {}, "", [{}], {"": []}, "\x00", "𝄞 é \u0301", "9007199254740993"],
)  # fmt: skip
def test_a_value_keeps_its_type_and_its_last_digit(value: Any) -> None:
    head = HEAD.model_copy(update={"context": {"k": value}})
    body = Body.parse({"messages": [], "k": value})

    assert same(decode_head(encode_head(head)).context["k"], value)
    assert same(decode_body(encode_body(body)).to_json()["k"], value)


def test_an_absent_slot_stays_absent_and_an_empty_one_empty() -> None:
    assert decode_body(encode_body(Body(messages=()))).to_json() == {"messages": ()}
    assert decode_body(encode_body(Body(system={}))).to_json() == {"system": {}}


def test_writing_is_deterministic() -> None:
    assert encode_head(HEAD) == encode_head(HEAD.model_copy())
    assert encode_body(BODY) == encode_body(BODY.model_copy())


def test_the_head_is_written_without_the_body() -> None:
    assert "body" not in Head.model_fields
    assert unpack(encode_head(HEAD))[0] == WIRE_VERSION == 1


# What cannot be written


@pytest.mark.parametrize("value", ["\ud800", ["\udfff"], {"\ud800": 1}, 2**64, -(2**63) - 1])
def test_what_has_no_form_on_the_wire_is_refused(value: Any) -> None:
    """Lone surrogates are no text, and an integer has at most 64 bits."""
    with pytest.raises(EnvelopeError, match="cannot be encoded"):
        encode_head(HEAD.model_copy(update={"hop": {"k": value}}))
    with pytest.raises(EnvelopeError, match="cannot be encoded"):
        encode_body(Body(messages=(), k=value))  # type: ignore[call-arg]


def test_headers_up_to_64_kib_are_written() -> None:
    frame = len(encode_head(HEAD.model_copy(update={"hop": {"k": "x" * 60_000}}))) - 60_000
    fits = HEAD.model_copy(update={"hop": {"k": "x" * (MAX_HEADER_BYTES - frame)}})
    over = HEAD.model_copy(update={"hop": {"k": "x" * (MAX_HEADER_BYTES - frame + 1)}})

    assert len(encode_head(fits)) == MAX_HEADER_BYTES == 65_536
    with pytest.raises(HeaderTooLarge) as caught:
        encode_head(over)
    assert caught.value.code == "header_too_large"


def test_a_body_up_to_10_mib_is_written() -> None:
    frame = len(encode_body(Body(messages=(), k="x" * 70_000))) - 70_000  # type: ignore[call-arg]
    fits = Body(messages=(), k="x" * (MAX_BODY_BYTES - frame))  # type: ignore[call-arg]
    over = Body(messages=(), k="x" * (MAX_BODY_BYTES - frame + 1))  # type: ignore[call-arg]

    assert len(encode_body(fits)) == MAX_BODY_BYTES == 10_485_760
    with pytest.raises(BodyTooLarge) as caught:
        encode_body(over)
    assert caught.value.code == "body_too_large"


def test_headers_that_could_not_be_read_again_are_not_written() -> None:
    """Edges may nest headers deeper at every hop; the reader must not be the first to notice."""
    fits = HEAD.model_copy(update={"context": nested(64)})

    assert decode_head(encode_head(fits)) == fits
    with pytest.raises(EnvelopeError, match="the headers are nested deeper than 64"):
        encode_head(HEAD.model_copy(update={"context": nested(65)}))


def test_a_body_that_nests_too_deep_is_not_written() -> None:
    deep = Body(messages=(), k=nested(65))  # type: ignore[call-arg]

    with pytest.raises(BodyError, match="nested deeper than 64"):
        encode_body(deep)


@pytest.mark.parametrize("context", [{"k": "x" * 100_000}, nested(70)])
def test_a_dead_letter_keeps_a_head_that_could_not_be_sent(context: Any) -> None:
    head = HEAD.model_copy(update={"context": context})

    assert unpack(encode_kept_head(head))[1 + [*Head.model_fields].index("context")] == context


# What is read and is nothing


@pytest.mark.parametrize("length", range(len(encode_head(HEAD))))
def test_a_truncated_head_is_an_envelope_error(length: int) -> None:
    with pytest.raises(EnvelopeError):
        decode_head(encode_head(HEAD)[:length])


@pytest.mark.parametrize("length", range(len(encode_body(BODY))))
def test_a_truncated_body_is_an_envelope_error(length: int) -> None:
    with pytest.raises(EnvelopeError):
        decode_body(encode_body(BODY)[:length])


@given(st.binary(max_size=60))
@settings(max_examples=400)
def test_noise_is_an_envelope_or_body_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(EnvelopeError):
        decode_head(data)
    with pytest.raises((EnvelopeError, BodyError)):
        decode_body(data)


@given(st.integers(0, len(encode_head(HEAD)) - 1), st.integers(0, 255))
@settings(max_examples=400)
def test_a_flipped_byte_is_another_head_or_an_envelope_error(place: int, byte: int) -> None:
    data = bytearray(encode_head(HEAD))
    data[place] = byte
    try:
        head = decode_head(bytes(data))
    except EnvelopeError:
        return

    assert decode_head(encode_head(head)) == head


@given(st.integers(0, len(encode_body(BODY)) - 1), st.integers(0, 255))
@settings(max_examples=400)
def test_a_flipped_byte_is_another_body_or_an_error(place: int, byte: int) -> None:
    data = bytearray(encode_body(BODY))
    data[place] = byte
    try:
        body = decode_body(bytes(data))
    except (EnvelopeError, BodyError):
        return

    assert decode_body(encode_body(body)) == body


@given(st.binary(max_size=20))
def test_noise_behind_an_extension_is_a_reference_or_an_envelope_error(data: bytes) -> None:
    for first in (0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8):
        try:
            found = blob_reference(bytes([first]) + data)
        except EnvelopeError:
            continue
        assert found is None or found.encode() in data


@pytest.mark.parametrize("version", [0, 2, 255, -1, "1", None, 1.5, [1]])
def test_an_unknown_wire_version_is_refused_by_name(version: Any) -> None:
    data = msgpack.packb([version, *unpack(encode_head(HEAD))[1:]])

    with pytest.raises(EnvelopeError, match="unknown wire version"):
        decode_head(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        msgpack.packb(None),
        msgpack.packb([]),
        msgpack.packb([1]),
        msgpack.packb({"version": 1}),
        encode_head(HEAD) + b"\x00",
        msgpack.packb([*unpack(encode_head(HEAD)), "one more"]),
        msgpack.packb(unpack(encode_head(HEAD))[:-1]),
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x81\x90\x90",
        b"\xc7\x03\xffabc",
        b"\xc1",
    ],
)
def test_what_is_no_head_is_an_envelope_error_that_says_why(data: bytes) -> None:
    with pytest.raises(EnvelopeError) as caught:
        decode_head(data)

    assert caught.value.code == "envelope_invalid"
    assert not str(caught.value).endswith(": ")


@pytest.mark.parametrize(
    "fields",
    [
        {"id": b"m-1"},
        {"id": None},
        {"trace_id": 5},
        {"target": ["/a"]},
        {"ttl": -1},
        {"ttl": MAX_TTL + 1},
        {"ttl": 1.0},
        {"ttl": True},
        {"ttl": "64"},
        {"context": None},
        {"context": []},
        {"context": "x"},
        {"context": {"k": b"bytes"}},
        {"context": {"k": math.nan}},
        {"context": {"k": msgpack.Timestamp(1, 2)}},
        {"hop": {"k": msgpack.ExtType(5, b"x")}},
        {"hop": {"k": nested(65)}},
        {"hop": {1: 2}},
        {"created_at": "now"},
        {"session": 3},
    ],
)
def test_a_head_with_a_field_of_another_type_is_an_envelope_error(fields: dict[str, Any]) -> None:
    with pytest.raises(EnvelopeError):
        decode_head(written(**fields))


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        msgpack.Timestamp(1, 2),
        msgpack.ExtType(1, b"blob-1"),
        msgpack.ExtType(5, b"x"),
        math.nan,
        math.inf,
        {1: 2},
        nested(65),
    ],
)
def test_a_body_holds_nothing_that_json_does_not_have(value: Any) -> None:
    for body in ({"messages": [], "k": value}, {"system": {"k": [value]}}, {"messages": [value]}):
        with pytest.raises((BodyError, EnvelopeError)):
            decode_body(msgpack.packb(body))


@pytest.mark.parametrize("value", [None, [], "text", 3, {"foo": 1}, {}, b"bytes"])
def test_msgpack_that_is_no_body_is_a_body_error(value: Any) -> None:
    with pytest.raises(BodyError) as caught:
        decode_body(msgpack.packb(value))

    assert caught.value.code == "invalid_ubf_body"


# Blob references


@given(TEXT)
def test_a_reference_is_read_as_it_was_written(blob_id: str) -> None:
    reference = encode_blob_reference(blob_id)

    assert blob_reference(reference) == blob_id
    with pytest.raises(BodyError):
        decode_body(reference)


@given(BODIES)
def test_a_body_is_no_reference(body: Body) -> None:
    assert blob_reference(encode_body(body)) is None


@pytest.mark.parametrize(
    "data", [b"", b"x", pack(msgpack.ExtType(2, b"blob-1")), pack("blob-1"), pack(None)]
)
def test_what_is_no_reference_refers_to_nothing(data: bytes) -> None:
    assert blob_reference(data) is None


@pytest.mark.parametrize("length", range(1, len(encode_blob_reference("blob-1"))))
def test_a_truncated_reference_is_an_envelope_error(length: int) -> None:
    with pytest.raises(EnvelopeError):
        blob_reference(encode_blob_reference("blob-1")[:length])


def test_a_reference_that_is_no_text_is_an_envelope_error() -> None:
    with pytest.raises(EnvelopeError, match="broken blob reference"):
        blob_reference(pack(msgpack.ExtType(1, b"\xff\xfe")))
