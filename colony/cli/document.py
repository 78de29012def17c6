"""Commands about long results: `document`."""

from typing import TYPE_CHECKING

import click

from colony.cli.options import asks_colony

if TYPE_CHECKING:
    from colony.access import Access
    from colony.config import Config

# What follows a handle that was copied out of a sentence.
_PUNCTUATION = ".,;)]"


@click.command()
@click.argument("handle", metavar="HANDLE")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="First byte.  [default: 0]")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many bytes.  [default: all]")
@asks_colony
def document(config: "Config", handle: str, offset: int, limit: int | None) -> None:
    """Print a long result that is kept whole, byte for byte.

    HANDLE is the blob: handle at the end of what a model was shown of it.
    """
    from colony.cli.session import look

    named = handle.rstrip(_PUNCTUATION)
    look(config, lambda access: _print(access, named, offset, limit))


async def _print(access: "Access", handle: str, offset: int, limit: int | None) -> None:
    from colony.access.documents import PIECE_BYTES

    found = await access.documents.find(handle)
    if offset >= found.size:
        raise click.UsageError(f"--offset {offset} is behind the end: there are {found.size} bytes")
    end = found.size if limit is None else min(offset + limit, found.size)
    while offset < end:
        piece = await access.documents.read(
            found, offset=offset, limit=min(end - offset, PIECE_BYTES)
        )
        if not piece:
            raise click.ClickException(f"it went while it was read, at byte {offset}")
        click.echo(piece, nl=False)
        offset += len(piece)
