"""Run every benchmark, or those named: `python -m bench [rounds] [hops] [--runs N]`."""

import argparse
from functools import partial

from bench.contenders import celery_chords, colony_hops, colony_rounds
from bench.measure import Figure, alternate, machine, table


def rounds(runs: int) -> str:
    """Durable rounds of two no-op tools, beside a Celery chord of two; two workers each."""
    settle = partial(colony_rounds, "rounds-settle", questions=200, rounds=6, workers=2)
    classic = partial(colony_rounds, "rounds-classic", questions=100, rounds=6, workers=2)
    figures = alternate(
        runs,
        (Figure("colony, settle", "rounds/s"), settle),
        (Figure("colony, classic protocol", "rounds/s"), classic),
        (Figure("Celery chord of 2", "chords/s"), partial(celery_chords, chords=400)),
    )
    return table(figures, beside="Celery chord of 2")


def hops(runs: int) -> str:
    """Routed envelopes, one router and one worker."""
    figure = Figure("colony, hops", "hops/s")
    return table(alternate(runs, (figure, partial(colony_hops, chains=300, length=100))))


BENCHES = {"rounds": rounds, "hops": hops}


def main() -> None:
    """Print each benchmark's runs as JSON lines, then its table."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], default=[])
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each contender")
    given = parser.parse_args()
    print(f"# {machine()}")
    for name in given.names or BENCHES:
        print(f"\n{BENCHES[name](given.runs)}\n")


if __name__ == "__main__":
    main()
