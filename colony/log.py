"""Log: one line for each event, fields instead of prose, to standard error."""

import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal

import structlog

from colony.redaction import REDACTED, is_secret

LogFormat = Literal["console", "json"]

Logger = structlog.stdlib.BoundLogger

_format: LogFormat = "console"


def get_logger(name: str, **fields: object) -> Logger:
    """A logger that adds `fields` to each of its lines."""
    logger: Logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            _render,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger.bind(**fields)


def configure(level: str = "info", log_format: LogFormat = "console") -> None:
    """Send the lines of colony at or above `level` to standard error, in this format."""
    global _format
    _format = log_format
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s" if log_format == "json" else _CONSOLE))
    for name in ("colony", "workers"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False


_CONSOLE = "%(asctime)s %(levelname)-7s %(message)s"


def _render(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    text = str(event.pop("event", ""))
    fields = _redact(event)
    if _format == "json":
        return json.dumps({"level": method, "event": text, **fields}, default=str)
    return " ".join([text, *(f"{key}={value}" for key, value in fields.items())])


def _redact(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: REDACTED if is_secret(key) else value for key, value in event.items()}
