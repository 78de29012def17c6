"""What `bench.asks` claims of very many asks, of some, over real processes."""

from pathlib import Path

from bench.agents import at_work
from bench.asks import measure


async def test_every_verdict_counts_once_however_soon_and_by_however_many_it_is_given(
    redis_url: str, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()

    with at_work(redis_url, workers=2, journal=journal):
        alone, raced = await measure(redis_url, asks=60, sessions=3, racers=20, journal=journal)

    assert alone.sound
    assert (alone.asks, alone.allowed, alone.late) == (60, 60, 0)
    assert raced.sound
    assert (raced.asks, raced.late) == (20, 380)
