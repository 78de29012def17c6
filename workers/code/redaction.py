"""Redaction: what is left of params and environment for a script, without their secrets."""

from collections.abc import Mapping

from pydantic import JsonValue

from colony.redaction import is_secret

_OURS = "COLONY_"


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
