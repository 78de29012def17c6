"""The compaction lane: handlers of the `code` cells that fold old rounds into a summary.

They stand on the rows of the tool loop. A fold adds one row and changes none; where it comes to
nothing, the question goes on with the window as it is.
"""
