"""Extras: providers whose library is installed only where somebody asked for it."""

from importlib.util import find_spec

from pydantic import JsonValue

NO_ANTHROPIC = (
    "provider anthropic needs the extra of that name: pip install -e '.[anthropic]' in a checkout"
)


def missing_extra(provider: JsonValue) -> bool:
    """Whether the library of a provider is not installed here."""
    return provider == "anthropic" and find_spec("anthropic") is None
