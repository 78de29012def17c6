"""`python -m colony` is `colony`."""

from colony.cli import main

main(prog_name="colony")
