"""The cell type `proxy`: a messaging platform's users in, answers to them out."""

from workers.proxy.cell import Proxy

__all__ = ["Proxy"]
