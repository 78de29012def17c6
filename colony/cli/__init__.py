"""The `colony` command."""

from colony.cli.group import main

__all__ = ["main"]
