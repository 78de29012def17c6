"""Redaction: what is left of the params of a cell for a script, without their secrets."""

from pydantic import JsonValue

from colony.redaction import is_secret


def without_secrets(value: JsonValue) -> JsonValue:
    """`value` without the keys that hold secrets, at every depth."""
    if isinstance(value, dict):
        return {
            name: without_secrets(inner) for name, inner in value.items() if not is_secret(name)
        }
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return value
