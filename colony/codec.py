"""Codec: an envelope as the two fields of a stream entry.

`head` and `body` are msgpack apart from each other, so that whoever routes reads the head alone. A
body above the inline limit travels as a reference to its blob.
"""

from typing import Any, Final

import msgpack
from pydantic import JsonValue, ValidationError

from colony.body import Body, check_nesting, explain
from colony.envelope import Head
from colony.errors import BodyError, BodyTooLarge, EnvelopeError, HeaderTooLarge

WIRE_VERSION: Final = 1
MAX_HEADER_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 10 * 1024 * 1024

_BLOB: Final = 1
_FIELDS: Final = tuple(Head.model_fields)
_TRACE: Final = 1 + _FIELDS.index("trace_id")


def encode_head(head: Head) -> bytes:
    """The head as msgpack; raises HeaderTooLarge above 64 KiB, EnvelopeError for headers that
    `decode_head` would refuse."""
    _check_headers(head.context, head.hop)
    data = encode_kept_head(head)
    if len(data) > MAX_HEADER_BYTES:
        raise HeaderTooLarge(size=len(data), limit=MAX_HEADER_BYTES)
    return data


def encode_kept_head(head: Head) -> bytes:
    """The head as msgpack, however large: a dead letter keeps even what could not be sent."""
    return pack([WIRE_VERSION, *(getattr(head, name) for name in _FIELDS)])


def decode_head(data: bytes) -> Head:
    """The head that `data` holds; raises EnvelopeError on broken bytes or an unknown version."""
    fields = unpack(data)
    if not isinstance(fields, list) or not fields:
        raise EnvelopeError(detail="a head is a list that starts with its version")
    if fields[0] != WIRE_VERSION:
        raise EnvelopeError(detail=f"unknown wire version {fields[0]!r}")
    if len(fields) != len(_FIELDS) + 1:
        raise EnvelopeError(detail=f"a head has {len(_FIELDS)} fields, not {len(fields) - 1}")
    values = dict(zip(_FIELDS, fields[1:], strict=True))
    _check_headers(values["context"], values["hop"])
    try:
        return Head.model_validate(values)
    except ValidationError as error:
        raise EnvelopeError(detail=explain(error)) from None


def trace_of(head: bytes) -> str | None:
    """The id of the trace that a head belongs to; None where it cannot be told.

    Much cheaper than `decode_head`, and nothing else of the head is looked at.
    """
    try:
        fields = unpack(head)
    except EnvelopeError:
        return None
    sound = isinstance(fields, list) and len(fields) > _TRACE and fields[0] == WIRE_VERSION
    trace_id = fields[_TRACE] if sound else None
    return trace_id if isinstance(trace_id, str) else None


def encode_body(body: Body) -> bytes:
    """The body as msgpack; raises BodyTooLarge above 10 MiB, BodyError where it nests too deep."""
    value = body.to_json()
    check_nesting(value)
    data = pack(value)
    if len(data) > MAX_BODY_BYTES:
        raise BodyTooLarge(size=len(data), limit=MAX_BODY_BYTES)
    return data


def decode_body(data: bytes) -> Body:
    """The body that `data` holds; raises EnvelopeError or BodyError where it holds none."""
    return Body.parse(unpack(data))


def encode_blob_reference(blob_id: str) -> bytes:
    """What travels in place of a body that lies in blob `blob_id`."""
    return pack(msgpack.ExtType(_BLOB, blob_id.encode()))


def blob_reference(data: bytes) -> str | None:
    """The id of the blob that `data` refers to, or None if it is a body itself.

    Raises EnvelopeError on broken bytes.
    """
    # Every body is a msgpack map, whose first byte no extension type has.
    if data[:1] in (b"\xc7", b"\xc8", b"\xc9", b"\xd4", b"\xd5", b"\xd6", b"\xd7", b"\xd8"):
        found = unpack(data)
        if isinstance(found, msgpack.ExtType) and found.code == _BLOB:
            return _blob_id(found.data)
    return None


def pack(value: JsonValue | msgpack.ExtType | list[Any]) -> bytes:
    """`value` as msgpack; raises EnvelopeError for what has no such form."""
    try:
        return msgpack.packb(value)  # type: ignore[no-any-return]
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError) as error:
        raise EnvelopeError(detail=f"cannot be encoded: {error}") from None


def unpack(data: bytes) -> Any:
    """The value that msgpack `data` holds; raises EnvelopeError where it holds none."""
    try:
        return msgpack.unpackb(data, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise EnvelopeError(detail=f"broken msgpack: {reason}") from None


def length_of(data: bytes) -> int:
    """How many elements the msgpack array `data` has; raises EnvelopeError where it is none."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    try:
        return int(unpacker.read_array_header())
    except (ValueError, msgpack.UnpackException) as error:
        raise EnvelopeError(detail=f"no msgpack array: {error}") from None


def _check_headers(context: JsonValue, hop: JsonValue) -> None:
    try:
        check_nesting([context, hop])
    except BodyError as error:
        raise EnvelopeError(detail=f"the headers are {error}") from None


def _blob_id(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise EnvelopeError(detail=f"broken blob reference: {error}") from None
