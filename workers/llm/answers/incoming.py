"""Incoming: a streamed answer, taken in byte by byte as it comes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from workers.llm.answers.chunks import Assembly, Heard
from workers.llm.answers.events import DONE, Event, EventReader


@dataclass(slots=True)
class Incoming:
    """What came so far, and whether the provider said that this is all. More is not read then."""

    assembly: Assembly = field(default_factory=Assembly)
    done: bool = False
    _reader: EventReader = field(default_factory=EventReader)

    @property
    def over(self) -> bool:
        """Whether nothing that may still come could change the answer."""
        return self.done or bool(self.assembly.error)

    def feed(self, chunk: bytes) -> Iterator[Heard]:
        """Take in the next bytes, and yield what is heard of the answer."""
        yield from self._take(self._reader.feed(chunk))

    def end(self) -> Iterator[Heard]:
        """Take in that there are no more bytes. An event that was cut off is left out."""
        yield from self._take(event for event in self._reader.end() if event.complete)

    def _take(self, events: Iterable[Event]) -> Iterator[Heard]:
        for event in events:
            if self.over:
                return
            if event.data.strip() == DONE:
                self.done = True
            else:
                yield self.assembly.add_event(event)
