"""The cell type `edit`: changes places in the files below one folder."""

from workers.edit.cell import Edit

__all__ = ["Edit"]
