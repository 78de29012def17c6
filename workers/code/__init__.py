"""The `code` cell: a Python function or a Python script as a cell."""

from workers.code.cell import Code

__all__ = ["Code"]
