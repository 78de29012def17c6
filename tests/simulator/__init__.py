"""A simulator: many processes of a colony in one, their steps and faults picked by a seed."""
