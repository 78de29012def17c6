"""Sweeps: what a job process may do at intervals. The keeper does the same, so nothing rests on it.

Any number may run at once: what one has swept another does not find.
"""

import asyncio

from colony.config import Config
from colony.jobs import horse
from colony.jobs.place import Place
from colony.keeping.retention import Retention
from colony.link import Link
from colony.log import get_logger
from colony.publication import Publication

log = get_logger("colony.jobs")


def sweep() -> None:
    """Let everything go whose time is up."""
    asyncio.run(_sweep(_place()))


def report() -> None:
    """One log line on what the colony has and what waits in it."""
    asyncio.run(_report(_place()))


async def _sweep(place: Place) -> None:
    link = Link(place.url)
    try:
        publication = Publication(link, place.keys)
        await publication.refresh()
        await Retention(link, place.keys, publication).sweep()
    finally:
        await link.close()


async def _report(place: Place) -> None:
    link = Link(place.url)
    try:
        keys, publication = place.keys, Publication(link, place.keys)
        await publication.refresh()
        cells = await publication.cell_streams()
        streams = [keys.router(), keys.dead(), *cells]
        routing, dead, *waiting = [await link.command("XLEN", stream) for stream in streams]
        log.info(
            "report",
            colony=keys.name,
            version=publication.current.version,
            open_traces=await link.command("ZCARD", keys.open_traces()),
            ended_traces=await link.command("ZCARD", keys.ended_traces()),
            routing=routing,
            waiting=sum(waiting),
            dead_letters=dead,
        )
    finally:
        await link.close()


def _place() -> Place:
    return horse.here or Place.of(Config.load({}))
