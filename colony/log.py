"""Log: one line for each event, fields instead of prose, to standard error."""

import json
import logging
import sys
import time
from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar, Final, Literal

import structlog

from colony.redaction import REDACTED, is_secret

OUTAGE_EVERY_S: Final = 30.0
OUTAGE_OVER_S: Final = 3.0

LogFormat = Literal["console", "json"]

Logger = structlog.stdlib.BoundLogger

_CONSOLE: Final = "%(asctime)s %(levelname)-7s %(message)s"

_format: LogFormat = "console"


def get_logger(name: str, **fields: object) -> Logger:
    """A logger that adds `fields` to each of its lines."""
    logger: Logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.format_exc_info,
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


class Outage:
    """A server that is away: one line, however many tasks find out, and again every 30 s; one more
    when it is back."""

    _said: ClassVar[float] = -OUTAGE_EVERY_S
    _began: ClassVar[float | None] = None
    _last: ClassVar[float] = 0.0

    @classmethod
    def report(cls, logger: Logger, error: Exception) -> None:
        """Say that the server is unavailable, unless that was said a moment ago."""
        now = cls._last = time.monotonic()
        if cls._began is None:
            cls._began = now
        if now - cls._said >= OUTAGE_EVERY_S:
            cls._said = now
            logger.error("server_unavailable", detail=str(error))
        else:
            logger.debug("server_unavailable", detail=str(error))

    @classmethod
    def answered(cls, logger: Logger) -> None:
        """Say that the server is back, once nobody has found it unavailable for some seconds.

        One answer is not enough: a server that is full still reads.
        """
        now = time.monotonic()
        if cls._began is not None and now - cls._last >= OUTAGE_OVER_S:
            logger.info("server_back", away_s=round(cls._last - cls._began, 1))
            cls._began, cls._said = None, -OUTAGE_EVERY_S


def _render(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    text = str(event.pop("event", ""))
    fields = _redact(event)
    if _format == "json":
        return json.dumps({"level": method, "event": text, **fields}, default=str)
    traceback = fields.pop("exception", None)
    line = " ".join([text, *(f"{key}={_shown(value)}" for key, value in fields.items())])
    return line if traceback is None else f"{line}\n{traceback}"


def _shown(value: object) -> str:
    # What a user sent must not look like another field or another line.
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)


def _redact(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: REDACTED if is_secret(key) else value for key, value in event.items()}
