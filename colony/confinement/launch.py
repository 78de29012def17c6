"""The launcher: an interpreter that confines itself and becomes the program it is told of.

Standard input, output and error are the program's. The line named on the command line brings the
order (JSON) and takes the way of confinement, or a problem after a `!`; it closes when the program
has begun. Run as a file, without site packages: it has to start quickly.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn, TypedDict

sys.path.insert(0, str(Path(__file__).parents[2]))

from colony.confinement import kernel
from colony.confinement.limits import Limits
from colony.confinement.supervision import confine


class Order(TypedDict):
    """A program: what it is called with, where, and how it is confined (None: at its best)."""

    argv: list[str]
    directory: str
    limits: dict[str, int | None]
    way: str | None
    owner: int


def main() -> NoReturn:
    """Become the program; without an order there is nobody to run it for."""
    line = socket.socket(fileno=int(sys.argv[1]))
    kernel.die_with_parent()
    with line.makefile("rb") as file:
        order: Order = json.loads(file.read())
    if os.getppid() != order["owner"]:
        sys.exit(1)
    try:
        limits = Limits(**order["limits"])  # type: ignore[arg-type]
        line.sendall(confine(limits, order["way"]).encode())
        os.set_inheritable(line.fileno(), False)
        os.chdir(order["directory"])
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            # An interpreter ignores these; a program must not have to know that one started it.
            signal.signal(number, signal.SIG_DFL)
        os.execvp(order["argv"][0], order["argv"])
    except OSError as error:
        line.sendall(f"!{error}".encode())
        os._exit(1)


if __name__ == "__main__":
    main()
