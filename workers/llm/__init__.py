"""The `llm` cell: one model call for each envelope, by one of several providers."""

from workers.llm.cell import Llm

__all__ = ["Llm"]
