"""Firing: a birth for each tick, by whichever process comes first."""

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from colony.envelope import Emission, derived_id
from colony.errors import Backlogged, GuardReused
from colony.host import Mark, Source
from workers.timer.agenda import SCHEDULES, TRIGGERS, Agenda
from workers.timer.schedule import Schedule

NEVER: Final = 2**62
# How long what will not fire any more can still be seen, and be given another time.
SEEN_MS: Final = 24 * 60 * 60 * 1000


class Firing:
    """What fires of a timer in one process.

    A tick that was missed, because no process ran, fires if it is the newest of its schedule and
    not older than `catch_up_ms`; the others are counted and passed over.
    """

    def __init__(self, fixed: Mapping[str, Schedule], *, catch_up_ms: int) -> None:
        self._fixed = fixed
        self._catch_up_ms = catch_up_ms
        # When each schedule, by the name of its mark, has to be looked at again.
        self._due: dict[str, int] = {}

    async def fire(self, source: Source) -> int | None:
        """Fire what is due; returns in how many milliseconds something more is, None for never."""
        leaves, now = await source.state(), await source.clock()
        agenda = Agenda.read(self._fixed, leaves)
        named = {schedule.mark_name(key): (key, schedule) for key, schedule in agenda.all.items()}
        self._due = {name: due for name, due in self._due.items() if name in named}
        for name, (key, schedule) in named.items():
            if self._due.get(name, 0) <= now:
                while not await self._look(source, key, schedule, now=now):
                    pass
                self._due[name] = schedule.following(now) or NEVER
        await self._trigger(source, agenda)
        await self._clear(source, agenda, now)
        soonest = min(self._due.values(), default=NEVER)
        return None if soonest == NEVER else max(soonest - now, 0)

    async def _look(self, source: Source, key: str, schedule: Schedule, *, now: int) -> bool:
        """Fire the newest tick that is due; False where another process raised the mark meanwhile,
        maybe not so far."""
        name = schedule.mark_name(key)
        mark = await source.mark(name)
        if mark.reached < 0:
            # A schedule counts from when it was added, one of the tree from when it is first seen.
            start = now if schedule.added_at is None else schedule.added_at
            await source.raise_mark(start, name=name, after=-1)
            mark = await source.mark(name)
        tick = schedule.latest(mark.reached, now)
        if tick is None:
            return True
        missed = schedule.count(mark.reached, tick)
        if now - tick > self._catch_up_ms:
            missed += 1
            first = await source.raise_mark(tick, name=name, after=mark.reached)
        else:
            emission = _fired(source, key, schedule, mark, tick=tick, now=now, missed=missed)
            first = await source.birth(emission, mark=tick, name=name, after=mark.reached)
        if first and missed:
            source.log.warning("ticks_skipped", schedule=key, skipped=missed)
        return first

    async def _trigger(self, source: Source, agenda: Agenda) -> None:
        for key, trigger in agenda.triggers.items():
            schedule = agenda.all.get(trigger.schedule)
            if schedule is not None:
                at = trigger.at
                mark = await source.mark(schedule.mark_name(trigger.schedule))
                emission = _fired(source, trigger.schedule, schedule, mark, tick=at, now=at)
                try:
                    await source.admit(emission, guard=f"trigger {key}")
                except Backlogged:
                    continue
                except GuardReused:
                    # Another process fired it, a tick sooner or later.
                    pass
            await source.remove_state([TRIGGERS + key])

    async def _clear(self, source: Source, agenda: Agenda, now: int) -> None:
        for key, schedule in agenda.added.items():
            if schedule.following(now - self._catch_up_ms - SEEN_MS) is None:
                await source.remove_state([SCHEDULES + key])
                await source.forget_mark(schedule.mark_name(key))


def _fired(
    source: Source,
    key: str,
    schedule: Schedule,
    mark: Mark,
    *,
    tick: int,
    now: int,
    missed: int = 0,
) -> Emission:
    hop: dict[str, JsonValue] = {
        "event_id": derived_id("timer", source.spec.path, schedule.mark_name(key), tick),
        "schedule_id": key,
        "schedule_name": schedule.name or key,
        "scheduled_at": tick,
        "fired_at": now,
        "iteration_n": mark.births + 1,
        "skipped_n": missed,
    }
    return Emission(hop=hop, body=schedule.sent)
