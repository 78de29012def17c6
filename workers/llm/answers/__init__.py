"""Answers: what a response says, streamed or not, by one set of rules."""
