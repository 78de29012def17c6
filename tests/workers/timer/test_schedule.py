"""When a schedule fires."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from workers.timer.schedule import Schedule

DAY = 24 * 60 * 60 * 1000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def schedule(**fields: object) -> Schedule:
    return Schedule.model_validate({"text": "go", **fields})


@pytest.mark.parametrize(
    ("cron", "following", "latest"),
    [
        ("* * * * * *", "2026-03-29T01:59:31", "2026-03-29T01:59:30"),
        ("*/20 * * * * *", "2026-03-29T01:59:40", "2026-03-29T01:59:20"),
        ("30 59 1 * * *", "2026-03-30T01:59:30", "2026-03-29T01:59:30"),
        # Clocks change in much of Europe that night, and not in UTC.
        ("0 30 2 * * *", "2026-03-29T02:30:00", "2026-03-28T02:30:00"),
        ("0 0 9 * * mon-fri", "2026-03-30T09:00:00", "2026-03-27T09:00:00"),
        ("0 0 0 29 2 *", "2028-02-29T00:00:00", "2024-02-29T00:00:00"),
    ],
)
def test_a_cron_counts_seconds_first_in_utc(cron: str, following: str, latest: str) -> None:
    now = ms("2026-03-29T01:59:30") + 250

    assert schedule(cron=cron).following(now) == ms(following)
    assert schedule(cron=cron).latest(0, now) == ms(latest)


def test_a_tick_that_was_reached_is_not_due_again() -> None:
    every = schedule(cron="* * * * * *")

    assert every.latest(4_000, 5_999) == 5_000
    assert every.latest(5_000, 5_999) is None
    assert every.following(5_000) == 6_000


def test_what_lies_between_is_counted() -> None:
    every = schedule(cron="*/10 * * * * *")

    assert every.count(10_000, 50_000) == 3
    assert every.count(10_000, 20_000) == 0
    assert every.count(0, 30 * DAY) == 1_000


@pytest.mark.parametrize(
    "at", ["2026-01-02T03:04:05", "2026-01-02T03:04:05Z", "2026-01-02T04:04:05+01:00"]
)
def test_a_moment_is_utc_where_it_names_no_zone(at: str) -> None:
    once, moment = schedule(at=at), ms("2026-01-02T03:04:05")

    assert (once.moment, once.following(0), once.following(moment)) == (moment, moment, None)
    assert (once.latest(0, moment), once.latest(moment, DAY), once.latest(0, 1)) == (
        moment,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "exactly one of cron and at"),
        ({"cron": "* * * * * *", "at": 1}, "exactly one of cron and at"),
        ({"cron": "* * * * *"}, "has 5 fields"),
        ({"cron": "* * * * * * *"}, "has 7 fields"),
        ({"cron": "61 * * * * *"}, "61"),
        ({"cron": "0 0 0 30 2 *"}, "never fires"),
        ({"cron": "r * * * * *"}, "R and H"),
        ({"cron": "0 H(0-9) * * * *"}, "R and H"),
        ({"at": "tomorrow"}, "isoformat"),
        ({"at": 1, "text": None}, "exactly one of text and body"),
        ({"at": 1, "body": {"system": {}}}, "exactly one of text and body"),
        ({"at": 1, "text": None, "body": {"nothing": 1}}, "the body"),
        ({"at": 1, "more": 1}, "more"),
    ],
)
def test_what_is_no_schedule_says_why(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        schedule(**fields)


def test_a_schedule_that_changes_its_time_begins_anew() -> None:
    names = {
        schedule(cron="0 * * * * *").mark_name("a"),
        schedule(cron="1 * * * * *").mark_name("a"),
        schedule(cron="0 * * * * *", added_at=1).mark_name("a"),
        schedule(cron="0 * * * * *").mark_name("b"),
    }

    assert len(names) == 4
    assert schedule(cron="0 * * * * *", name="other").mark_name("a") in names
