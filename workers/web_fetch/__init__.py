"""The cell type `web_fetch`: one URL in, the readable text of what it names out."""

from workers.web_fetch.cell import Target, WebFetch

__all__ = ["Target", "WebFetch"]
