"""The `bash` cell: a command of a shell as a tool."""

from workers.bash.cell import Bash

__all__ = ["Bash"]
