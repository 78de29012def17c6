"""Agents: what a session, a run and its events are. No Redis in sight."""
