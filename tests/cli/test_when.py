"""Points in time, as somebody writes them."""

import time
from datetime import UTC, datetime

import click
import pytest

from colony.cli.when import When


@pytest.mark.parametrize(
    ("text", "ago_s"), [("0s", 0), ("90s", 90), ("15min", 900), ("2h", 7_200), ("3d", 259_200)]
)
def test_an_age_is_counted_from_now(text: str, ago_s: int) -> None:
    before = round(time.time() * 1000)
    found = When().convert(text, None, None)
    after = round(time.time() * 1000)

    assert before <= found + ago_s * 1000 <= after + 1


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31", datetime(2026, 1, 31).astimezone()),
        ("2026-01-31T12:30", datetime(2026, 1, 31, 12, 30).astimezone()),
        ("2026-01-31 12:30:05", datetime(2026, 1, 31, 12, 30, 5).astimezone()),
        ("2026-01-31T12:30:00+00:00", datetime(2026, 1, 31, 12, 30, tzinfo=UTC)),
        ("1970-01-01T00:00:00+09:00", datetime.fromtimestamp(0, UTC)),
    ],
)
def test_a_date_without_a_zone_is_one_of_this_host(text: str, moment: datetime) -> None:
    assert When().convert(text, None, None) == moment.timestamp() * 1000


@pytest.mark.parametrize("text", ["", "soon", "5", "5m", "-5s", "1.5h", "5 s", "2026-13-01"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="neither 90s"):
        When().convert(text, None, None)
