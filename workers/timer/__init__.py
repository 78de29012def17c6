"""The cell type `timer`: envelopes at times that were set before."""

from workers.timer.cell import Timer

__all__ = ["Timer"]
