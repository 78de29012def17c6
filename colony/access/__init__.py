"""What a client of a colony may ask: admit, wait, follow, look."""

from colony.access.client import Access, promptly

__all__ = ["Access", "promptly"]
