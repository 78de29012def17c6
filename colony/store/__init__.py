"""Stores: tables in Redis, changed by scripts that leave receipts."""
