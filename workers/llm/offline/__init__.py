"""Offline: models that need no server and no key."""
