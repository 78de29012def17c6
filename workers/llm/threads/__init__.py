"""Threads: entries as a provider takes them, each call with its one result."""
