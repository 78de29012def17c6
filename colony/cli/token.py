"""`token`: a token for somebody who is to use the HTTP interface."""

import os
from pathlib import Path

import click

from colony.cli.options import formatted


@click.command()
@click.argument("holder", metavar="NAME")
@click.option("--operator", is_flag=True, help="Let its holder see and do everything.")
@click.option(
    "--file",
    "tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Add its line to this file of tokens.",
)
@formatted
def token(holder: str, operator: bool, tokens: Path | None, output: str) -> None:
    """Make a token for NAME and print it, once: only its digest is kept anywhere.

    COLONY_API_TOKENS_FILE names the file that the HTTP interface reads.
    """
    from colony.cli.screen import write_json
    from colony.principals import line_of, new_token

    made = new_token()
    line = line_of(holder, made, operator=operator)
    if tokens is not None:
        _add(tokens, line)
    if output == "json":
        write_json({"token": made, "line": line})
        return
    click.echo(made)
    if tokens is None:
        click.echo(f"Its line in a file of tokens:\n{line}", err=True)


def _add(tokens: Path, line: str) -> None:
    from colony.errors import ConfigError

    try:
        # Read before: a file that cannot be read is not added to.
        known = tokens.read_text("utf-8") if tokens.exists() else ""
        ends = "" if not known or known.endswith("\n") else "\n"
        opened = os.open(tokens, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(opened, "a", encoding="utf-8") as file:
            file.write(f"{ends}{line}\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(detail=f"{tokens} cannot be added to: {error}") from None
