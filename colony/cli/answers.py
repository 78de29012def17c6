"""Answers: what comes of a message, printed as it comes or once it is there."""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pydantic import JsonValue

    from colony.live import LiveEvent

MISSED = "…"


class Speech:
    """Texts that are printed as they come, between lines; `…` is where some of one was missed."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._ends: dict[str, int] = {}
        self._under_way: str | None = None

    def go_on(self, event: "LiveEvent") -> None:
        """Print what a cell told, where it is text."""
        text, offset = event.facts.get("text"), event.facts.get("offset")
        if event.kind != "text" or not isinstance(text, str) or not isinstance(offset, int):
            return
        name = str(event.facts.get("message_id"))
        if name != self._under_way:
            self.end()
        if offset > self._ends.get(name, 0):
            text = MISSED + text
        self._ends[name] = offset + len(str(event.facts["text"]))
        self._said[name] = self._said.get(name, "") + text
        self._under_way = name
        click.echo(text, nl=False)

    def end(self) -> None:
        """Whatever is printed next begins a line."""
        if self._under_way is not None:
            click.echo()
        self._under_way = None

    def has_said(self, text: str) -> bool:
        """Whether all of a text was printed."""
        return text.strip() in (said.strip() for said in self._said.values())


def texts(output: Mapping[str, "JsonValue"]) -> list[str]:
    """What an output says, entry by entry; its body as JSON where it says nothing."""
    body = output.get("body")
    messages = body.get("messages") if isinstance(body, dict) else None
    entries = messages if isinstance(messages, list) else []
    found = [entry.get("text") for entry in entries if isinstance(entry, dict)]
    said = [text for text in found if isinstance(text, str)]
    return said or [json.dumps(body, ensure_ascii=False)]


def write_texts(outputs: Iterable[Mapping[str, "JsonValue"]], *, after: Speech) -> None:
    """Print what outputs say, without what was said before."""
    after.end()
    for output in outputs:
        for text in texts(output):
            if not after.has_said(text):
                click.echo(text)
