"""Schedules: when something fires, and what. Times are UTC, in milliseconds since the epoch."""

import re
from datetime import UTC, datetime
from typing import Annotated, Final, Self

from croniter import CroniterBadDateError, CroniterError, croniter
from pydantic import Field, JsonValue, model_validator

from colony.body import Body, Entry, Frozen
from colony.codec import encode_body
from colony.envelope import digest
from colony.errors import BodyError, EnvelopeError

FIELDS: Final = 6
# Every firing carries it in its header.
LONGEST_NAME: Final = 256
# So many missed ticks are counted; more are as many.
COUNTED: Final = 1_000

ScheduleId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]

# A field that is drawn differently on each host.
_DRAWN = re.compile(r"(^|,)[rh]([/(,]|$)", re.IGNORECASE)


class Schedule(Frozen):
    """A `cron` of six fields, seconds first, or one moment `at`; and the body that is sent.

    `text` stands for a body of one user text. `added_at` is when it was added by a call.
    """

    name: Annotated[str, Field(max_length=LONGEST_NAME)] = ""
    cron: str | None = None
    at: int | str | None = None
    text: str | None = None
    body: dict[str, JsonValue] | None = None
    added_at: int | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.cron is None) == (self.at is None):
            raise ValueError("exactly one of cron and at is needed")
        if (self.text is None) == (self.body is None):
            raise ValueError("exactly one of text and body is needed")
        try:
            # What cannot be encoded would fail at every tick, and keep all others from theirs.
            encode_body(self.sent)
        except (BodyError, EnvelopeError) as error:
            raise ValueError(f"the body: {error}") from None
        if self.cron is None:
            _ = self.moment
        else:
            _check(self.cron)
        return self

    @property
    def sent(self) -> Body:
        """The body of every firing."""
        if self.text is not None:
            return Body.of(Entry.say("user", self.text))
        return Body.parse(self.body)

    @property
    def moment(self) -> int | None:
        """When a schedule without a cron fires; raises ValueError where `at` is no time."""
        if not isinstance(self.at, str):
            return self.at
        read = datetime.fromisoformat(self.at)
        return _milliseconds(read if read.tzinfo else read.replace(tzinfo=UTC))

    def mark_name(self, schedule_id: str) -> str:
        """What its mark is called. One that is changed or added again begins anew."""
        when: JsonValue = [self.cron, self.moment, self.added_at]
        return f"{schedule_id} {digest(when)}"

    def latest(self, after: int, now: int) -> int | None:
        """The newest tick later than `after` and not later than `now`."""
        tick = self.moment if self.cron is None else _previous(self.cron, now)
        return tick if tick is not None and after < tick <= now else None

    def following(self, after: int) -> int | None:
        """The first tick later than `after`."""
        if self.cron is None:
            moment = self.moment
            return moment if moment is not None and moment > after else None
        return _next(self.cron, after)

    def count(self, after: int, before: int) -> int:
        """How many ticks lie between the two, up to 1,000."""
        found = 0
        tick = self.following(after)
        while tick is not None and tick < before and found < COUNTED:
            found += 1
            tick = self.following(tick)
        return found


def _check(cron: str) -> None:
    fields = cron.split()
    if len(fields) != FIELDS:
        raise ValueError(f"cron has {len(fields)} fields and needs 6, the seconds first")
    if any(_DRAWN.search(field) for field in fields):
        raise ValueError("a cron must mean the same on every host: R and H do not")
    try:
        _iterator(cron, 0).get_next(datetime)
    except CroniterBadDateError:
        raise ValueError(f"cron {cron!r} never fires") from None
    except CroniterError as error:
        raise ValueError(f"cron {cron!r}: {error}") from None


def _next(cron: str, after: int) -> int | None:
    try:
        return _milliseconds(_iterator(cron, after // 1000).get_next(datetime))
    except CroniterBadDateError:
        return None


def _previous(cron: str, now: int) -> int | None:
    try:
        # What it looks for lies before its start.
        return _milliseconds(_iterator(cron, now // 1000 + 1).get_prev(datetime))
    except CroniterBadDateError:
        return None


def _iterator(cron: str, seconds: int) -> croniter:
    return croniter(cron, datetime.fromtimestamp(seconds, UTC), second_at_beginning=True)


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
