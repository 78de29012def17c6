"""Events: the same events however their bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.llm.answers.events import Event, EventReader

TEXT = (
    '\ufeff: hello\r\ndata: grün\r\n\r\nevent: error\rdata:x\r\r{"a": 1}\n\ndata: a\ndata: 🙂\n\n'
)
EVENTS = [Event("grün"), Event("x", error=True), Event('{"a": 1}'), Event("a\n🙂")]


@given(st.lists(st.integers(0, len(TEXT.encode())), max_size=6))
def test_events_do_not_depend_on_where_the_bytes_are_cut(cuts: list[int]) -> None:
    data, places = TEXT.encode(), sorted({0, *cuts, len(TEXT.encode())})
    reader = EventReader()

    found = [event for begin, end in pairwise(places) for event in reader.feed(data[begin:end])]

    assert [*found, *reader.end()] == EVENTS


@pytest.mark.parametrize(
    ("data", "complete"), [("[DONE]", True), ('{"a": 1}', True), ('{"a": ', False), ("", False)]
)
def test_an_event_knows_whether_it_was_cut(data: str, complete: bool) -> None:
    assert Event(data).complete == complete
