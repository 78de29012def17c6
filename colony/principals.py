"""Principals: who somebody is, by the token they show. No token is kept, only its digest.

The file of tokens has a line for each: a name, the SHA-256 of the token in hex, and `operator`
where its holder may see and do everything. One name may have several tokens, so that an old one can
be given up after a new one is in use.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from colony.errors import ConfigError, Unauthorized
from colony.log import get_logger

PREFIX: Final = "clny_"
OPERATOR: Final = "operator"
LOOK_AGAIN_S: Final = 1.0

_NAME: Final = re.compile(r"[\w.@+-]{1,128}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

log = get_logger("colony.principals")


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who may ask. What an operator makes belongs to nobody else: its name is empty."""

    name: str = ""
    operator: bool = True

    @property
    def owner(self) -> str | None:
        """Whose sessions are to be found: None stands for everybody's."""
        return None if self.operator else self.name


class Principals:
    """Everybody who has a token; without any token, everybody is the operator.

    The file is read again when it has changed. One that is broken then changes nothing.
    """

    def __init__(self, *, token: str | None = None, file: Path | None = None) -> None:
        self._token = None if token is None else digest_of(token)
        self._file = file
        self._read_at = time.monotonic()
        self._state = _state(file)
        self._known = {} if file is None else dict(read(file))

    @property
    def closed(self) -> bool:
        """Whether a token is needed."""
        return self._token is not None or self._file is not None

    def who(self, token: str | None) -> Principal:
        """Whose token it is; raises Unauthorized where it is nobody's."""
        if not self.closed:
            return Principal()
        shown = digest_of(token or "")
        if self._token is not None and hmac.compare_digest(shown, self._token):
            return Principal()
        self._look_again()
        # What is looked up is a digest: how long it takes tells nothing about a token.
        found = self._known.get(shown)
        if found is None or not token:
            raise Unauthorized(detail="show a token of this colony")
        return found

    def _look_again(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._read_at < LOOK_AGAIN_S:
            return
        self._read_at = now
        state = _state(self._file)
        if state == self._state:
            return
        self._state = state
        try:
            self._known = dict(read(self._file))
        except ConfigError as error:
            log.error("tokens_unreadable", detail=str(error))


def read(file: Path) -> Iterator[tuple[str, Principal]]:
    """The digests of a file of tokens, and whose they are; raises ConfigError."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(detail=f"the tokens in {file} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, digest, *rest = [*words, ""]
        rest = [word for word in rest if word]
        if (
            not _NAME.fullmatch(name)
            or not _DIGEST.fullmatch(digest)
            or rest not in ([], [OPERATOR])
        ):
            # The line may hold a token by mistake, so it is not repeated.
            detail = f"line {number} of {file} is not NAME SHA256 [operator]"
            raise ConfigError(detail=detail)
        yield digest, Principal(name, bool(rest))


def new_token() -> str:
    """A token that nobody has."""
    return PREFIX + secrets.token_urlsafe(32)


def line_of(name: str, token: str, *, operator: bool) -> str:
    """The line of a file of tokens that lets the holder of `token` in.

    Raises ConfigError for what is no name.
    """
    if not _NAME.fullmatch(name):
        detail = f"{name!r} is no name: 1 to 128 letters, digits and any of . _ @ + -"
        raise ConfigError(detail=detail)
    return " ".join([name, digest_of(token), *([OPERATOR] if operator else [])])


def digest_of(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def _state(file: Path | None) -> tuple[int, int, int] | None:
    try:
        found = file.stat() if file is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found else None
