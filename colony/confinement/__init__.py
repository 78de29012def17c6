"""Confinement: how a foreign program runs so that nothing of it outlives its call.

`programs.run` runs a program and gives its output. `supervision.confine` turns a process that was
just forked into one that cannot leave anything behind. Only the standard library is imported, for
both run in interpreters that have nothing else.
"""
