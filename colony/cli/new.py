"""`new`: a runnable tree with one tool in Python."""

import shlex
from pathlib import Path

import click

from colony.cli.options import formatted


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@formatted
def new(directory: Path, output: str) -> None:
    """Write a runnable tree with one tool in Python into DIRECTORY."""
    from colony.cli.screen import write_json
    from colony.scaffold import write_tree

    files = write_tree(directory)
    if output == "json":
        write_json({"directory": str(directory), "files": [str(file) for file in files]})
        return
    click.echo(f"{directory} holds an agent with one tool, in tools.py. Try:\n")
    click.echo(f"  colony up {shlex.quote(str(directory))}      # keeps running; then elsewhere:")
    click.echo('  colony send /prep "How far is a marathon?" --wait 10')
