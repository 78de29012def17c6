"""Expiry: rows leave a store once they were kept as long as their table says."""

from colony.keys import Keys
from colony.link import Link
from colony.schema import Table
from colony.store.calls import EXPIRED_AT_ONCE, expiring


async def expire_rows(link: Link, keys: Keys, path: str) -> int:
    """Remove the rows of the store at `path` that were kept long enough; returns how many.

    What is looked at is the rows that go and no others. A table keeps what its definition says,
    whether its cell is still there or not.
    """
    count = 0
    flat = await link.command("HGETALL", keys.store(path))
    for name, definition in zip(flat[::2], flat[1::2], strict=True):
        retain_s = Table.from_definition(definition).retain_s
        gone = EXPIRED_AT_ONCE if retain_s else 0
        while retain_s and gone == EXPIRED_AT_ONCE:
            call = expiring(keys, path, name.decode(), bytes(definition), retain_s)
            gone = int((await link.run(call))[1])
            count += gone
    return count
