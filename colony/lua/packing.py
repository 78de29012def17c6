"""Packing: how a script is handed more than texts and numbers."""

import msgpack


def pack(value: object) -> bytes:
    """`value` in the form that scripts unpack; they cannot read msgpack's binary type."""
    return bytes(msgpack.packb(value, use_bin_type=False))
