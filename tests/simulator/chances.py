"""Chances: how much goes wrong in a world."""

from dataclasses import dataclass

FAULT_RATE = 0.08
# Few, so that they meet: most messages are of the first one, and some of none.
SESSIONS = ("one", "one", "one", "two", "")


@dataclass(frozen=True)
class Chances:
    """How often what goes wrong; and how often, at least, what happens a few times in a world."""

    fault: float = FAULT_RATE
    restarts: int = 0
    ends: int = 0
    burials: int = 0
    losses: int = 0
    expulsions: int = 0
    replays: bool = True
    steers: int = 0
    strangers: int = 0
    sessions: tuple[str, ...] = ()
    """What sessions messages are of. None where nothing keeps an order."""

    def weight(self, base: float) -> float:
        """The weight of a misfortune that has `base` at the ordinary rate of faults."""
        return base * self.fault / FAULT_RATE


def various(seed: int, *, fault_rate: float = FAULT_RATE, restarts: int = 3) -> Chances:
    """The chances of a seed, so that a row of seeds has some of everything."""
    return Chances(
        fault=fault_rate * (0.5, 1, 2)[seed % 3],
        restarts=restarts if seed % 5 == 4 else 0,
        burials=4 if seed % 4 == 1 else 0,
        replays=seed % 8 != 1,
        sessions=SESSIONS if seed % 7 in (1, 3, 5) else (),
    )
