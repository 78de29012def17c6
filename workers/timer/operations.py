"""Operations: what a call changes of the schedules, decided before anything is changed."""

import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationError

from colony.body import Frozen, explain
from colony.errors import InvalidInput, NotFound
from workers.timer.agenda import SCHEDULES, TRIGGERS, Agenda, Trigger
from workers.timer.schedule import Schedule, ScheduleId
from workers.tool_call import Arguments

WHEN = ("cron", "at")
WHAT = ("text", "body")


class Operation(Arguments):
    """One operation on the schedules."""

    op: Literal["add", "modify", "remove", "trigger", "list"]
    id: Annotated[
        ScheduleId | None, Field(description="Which schedule; needed for all but list.")
    ] = None
    name: Annotated[str | None, Field(description="What it is called.")] = None
    cron: Annotated[
        str | None,
        Field(description="When, again and again: six cron fields, seconds first, in UTC."),
    ] = None
    at: Annotated[
        int | str | None,
        Field(description="When, once: ISO 8601, or milliseconds since the epoch."),
    ] = None
    text: Annotated[str | None, Field(description="The message that is sent then.")] = None
    body: Annotated[
        dict[str, JsonValue] | None, Field(description="Or a whole body in its place.")
    ] = None


class Decision(Frozen):
    """What an operation comes to: leaves of the state to put and to remove, and the answer.

    `before` is what these leaves held when it was decided, null where they were not there.
    """

    text: str
    put: dict[str, str] = Field(default_factory=dict)
    remove: tuple[str, ...] = ()
    before: dict[str, str | None] = Field(default_factory=dict)

    def stands(self, leaves: Mapping[str, str]) -> bool:
        """Whether nothing happened to the leaves since."""
        return all(leaves.get(path) == text for path, text in self.before.items())


def decide(
    wanted: Operation,
    fixed: Mapping[str, Schedule],
    leaves: Mapping[str, str],
    *,
    key: str,
    now: int,
) -> Decision:
    """The decision on one operation at the time `now`; `key` is that of the envelope.

    Raises InvalidInput or NotFound where it cannot be done.
    """
    agenda = Agenda.read(fixed, leaves)
    if wanted.op == "list":
        return Decision(text=_listed(agenda, now))
    if wanted.id is None:
        raise InvalidInput(detail=f"{wanted.op} needs the id of a schedule")
    path = SCHEDULES + wanted.id
    if wanted.op == "trigger":
        return _trigger(wanted.id, agenda, key=key, now=now)
    if wanted.id in fixed:
        raise InvalidInput(detail=f"{wanted.id!r} is a schedule of the tree and stays as it is")
    before = {path: leaves.get(path)}
    if wanted.op == "remove":
        _known(wanted.id, agenda)
        return Decision(text=f"removed {wanted.id}", remove=(path,), before=before)
    schedule = _made(wanted, agenda, now)
    written = schedule.model_dump_json(exclude_none=True)
    told = {"id": wanted.id, "next_at": schedule.following(now)}
    text = json.dumps({wanted.op: told})
    return Decision(text=text, put={path: written}, before=before)


def _trigger(schedule_id: str, agenda: Agenda, *, key: str, now: int) -> Decision:
    if schedule_id not in agenda.all:
        raise NotFound(what=f"schedule {schedule_id!r}")
    leaf = Trigger(schedule=schedule_id, at=now).model_dump_json()
    path = TRIGGERS + key
    return Decision(text=f"triggered {schedule_id}", put={path: leaf}, before={path: None})


def _made(wanted: Operation, agenda: Agenda, now: int) -> Schedule:
    given = wanted.model_dump(exclude={"op", "id"}, exclude_none=True)
    if wanted.op == "modify":
        kept = _known(wanted.id or "", agenda).model_dump(exclude_none=True)
        # A new time takes the place of the old one, of whatever kind; so does a new body.
        for kind in (WHEN, WHAT):
            if any(key in given for key in kind):
                kept = {key: value for key, value in kept.items() if key not in kind}
        given = {**kept, **given}
    elif wanted.id in agenda.all:
        raise InvalidInput(detail=f"there is a schedule {wanted.id!r} already: modify it")
    try:
        schedule = Schedule.model_validate({**given, "added_at": now})
    except ValidationError as error:
        raise InvalidInput(detail=explain(error)) from None
    if schedule.following(now) is None:
        raise InvalidInput(detail="its time has passed")
    return schedule


def _known(schedule_id: str, agenda: Agenda) -> Schedule:
    found = agenda.added.get(schedule_id)
    if found is None:
        raise NotFound(what=f"schedule {schedule_id!r}")
    return found


def _listed(agenda: Agenda, now: int) -> str:
    return json.dumps(
        [
            {"id": schedule_id, **_shown(schedule), "next_at": schedule.following(now)}
            for schedule_id, schedule in sorted(agenda.all.items())
        ],
        ensure_ascii=False,
    )


def _shown(schedule: Schedule) -> dict[str, JsonValue]:
    return schedule.model_dump(exclude_none=True, exclude_defaults=True, exclude={"added_at"})
