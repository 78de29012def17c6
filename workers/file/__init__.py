"""The cell type `file`: reads, writes and lists the files below one folder."""

from workers.file.cell import File

__all__ = ["File"]
