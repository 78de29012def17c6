"""Cards: how the events of a run look in a terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from colony.cli.screen import bad, faint, legible, pairs, shortened

if TYPE_CHECKING:
    from colony.agent.events import Event

WIDTH: Final = 72

# Told in another way, or of no use to whoever talks.
_SILENT: Final = frozenset(
    {"session.init", "session.title", "user_prompt", "turn.start", "turn.end", "permission.ask"}
)


class Talk:
    """What a person sees of a run: the text as it comes, and a line for whatever else happens."""

    def __init__(self) -> None:
        self._in_text = ""
        self._turn = -1
        self._shown: set[str] = set()

    def show(self, event: "Event") -> None:
        """Show an event; results once, when they come."""
        told: Any = event.payload
        match event.kind:
            case "message.delta" | "reasoning.delta":
                self._say(event.kind, event.turn, str(told["text"]))
            case "tool.call":
                self.line(f"▸ {shortened(told['name'], WIDTH)} {arguments(told['args'])}".rstrip())
            case "tool.result.available" | "tool.result":
                self._result(f"{event.turn}:{told['call_id']}", told)
            case "result":
                self._end(told)
            case kind if kind not in _SILENT:
                self.line(faint(f"{kind} {summary(event)}".rstrip()))

    def line(self, text: str) -> None:
        """Show a line of its own."""
        self.rest()
        click.echo(text)

    def rest(self) -> None:
        """End the line that a text has begun."""
        if self._in_text:
            click.echo()
            self._in_text = ""

    def _say(self, kind: str, turn: int, text: str) -> None:
        if not text:
            return
        if self._in_text and (kind, turn) != (self._in_text, self._turn):
            self.rest()
        self._in_text, self._turn = kind, turn
        shown = legible(text)
        click.echo(faint(shown) if kind == "reasoning.delta" else shown, nl=False)

    def _result(self, call: str, told: Mapping[str, Any]) -> None:
        if call in self._shown:
            return
        self._shown.add(call)
        came = f"{shortened(told['name'], WIDTH)}: {shortened(told['content'], WIDTH)}"
        self.line(bad(f"  ✗ {came}") if told["is_error"] else faint(f"  ✓ {came}"))

    def _end(self, told: Mapping[str, Any]) -> None:
        self.rest()
        usage = told["usage"]
        counted = usage["input_tokens"] or usage["output_tokens"]
        tokens = f"{usage['input_tokens']} + {usage['output_tokens']} tokens" if counted else ""
        if told["stop"] == "end_turn":
            if tokens:
                click.echo(faint(tokens))
            return
        error = f": {told['error']}" if told["error"] else ""
        ended = bad(f"{told['state']}, {told['stop']}{error}")
        click.echo(f"{ended}  {faint(tokens)}" if tokens else ended)
        if told["retry_disposition"] == "retryable":
            click.echo(faint("the step can be made again with /retry, or `colony runs retry`"))


def arguments(given: Mapping[str, Any]) -> str:
    """Arguments in one line."""
    return shortened(pairs(given, width=WIDTH), WIDTH)


def summary(event: "Event") -> str:
    """What an event tells, in one line."""
    told: Any = event.payload
    match event.kind:
        case "tool.call":
            text = f"{told['name']} {arguments(told['args'])}"
        case "tool.result" | "tool.result.available":
            text = f"{told['name']}: {shortened(told['content'], WIDTH)}"
        case "permission.ask":
            text = f"{told['ask_id']} {told['tool']} {arguments(told['args'])}"
        case "approval":
            text = f"{told['ask_id']} {told['tool']}: {told['verdict']}"
        case "permission.expired" | "permission.retract":
            text = f"{told['ask_id']} {told.get('tool', '')}"
        case "result":
            text = ", ".join(told[name] for name in ("state", "stop", "error") if told[name])
        case _:
            text = told.get("text") or told.get("name") or told.get("title") or ""
            text = shortened(text, WIDTH)
    return legible(text).rstrip()
