"""The cell type `web_search`: an HTTP endpoint or a folder of documents, asked a query."""

from workers.web_search.cell import Query, WebSearch

__all__ = ["Query", "WebSearch"]
