"""Failures: how a command says that it cannot do what it was asked, and its exit status."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

NOT_AS_HOPED: Final = 1
REFUSED: Final = 2
NO_SERVER: Final = 3
NOT_NOW: Final = 4
OUR_MISTAKE: Final = 70
INTERRUPTED: Final = 130

_STATUS: Final = {
    "server_unavailable": NO_SERVER,
    "server_full": NO_SERVER,
    "server_unfit": NO_SERVER,
    "server_missing": NO_SERVER,
    "backlogged": NOT_NOW,
}


@contextmanager
def told() -> Iterator[None]:
    """Turn whatever is raised inside into one line on standard error and an exit status."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except Exception as error:
        raise click.exceptions.Exit(_tell(error)) from None


def complain(code: str, detail: str) -> None:
    """Write one line to standard error."""
    line = " ".join(detail.split())
    click.echo(f"{click.style('colony:', fg='red')} {code}: {line}", err=True)


def _tell(error: Exception) -> int:
    from colony.errors import ColonyError

    if isinstance(error, ColonyError):
        complain(error.code, str(error))
        return _STATUS.get(error.code, REFUSED)
    complain("internal_error", f"{type(error).__name__}: {error}")
    if os.environ.get("COLONY_DEBUG"):
        traceback.print_exception(error)
    else:
        click.echo("set COLONY_DEBUG=1 to see where", err=True)
    return OUR_MISTAKE
