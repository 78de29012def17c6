"""The embedded server: a Redis of colony's own, for a laptop, a demo and the tests."""

from colony.embedded.binary import find_binary, packaged_binary
from colony.embedded.server import EmbeddedServer, Fsync, url_in

__all__ = ["EmbeddedServer", "Fsync", "find_binary", "packaged_binary", "url_in"]
