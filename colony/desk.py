"""The desk: what a consumer serves, and how each failure of a decision ends."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from pydantic import JsonValue

from colony.envelope import DeadLetter
from colony.errors import (
    CellError,
    ColonyError,
    Fenced,
    ServerChanged,
    ServerUnavailable,
    SettledElsewhere,
)
from colony.log import get_logger
from colony.streams import Delivery, Step

log = get_logger("colony.desk")


class Desk(Protocol):
    """Where deliveries come from, and what is to be done with each."""

    def sources(self) -> Sequence[str]:
        """The streams that are read."""

    def capacity(self, source: str) -> int:
        """How many deliveries of a source may be in hand at once."""

    def is_apart(self, source: str) -> bool:
        """Whether what comes from a source is handled in other processes, and cannot crash this."""

    def max_deliveries(self) -> int:
        """How often an envelope may be handled before it is given up."""

    def owner(self, source: str) -> str:
        """The path a source belongs to."""

    def about(self) -> Mapping[str, JsonValue]:
        """What the process tells of itself with its lease."""

    async def decide(self, delivery: Delivery) -> Step:
        """What comes of a delivery; raises Fenced where its trace takes no more, SettledElsewhere
        where it is settled: by another process, or because it is parked."""


async def settle(desk: Desk, delivery: Delivery) -> Step:
    """What comes of a delivery, a failure included: it ends as a dead letter of the step.

    Raises ServerUnavailable and ServerChanged, which are nobody's fault, a retryable CellError,
    whose delivery is to be left for another try, and SettledElsewhere, whose delivery is gone.
    """
    try:
        return await desk.decide(delivery)
    except Fenced:
        return Step(delivery)
    except (ServerUnavailable, ServerChanged, SettledElsewhere):
        raise
    except ColonyError as error:
        if isinstance(error, CellError) and error.retryable:
            raise
        return bury(desk, delivery, error.code, str(error))
    except (
        Exception
    ) as error:  # Whatever a handler raises ends as a letter, never as a dead process.
        log.exception("handler_failed", trace=delivery.head.trace_id)
        return bury(desk, delivery, CellError.code, f"{type(error).__name__}: {error}")


def bury(desk: Desk, delivery: Delivery, code: str, detail: str) -> Step:
    """The step that settles a delivery and keeps its envelope as a dead letter."""
    head, owner = delivery.head, desk.owner(delivery.source)
    log.error(code, cell=owner, trace=head.trace_id, message=head.id, detail=detail)
    return Step(delivery, letters=[letter_of(delivery, owner, code, detail)])


def letter_of(delivery: Delivery, owner: str, code: str, detail: str) -> DeadLetter:
    """The dead letter of a delivery that died at the cell `owner`."""
    head = delivery.head
    return DeadLetter(
        code=code,
        detail=detail,
        sender=head.sender,
        original_target=head.target,
        resolved_target=owner,
        head=head,
        body=delivery.body,
        attempts=delivery.times,
    )
