"""Claims: what is to become true while others work, looked at until it is and no longer.

A test that waits for a claim takes as long as the claim does, and fails with its name.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, overload

# Long enough for a machine that has much else to do: only a test that fails waits for all of it.
PATIENCE_S: Final = 60.0
POLL_S: Final = 0.01

T = TypeVar("T")


@overload
async def eventually(
    claim: Callable[[], Awaitable[T]], what: str = "", *, patience_s: float = PATIENCE_S
) -> T: ...


@overload
async def eventually(
    claim: Callable[[], T], what: str = "", *, patience_s: float = PATIENCE_S
) -> T: ...


async def eventually(
    claim: Callable[[], Any], what: str = "", *, patience_s: float = PATIENCE_S
) -> Any:
    """What the claim returns, or what it returns once awaited, as soon as that is true.

    Raises AssertionError, which names `what`, where it is not when patience ends; what the claim
    raises is raised at once. It is looked at a last time after that, and never cut off.
    """
    found = await _found(claim, patience_s)
    if not found:
        raise AssertionError(_late(what, patience_s))
    return found


async def comes_true(
    claim: Callable[[], object | Awaitable[object]], *, patience_s: float = PATIENCE_S
) -> bool:
    """Whether the claim is true before patience ends, for what has to go on where it is not."""
    return bool(await _found(claim, patience_s))


def block_until(claim: Callable[[], T], what: str = "", *, patience_s: float = PATIENCE_S) -> T:
    """As `eventually`, for a test that runs no event loop."""
    deadline = time.monotonic() + patience_s
    while True:
        late = time.monotonic() > deadline
        if found := claim():
            return found
        if late:
            raise AssertionError(_late(what, patience_s))
        time.sleep(POLL_S)


async def _found(claim: Callable[[], Any], patience_s: float) -> Any:
    deadline = time.monotonic() + patience_s
    while True:
        late = time.monotonic() > deadline
        found = claim()
        if isinstance(found, Awaitable):
            found = await found
        if found or late:
            return found
        await asyncio.sleep(POLL_S)


def _late(what: str, patience_s: float) -> str:
    return f"not within {patience_s:g} s: {what or 'the claim is true'}"
