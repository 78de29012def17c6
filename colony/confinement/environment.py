"""Environment: the variables that a foreign program is given. What is not named here is not."""

from collections.abc import Mapping

# Where programs and their libraries are, and how text, time and certificates are read.
_NAMES = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR"}
)
_BEGINNING = "LC_"


def plain_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Of the variables of a process those that a foreign program needs; none holds a secret."""
    return {
        name: value
        for name, value in inherited.items()
        if name in _NAMES or name.startswith(_BEGINNING)
    }
