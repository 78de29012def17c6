"""Call slots: which call a fragment of a stream belongs to.

A fragment that brings both a new id and a name opens a call. An id alone never does, and what comes
again is never appended to itself. Where the number of a call is missing, the last one goes on.
"""

from dataclasses import dataclass, field

from pydantic import JsonValue

from workers.llm.answers.json_text import parse
from workers.llm.provider import AnswerWarning

Fields = dict[str, JsonValue]


@dataclass(slots=True, eq=False)
class _Slot:
    id: JsonValue = None
    name: str = ""
    text: list[str] = field(default_factory=list)
    # Arguments that came as a value instead of its text; null where nothing else came.
    value: JsonValue = ""
    own: Fields = field(default_factory=dict)
    own_function: Fields = field(default_factory=dict)

    @property
    def arguments(self) -> JsonValue:
        """The arguments as a message has them."""
        return self.value if self.value or not self.text else "".join(self.text)

    @property
    def whole(self) -> bool:
        """Whether the arguments are complete as they are."""
        return _is_whole(self.arguments)


class CallSlots:
    """The calls of a stream in the order in which they were opened."""

    def __init__(self, warnings: set[AnswerWarning]) -> None:
        self._warnings = warnings
        self._slots: list[_Slot] = []
        self._by_index: dict[int, _Slot] = {}
        self._by_id: dict[str, _Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, fragment: Fields) -> None:
        """Take in the next fragment."""
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        written, name = fragment.get("id"), function.get("name")
        call_id = written if written not in (None, "") else None
        name = name if isinstance(name, str) else ""
        slot = self._slot(_number(fragment.get("index")), call_id, name, function)
        if slot.id is None and call_id is not None:
            slot.id = call_id
            self._by_id.setdefault(str(call_id), slot)
        elif call_id is not None and call_id != slot.id:
            self._warnings.add("id_changed_mid_call")
        slot.name = slot.name or name
        if "arguments" in function:
            _take_arguments(slot, function["arguments"])
        _merge(slot.own, fragment, ("id", "type", "index", "function"))
        _merge(slot.own_function, function, ("name", "arguments"))

    def calls(self) -> list[JsonValue]:
        """The calls as a message has them."""
        return [
            {
                **slot.own,
                "id": slot.id,
                "type": "function",
                "function": {
                    **slot.own_function,
                    "name": slot.name,
                    "arguments": slot.arguments,
                },
            }
            for slot in self._slots
        ]

    def _slot(self, index: int | None, call_id: JsonValue, name: str, function: Fields) -> _Slot:
        if index is None:
            self._warnings.add("index_missing")
            known = self._by_id.get(str(call_id)) if call_id is not None else None
            current = known or (self._slots[-1] if self._slots else None)
        else:
            current = self._by_index.get(index)
        if current is not None and not _opens(current, call_id, name, function):
            return current
        if current is not None and index is not None:
            self._warnings.add("index_reused")
        slot = _Slot()
        self._slots.append(slot)
        if index is not None:
            self._by_index[index] = slot
        return slot


def _opens(current: _Slot, call_id: JsonValue, name: str, function: Fields) -> bool:
    if not name or not current.name:
        return False
    if call_id is not None:
        return current.id is not None and current.id != call_id
    # A server without ids sends each call whole, and all of them under one number.
    whole = _is_whole(function.get("arguments"))
    return whole and current.id is None and current.whole


def _number(index: JsonValue) -> int | None:
    if isinstance(index, str) and index.isdecimal():
        return int(index)
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def _take_arguments(slot: _Slot, arguments: JsonValue) -> None:
    if isinstance(arguments, str):
        slot.text.append(arguments)
    elif arguments is not None or slot.value == "":
        slot.value = arguments


def _merge(into: Fields, fields: Fields, known: tuple[str, ...]) -> None:
    into.update({name: value for name, value in fields.items() if name not in known and value})


def _is_whole(arguments: JsonValue) -> bool:
    found = parse(arguments) if isinstance(arguments, str) else arguments
    return isinstance(found, dict)
