"""The agent: handlers of the `code` cells that make the decisions of a run.

They are functions of an envelope, their params and the run in hand. The edges of the template lead
from one to the next, and what they record is written with the step it belongs to.
"""
