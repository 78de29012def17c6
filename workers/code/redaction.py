"""Redaction: which names hold secrets, and what is left of params and environment without them."""

from collections.abc import Mapping

from pydantic import JsonValue

_NAMES = frozenset({"api_key", "auth", "auth_ref", "token", "secret", "password"})
_ENDINGS = ("_key", "_token", "_secret", "_password")
_OURS = "COLONY_"


def is_secret(name: str) -> bool:
    """Whether a value called `name` is kept from scripts (meclaw, code cell)."""
    lowered = name.lower()
    return lowered in _NAMES or lowered.endswith(_ENDINGS)


def without_secrets(value: JsonValue) -> JsonValue:
    """`value` without the keys that hold secrets, at every depth."""
    if isinstance(value, dict):
        return {
            name: without_secrets(inner) for name, inner in value.items() if not is_secret(name)
        }
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return value


def public_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment a script inherits: no secrets, and nothing of ours, whose URLs hold some."""
    return {
        name: value
        for name, value in environment.items()
        if not is_secret(name) and not name.startswith(_OURS)
    }
