"""AG-UI: the events of a run in the words of the Agent User Interaction Protocol.

That protocol wants a run, and each step of it, opened before anything is told of it. Whoever comes
later is told of a run, a step or a message as if it opened then. What it has no word for is a
`CUSTOM` event with our name.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from sse_starlette import ServerSentEvent

from colony.access.run_follower import Frame
from colony.agent.events import Event

# Told by other words, or of no use to a user interface of that protocol.
_SILENT: Final = frozenset({"session.init", "turn.start", "tool.result.available"})


class AgUi:
    """The frames of one follower as events of AG-UI."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._run = ""
        self._step = ""
        self._text = ""
        self._reasoning = ""

    def __call__(self, frame: Frame) -> Iterator[ServerSentEvent]:
        """What a frame is told as; the cursor stands on the last of it."""
        found = [*self._events(frame)]
        for number, event in enumerate(found, 1):
            data = event.model_dump_json(by_alias=True, exclude_none=True)
            yield ServerSentEvent(id=frame.cursor if number == len(found) else None, data=data)

    def _events(self, frame: Frame) -> Iterable[BaseEvent]:
        event = frame.event
        if event is None:
            name = "live" if frame.phase == "mark" else "gap"
            return [CustomEvent(name=name, value={})] if self._run else []
        return self._of(event)

    def _of(self, event: Event) -> Iterator[BaseEvent]:
        told: Any = event.payload
        yield from self._opened(event)
        match event.kind:
            case "message.delta" | "reasoning.delta" if told["text"]:
                yield from self._said(event, told["text"])
            case "message.delta" | "reasoning.delta":
                pass
            case "turn.end":
                yield from self._spoken()
                yield CustomEvent(name=event.kind, value=told)
            case "tool.call":
                call_id, name = told["call_id"], told["name"]
                yield ToolCallStartEvent(tool_call_id=call_id, tool_call_name=name)
                yield ToolCallArgsEvent(tool_call_id=call_id, delta=json.dumps(told["args"]))
                yield ToolCallEndEvent(tool_call_id=call_id)
            case "tool.result":
                call_id = told["call_id"]
                message_id = f"{event.run_id}:{event.turn}:{call_id}"
                content = told["content"]
                text = content if isinstance(content, str) else json.dumps(content)
                yield ToolCallResultEvent(
                    message_id=message_id, tool_call_id=call_id, content=text, role="tool"
                )
            case "result":
                yield from self._closed()
                yield from self._ended(event)
                self._run = ""
            case kind if kind not in _SILENT:
                yield CustomEvent(name=kind, value=told)

    def _opened(self, event: Event) -> Iterator[BaseEvent]:
        if event.run_id != self._run:
            self._run, self._step, self._text, self._reasoning = event.run_id, "", "", ""
            yield RunStartedEvent(thread_id=self._session_id, run_id=event.run_id)
        step = f"turn {event.turn}"
        if event.turn >= 0 and event.kind != "result" and step != self._step:
            yield from self._closed()
            self._step = step
            yield StepStartedEvent(step_name=step)

    def _said(self, event: Event, text: str) -> Iterator[BaseEvent]:
        message_id = f"{event.run_id}:{event.turn}"
        if event.kind == "reasoning.delta":
            if not self._reasoning:
                self._reasoning = f"{message_id}:reasoning"
                yield ReasoningStartEvent(message_id=self._reasoning)
                yield ReasoningMessageStartEvent(message_id=self._reasoning, role="reasoning")
            yield ReasoningMessageContentEvent(message_id=self._reasoning, delta=text)
            return
        yield from self._thought()
        if not self._text:
            self._text = message_id
            yield TextMessageStartEvent(message_id=message_id, role="assistant")
        yield TextMessageContentEvent(message_id=message_id, delta=text)

    def _thought(self) -> Iterator[BaseEvent]:
        if self._reasoning:
            yield ReasoningMessageEndEvent(message_id=self._reasoning)
            yield ReasoningEndEvent(message_id=self._reasoning)
            self._reasoning = ""

    def _spoken(self) -> Iterator[BaseEvent]:
        yield from self._thought()
        if self._text:
            yield TextMessageEndEvent(message_id=self._text)
            self._text = ""

    def _closed(self) -> Iterator[BaseEvent]:
        yield from self._spoken()
        if self._step:
            yield StepFinishedEvent(step_name=self._step)
            self._step = ""

    def _ended(self, event: Event) -> Iterator[BaseEvent]:
        told: Any = event.payload
        if told["state"] == "failed":
            yield RunErrorEvent(message=f"the run has failed: {told['error']}", code=told["error"])
            return
        cancelled = told["state"] == "cancelled"
        yield RunFinishedEvent(
            thread_id=self._session_id,
            run_id=event.run_id,
            result=told,
            outcome=RunFinishedCancelledOutcome(type="cancelled")
            if cancelled
            else RunFinishedSuccessOutcome(type="success"),
        )
