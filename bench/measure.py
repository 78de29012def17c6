"""Measuring: a figure is a median of several runs, each paired with its peer's."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from colony.embedded import find_binary
from colony.testing.redis_server import RedisServer


@dataclass
class Figure:
    """What was measured, per run. `unit` is that of the values, bigger being better."""

    name: str
    unit: str
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The value to quote."""
        return statistics.median(self.values)


@contextmanager
def server() -> Iterator[RedisServer]:
    """An empty server of its own, AOF on with fsync every second: the same for every contender."""
    with RedisServer.start(find_binary(os.environ), fsync="everysec", socket=False) as started:
        yield started


def alternate(runs: int, *contenders: tuple[Figure, Callable[[], float]]) -> list[Figure]:
    """Measure the contenders in turn, A B A B, so that a drift of the machine meets all of them."""
    for _ in range(runs):
        for figure, run in contenders:
            figure.values.append(run())
            print(
                json.dumps(
                    {
                        "figure": figure.name,
                        "unit": figure.unit,
                        "value": round(figure.values[-1], 1),
                    }
                ),
                flush=True,
            )
    return [figure for figure, _ in contenders]


def table(figures: list[Figure], *, beside: str | None = None) -> str:
    """The figures as Markdown, with their ratio to the figure called `beside`."""
    peer = next((figure for figure in figures if figure.name == beside), None)
    head = "| figure | unit | median | min | max | ratio |\n|---|---|---|---|---|---|"
    rows = []
    for f in figures:
        ratio = "" if peer is None or f is peer else f"{f.median / peer.median:.1f} x {peer.name}"
        rows.append(
            f"| {f.name} | {f.unit} | {f.median:,.0f} | {min(f.values):,.0f} "
            f"| {max(f.values):,.0f} | {ratio} |"
        )
    return "\n".join([head, *rows])


def machine() -> str:
    """The machine a figure belongs to, in one line."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
