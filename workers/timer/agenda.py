"""The agenda: which schedules there are, as all processes share them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from pydantic import ValidationError

from colony.body import Frozen
from workers.timer.schedule import Schedule

SCHEDULES: Final = "schedules."
TRIGGERS: Final = "triggers."


class Trigger(Frozen):
    """A wish that a schedule fires now."""

    schedule: str
    at: int


@dataclass(frozen=True)
class Agenda:
    """The schedules of the tree, those that were added, and what is to fire at once."""

    fixed: Mapping[str, Schedule]
    added: Mapping[str, Schedule]
    triggers: Mapping[str, Trigger]

    @classmethod
    def read(cls, fixed: Mapping[str, Schedule], leaves: Mapping[str, str]) -> Self:
        """The agenda that the durable state of the cell holds; what cannot be read is passed over.

        The tree's schedules hide those that were added under the same id.
        """
        added: dict[str, Schedule] = {}
        triggers: dict[str, Trigger] = {}
        for path, text in leaves.items():
            try:
                if path.startswith(SCHEDULES):
                    added[path.removeprefix(SCHEDULES)] = Schedule.model_validate_json(text)
                elif path.startswith(TRIGGERS):
                    triggers[path.removeprefix(TRIGGERS)] = Trigger.model_validate_json(text)
            except ValidationError:
                continue
        return cls(fixed, {k: v for k, v in added.items() if k not in fixed}, triggers)

    @property
    def all(self) -> Mapping[str, Schedule]:
        """Every schedule by id."""
        return {**self.fixed, **self.added}
