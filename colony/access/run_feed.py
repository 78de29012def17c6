"""Run feed: the events of a session, first those that are kept, then each as it happens.

All who follow in this process share one connection that listens, and one look at the log of each
session. What could not be heard is read there; where even that says something else than before,
followers are told of a gap and begin anew.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

from colony.access.run_follower import BEGINNING, Frame, Place, RunFollower
from colony.agent.cursors import cursor_of, entry_of
from colony.agent.events import Event, place_of
from colony.channels import LISTENING, Channels
from colony.errors import CursorExpired, FollowerLagging, ServerStopping, ServerUnavailable
from colony.keys import Keys
from colony.link import Link
from colony.log import Outage, get_logger

# A page is of so many events at most, fewer where those before were large.
PAGE: Final = 500
FIRST_PAGE: Final = 64
PAGE_BYTES: Final = 1 << 20
MOST_IN_ONE_MS: Final = 2**64 - 1
RETRY_S: Final = 0.5
STOPPING: Final = "this process stops: go on over another one"
# A server that may not be listened to keeps nobody from what is in the log.
LISTEN_S: Final = 5.0

log = get_logger("colony.access.runs")


class RunFeed:
    """The events of the sessions of one partition."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._channels = Channels(link.url)
        self._topics: dict[str, _Topic] = {}
        self._stopped = False

    @property
    def connections(self) -> int:
        """How many connections all followers take together, beside the link of the process."""
        return self._channels.connections

    async def follow(
        self,
        session_id: str,
        *,
        cursor: str | None = None,
        run_id: str | None = None,
        follow: bool = True,
    ) -> AsyncGenerator[Frame]:
        """The events of a session behind a cursor: those that are kept, a mark, and then each as it
        happens, unless `follow` is false.

        With a `run_id` only those of that run; cursors pass the others. Raises CursorMalformed and
        CursorExpired before the first frame, FollowerLagging where frames are taken too slowly.
        """
        follower = RunFollower(session_id, run_id)
        if cursor is not None:
            follower.place = place_of(entry_of(session_id, cursor))
        async with aclosing(self.go_on(follower, follow=follow)) as frames:
            async for frame in frames:
                yield frame

    async def go_on(self, follower: RunFollower, *, follow: bool = True) -> AsyncGenerator[Frame]:
        """What a follower has not been told yet, as `follow` tells it; whatever ended that before,
        it is told nothing twice."""
        follower.rest()
        async with self._following(follower) if follow else _alone():
            async for frame in self._replayed(follower):
                yield frame
            yield Frame("mark")
            while follow:
                await follower.changed.wait()
                follower.changed.clear()
                if self._stopped:
                    raise ServerStopping(detail=STOPPING)
                while follower.waiting:
                    event = follower.waiting.popleft()
                    if event is None:
                        async for frame in self._anew(follower):
                            yield frame
                        continue
                    told = follower.frame(event, "live")
                    if told is not None:
                        yield told
                if follower.lagging:
                    raise FollowerLagging(cursor=_cursor(follower))

    async def newest(self, session_id: str) -> str | None:
        """The cursor behind the newest event of a session; None where none is kept."""
        found = await self._link.command(
            "XREVRANGE", self._keys.session_events(session_id), "+", "-", "COUNT", 1
        )
        return cursor_of(session_id, found[0][0].decode()) if found else None

    def stop(self) -> None:
        """Let whoever follows know that this process stops: a ServerStopping is raised."""
        self._stopped = True
        for topic in self._topics.values():
            topic.wake()

    async def close(self) -> None:
        """Nobody is told anything any more."""
        self.stop()
        for topic in tuple(self._topics.values()):
            topic.stop()
        await self._channels.close()

    async def _replayed(self, follower: RunFollower) -> AsyncIterator[Frame]:
        """What is kept behind the place of a follower; from its end on, events wait for it."""
        bounds = await _bounds(self._link, self._keys.session_events(follower.session_id))
        begun = follower.place != BEGINNING
        if begun and bounds is not None and follower.place < bounds[0]:
            raise CursorExpired(cursor=_cursor(follower))
        if begun and (bounds is None or follower.place > bounds[1]):
            async for frame in self._anew(follower):
                yield frame
            return
        if not begun and follower.run_id is not None:
            follower.place = await self._before_run(follower)
        async for frame in self._kept(follower):
            yield frame

    async def _anew(self, follower: RunFollower) -> AsyncIterator[Frame]:
        """A gap, and then everything from the first event of the run on that is kept."""
        follower.begin_again()
        yield Frame("gap")
        follower.place = await self._before_run(follower)
        async for frame in self._kept(follower):
            yield frame

    async def _kept(self, follower: RunFollower) -> AsyncIterator[Frame]:
        key = self._keys.session_events(follower.session_id)
        async with aclosing(_pages(self._link, key, follower.place)) as pages:
            async for page in pages:
                for event in page:
                    frame = follower.frame(event, "replay")
                    if frame is not None:
                        yield frame
                if page:
                    continue
                if follower.buffering:
                    return
                # What comes from here on waits; what has come meanwhile is in one more page.
                follower.buffering = True

    async def _before_run(self, follower: RunFollower) -> Place:
        """The place before the first event of the run that is followed, or of the newest one."""
        run_id = follower.run_id
        if run_id is None:
            key = self._keys.agent_session(follower.session_id)
            found = await self._link.command("HGET", key, "run_id")
            run_id = "" if found is None else found.decode()
        first = await self._link.command("HGET", self._keys.run(run_id), "first_event")
        if first is None:
            return BEGINNING
        ms, number = place_of(first.decode())
        return (ms, number - 1) if number else (ms - 1, MOST_IN_ONE_MS)

    @asynccontextmanager
    async def _following(self, follower: RunFollower) -> AsyncIterator[None]:
        session_id = follower.session_id
        topic = self._topics.get(session_id)
        begins = topic is None
        if topic is None:
            topic = self._topics[session_id] = _Topic(session_id, self._link, self._keys)
        # Before anything is waited for: a topic that nobody follows is given up.
        topic.followers.add(follower)
        try:
            if begins:
                await self._channels.listen(self._keys.session_live(session_id), topic.hear)
            await topic.until_heard()
            yield
        finally:
            topic.followers.discard(follower)
            if not topic.followers and self._topics.get(session_id) is topic:
                del self._topics[session_id]
                topic.stop()
                await self._channels.leave(self._keys.session_live(session_id))


class _Topic:
    """A session that somebody here follows: what is heard of it, completed by what is kept."""

    def __init__(self, session_id: str, link: Link, keys: Keys) -> None:
        self.followers: set[RunFollower] = set()
        self._link = link
        self._events = keys.session_events(session_id)
        self._place: Place | None = None
        self._server: str | None = None
        self._heard = asyncio.Event()
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._telling = asyncio.create_task(self._tell_for_ever(), name="run-feed")

    def hear(self, message: bytes) -> None:
        """Take a message of the channel, or the word that it is heard from now on."""
        self._inbox.put_nowait(message)

    async def until_heard(self) -> None:
        """Return once nothing can be missed, or after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_S):
                await self._heard.wait()

    def wake(self) -> None:
        """Have every follower look what is new."""
        for follower in self.followers:
            follower.changed.set()

    def stop(self) -> None:
        """Tell nobody any more."""
        self._telling.cancel()

    async def _tell_for_ever(self) -> None:
        while True:
            message = await self._inbox.get()
            if message == LISTENING:
                await self._catch_up()
                self._heard.set()
                continue
            event = Event.told(message)
            if event.id is not None:
                place = place_of(event.id)
                if self._place is not None and place <= self._place:
                    continue
                self._place = place
            self._push(event)

    async def _catch_up(self) -> None:
        """Find out what was said while nobody listened."""
        while True:
            try:
                server = await self._link.open()
                bounds = await _bounds(self._link, self._events)
                last = bounds[1] if bounds else BEGINNING
                if self._place is None:
                    # Whoever begins to follow reads for itself what is kept.
                    self._place = last
                elif server != self._server or last < self._place:
                    self._place = last
                    self._push(None)
                else:
                    await self._read_on()
                self._server = server
                return
            except ServerUnavailable as error:
                Outage.report(log, error)
                await asyncio.sleep(RETRY_S)

    async def _read_on(self) -> None:
        async with aclosing(_pages(self._link, self._events, self._place or BEGINNING)) as pages:
            async for page in pages:
                for event in page:
                    self._place = place_of(event.id or "0")
                    self._push(event)
                if not page:
                    return

    def _push(self, event: Event | None) -> None:
        for follower in tuple(self.followers):
            follower.push(event)


async def _pages(link: Link, key: str, behind: Place) -> AsyncGenerator[list[Event]]:
    """What is kept behind a place, page by page, the last one empty: as many events at a time as
    are not too much to hold."""
    count = FIRST_PAGE
    while True:
        entries = await link.command("XRANGE", key, f"({_id(behind)}", "+", "COUNT", count)
        page = [Event.logged(entry, fields) for entry, fields in entries]
        yield page
        if page:
            behind = place_of(page[-1].id or "0")
        size = sum(len(field) for _, fields in entries for field in fields)
        count = min(2 * count, PAGE) if size < PAGE_BYTES else max(1, count // 2)


async def _bounds(link: Link, key: str) -> tuple[Place, Place] | None:
    """The places of the first and last event that are kept; None where none is."""
    first, last = await asyncio.gather(
        link.command("XRANGE", key, "-", "+", "COUNT", 1),
        link.command("XREVRANGE", key, "+", "-", "COUNT", 1),
    )
    if not first or not last:
        return None
    return place_of(first[0][0].decode()), place_of(last[0][0].decode())


def _cursor(follower: RunFollower) -> str:
    return cursor_of(follower.session_id, _id(follower.place))


def _id(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


@asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    yield
