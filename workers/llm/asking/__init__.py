"""Asking: how often a model is asked the same, when it may be, and who hears it."""
