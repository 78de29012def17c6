"""Servers: the protocols by which models are asked over HTTP."""
