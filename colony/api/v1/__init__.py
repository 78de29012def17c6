"""Agents over HTTP: sessions, runs, their events, and what other clients know how to ask."""
