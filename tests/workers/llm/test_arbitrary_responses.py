"""Whatever a server sends, it is read: as an answer that can go on, or as a failure with a code."""

import json
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from workers.llm.answers.reading import Asked, read_chunks, read_message, read_text
from workers.llm.provider import AnswerWarning, Failure

ASKED = Asked("m", "seed", frozenset({"look"}), 20, text_calls=True)

NAMES = st.sampled_from(
    "id index name arguments function type content refusal reasoning_content tool_calls "
    "function_call error message delta finish_reason code role text".split()
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", " ", "stop", "tool_calls", "length", "a", "{}", '{"a":', "look", "0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
FUNCTION = st.fixed_dictionaries({}, optional={"name": VALUES, "arguments": VALUES})
CALL = st.fixed_dictionaries({}, optional={"id": VALUES, "index": VALUES, "function": FUNCTION})
MESSAGE = st.fixed_dictionaries(
    {}, optional={"content": VALUES, "tool_calls": st.lists(CALL, max_size=3) | VALUES}
)
CHOICE = st.fixed_dictionaries(
    {}, optional={"message": MESSAGE, "delta": MESSAGE | VALUES, "finish_reason": VALUES}
)
BODY = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(CHOICE, max_size=2) | VALUES, "usage": VALUES, "id": VALUES}
)


def assert_can_go_on(reply: Any) -> None:
    if isinstance(reply, Failure):
        assert reply.disposition in ("retryable", "permanent", "unknown")
        assert reply.progress in ("precommit", "visible")
        return
    ids = [call.id for call in reply.calls]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    assert (reply.outcome == "tool_calls") <= bool(ids)
    assert list(reply.warnings) == sorted(set(reply.warnings))
    assert set(reply.warnings) <= set(get_args(AnswerWarning))
    for call in reply.calls:
        if call.problem is None:
            assert call.name
            assert isinstance(json.loads(call.arguments), dict)


@given(BODY)
def test_any_body_is_read(body: dict[str, Any]) -> None:
    assert_can_go_on(read_message(body, ASKED))


@given(st.lists(BODY | VALUES, max_size=6), st.booleans())
def test_any_stream_is_read(chunks: list[Any], done: bool) -> None:
    assert_can_go_on(read_chunks(chunks, ASKED, done=done))


@given(st.text() | st.lists(BODY).map(lambda cs: "".join(f"data: {json.dumps(c)}\n\n" for c in cs)))
def test_any_text_is_read(text: str) -> None:
    assert_can_go_on(read_text(text, ASKED))
