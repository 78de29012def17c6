"""Runs: the sessions of agents in Redis, and every transition of them."""

from colony.runs.runs import Runs
from colony.runs.sessions import AgentSessions

__all__ = ["AgentSessions", "Runs"]
