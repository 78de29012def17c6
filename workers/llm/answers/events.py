"""Events: the data of a server-sent event stream, as servers write it and as they miswrite it."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from workers.llm.answers.json_text import parse

DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its data, and whether it was sent as an error."""

    data: str
    error: bool = False

    @property
    def complete(self) -> bool:
        """Whether the data is what a stream says, and not the beginning of it."""
        return self.data.strip() == DONE or self.value is not None

    @property
    def value(self) -> JsonValue:
        """The JSON value that the data is; None where it is none."""
        return parse(self.data)


class EventReader:
    """Turns bytes into events, however they are cut and whichever line ends they have.

    A line that is JSON and nothing else counts as data, and a field called `error` as an error:
    both are sent by servers that fail in the middle of a stream.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._rest: list[str] = []
        self._after_return = False
        self._data: list[str] = []
        self._error = False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that `chunk` completes."""
        yield from self._lines(self._decoder.decode(chunk))

    def end(self) -> Iterator[Event]:
        """The event that the end of the stream completes, where one was begun."""
        yield from self._lines(self._decoder.decode(b"", True) + "\n\n")

    def _lines(self, text: str) -> Iterator[Event]:
        # The two halves of one line end may come apart.
        if self._after_return and text:
            text = text.removeprefix("\n")
            self._after_return = False
        if text.endswith("\r"):
            self._after_return = True
        first, *others = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest.append(first)
        for other in others:
            line, self._rest = "".join(self._rest), [other]
            yield from self._take(line)

    def _take(self, line: str) -> Iterator[Event]:
        if not line:
            if self._data:
                yield Event("\n".join(self._data), self._error)
            self._data, self._error = [], False
            return
        if line.lstrip().startswith("{"):
            self._data.append(line)
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._error = value.strip() == "error"
        elif name == "error":
            self._error = True
            self._data.append(value)
        elif name == "data":
            self._data.append(value)
