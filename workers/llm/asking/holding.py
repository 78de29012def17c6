"""Holding back: nothing of an answer is told before the first text of it that shows.

What was held back is told in its order once the answer shows or is whole; where neither comes, it
is gone with its attempt.
"""

from collections.abc import Awaitable, Callable

from workers.llm.provider import Listener, Sent, unseen


class HeldBack:
    """A listener in front of another, for one attempt.

    `visible` says whether somebody may have seen a text. `commit` is over before anybody does, and
    whatever it raises keeps the text back. What goes out is not held back from `sent`.
    """

    def __init__(
        self, to: Listener, commit: Callable[[], Awaitable[None]], *, sent: Sent = unseen
    ) -> None:
        self.visible = False
        self.sent = sent
        self._to = to
        self._commit = commit
        self._held: list[tuple[Callable[[str], Awaitable[None]], str]] = []
        self._open = False

    async def text(self, fragment: str) -> None:
        """It is told, if it or a text before it shows; otherwise it is kept."""
        if not self.visible and fragment.strip():
            await self._commit()
            self.visible = True
            await self.release()
        await self._hear(self._to.text, fragment)

    async def reasoning(self, fragment: str) -> None:
        """It is told, if a text before it shows; otherwise it is kept."""
        await self._hear(self._to.reasoning, fragment)

    async def release(self) -> None:
        """What was held back is told, and nothing is held back any more."""
        held, self._held, self._open = self._held, [], True
        for tell, fragment in held:
            await tell(fragment)

    async def _hear(self, tell: Callable[[str], Awaitable[None]], fragment: str) -> None:
        if self._open:
            await tell(fragment)
        else:
            self._held.append((tell, fragment))
