import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope

Arriving = Callable[..., Envelope]


@pytest.fixture
def arriving() -> Arriving:
    """Makes the envelope a handler is given: its entries, its `hop`, its context."""

    def make(*entries: Entry, hop: Mapping[str, Any] | None = None, **context: Any) -> Envelope:
        context = {"turn_id": "t-7", "iter": 0, **context}
        return Envelope(
            id="m-1",
            trace_id="trace-1",
            target="/cell",
            ttl=64,
            context={key: value for key, value in context.items() if value is not None},
            hop=dict(hop or {}),
            body=Body.of(*entries),
        )

    return make


@pytest.fixture
def called() -> Callable[..., Entry]:
    """Makes a call as the llm cell emits it."""

    def make(call_id: str, name: str = "web_search", arguments: Any = '{"query": "x"}') -> Entry:
        text = json.dumps({"name": name, "arguments": arguments})
        return Entry(origin="assistant", type="tool_call", id=call_id, text=text)

    return make


@pytest.fixture
def asked_of_store() -> Callable[[Emission], dict[str, Any]]:
    """Reads the operation that an emission asks the store for."""

    def read(emission: Emission) -> dict[str, Any]:
        (call,) = emission.body.entries
        operation: dict[str, Any] = json.loads(call.text or "")
        return operation

    return read


@pytest.fixture
def replied(arriving: Arriving) -> Callable[..., Envelope]:
    """Makes the reply of the store to an operation."""

    def make(
        operation: str, rows: Any = None, *, hop: Mapping[str, Any] | None = None, **context: Any
    ) -> Envelope:
        text = json.dumps(rows)
        given = {"operation": operation, "rows_affected": 1, **(hop or {})}
        return arriving(Entry.result("c-op", text), hop=given, **context)

    return make
