"""Orders: what a job is told, and under which names it is found again."""

from typing import Final, Self

from colony.body import Frozen
from colony.envelope import digest
from colony.keys import Keys
from colony.streams import Delivery

# What RQ is asked to call; nothing else that lies in its queue is.
WORK: Final = "colony.jobs.horse.work"

# How much later than the timeout of its cell a job is killed with everything it started.
GRACE_S: Final = 1.0
# How long RQ keeps what has ended, in seconds: long enough for every worker that waits for it.
KEEP_S: Final = 60
# How often a job process says that it watches over its job, and how long it may be silent.
BEAT_S: Final = 5
SILENCE_S: Final = 30.0

# What the facts of a job say of its end where the job cannot say it itself.
END: Final = "end"
OVERDUE: Final = "overdue"
INTERRUPTED: Final = "interrupted"


class Order(Frozen):
    """One entry of a cell's stream, to be handled within `timeout_ms` of its start.

    The envelope is not in it: who works on it reads it where it lies.
    """

    server: str
    stream: str
    entry: str
    path: str
    version: int
    timeout_ms: int

    @classmethod
    def of(cls, delivery: Delivery, *, path: str, version: int, timeout_ms: int) -> Self:
        """The order to handle what is in hand."""
        return cls(
            server=delivery.server,
            stream=delivery.source,
            entry=delivery.entry,
            path=path,
            version=version,
            timeout_ms=timeout_ms,
        )

    @property
    def job_id(self) -> str:
        """The id of its job: one for each entry, whoever orders it and how often.

        A server that follows another one has entries of its own, whatever they are called.
        """
        return f"{self.entry}-{digest([self.server, self.stream])[:24]}"

    @property
    def killed_after_s(self) -> float:
        """How long after its start the job is killed."""
        return self.timeout_ms / 1000 + GRACE_S


def queue_of(keys: Keys) -> str:
    """The name of the RQ queue of a colony's partition."""
    return f"colony-{keys.name}" + (f"-{keys.partition}" if keys.partition else "")
