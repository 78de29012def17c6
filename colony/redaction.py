"""Redaction: which names hold secrets, and what is shown of their values."""

from collections.abc import Iterable
from typing import Final

REDACTED: Final = "[redacted]"

_SHORTEST: Final = 6

_NAMES: Final = frozenset({"api_key", "auth", "auth_ref", "token", "secret", "password"})
_ENDINGS: Final = ("_key", "_token", "_secret", "_password")


def is_secret(name: str) -> bool:
    """Whether a value called `name` is neither shown nor handed to scripts (meclaw, code cell)."""
    lowered = name.lower()
    return lowered in _NAMES or lowered.endswith(_ENDINGS)


def without_values(text: str, secrets: Iterable[str]) -> str:
    """`text` without the values of secrets that it repeats.

    One of a few letters is part of other words, and not looked for.
    """
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, REDACTED)
    return text


def without_login(address: str) -> str:
    """The address of a server without the user, password and query that it may hold."""
    scheme, separator, rest = address.partition("://")
    place = rest.rpartition("@")[2].partition("?")[0].partition("#")[0]
    return scheme + separator + place
