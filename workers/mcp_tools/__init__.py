"""The cell type `mcp`: the tools of a server that speaks the Model Context Protocol."""

from workers.mcp_tools.cell import Mcp

__all__ = ["Mcp"]
