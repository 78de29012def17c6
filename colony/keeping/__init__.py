"""Keeping: what sees to it that nothing stays quiet, waits, or is kept for ever."""
