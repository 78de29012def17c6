"""Redaction: which names hold secrets, and what is shown of their values."""

from typing import Final

REDACTED: Final = "[redacted]"

_NAMES: Final = frozenset({"api_key", "auth", "auth_ref", "token", "secret", "password"})
_ENDINGS: Final = ("_key", "_token", "_secret", "_password")


def is_secret(name: str) -> bool:
    """Whether a value called `name` is neither shown nor handed to scripts (meclaw, code cell)."""
    lowered = name.lower()
    return lowered in _NAMES or lowered.endswith(_ENDINGS)


def without_login(address: str) -> str:
    """The address of a server without the user, password and query that it may hold."""
    scheme, separator, rest = address.partition("://")
    place = rest.rpartition("@")[2].partition("?")[0].partition("#")[0]
    return scheme + separator + place
