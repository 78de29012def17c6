"""`python -m colony.cli` is `colony`."""

from colony.cli.group import main

main(prog_name="colony")
