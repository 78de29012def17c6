"""Cells, hives and edges: read, judged, compiled."""
