"""Requests are cut at their messages, and put together they are what they were."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colony.requests import cut

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def written(value: Any, **how: Any) -> bytes:
    return json.dumps(value, **how).encode()


def test_each_message_is_a_piece() -> None:
    body = b'{"model":"m","messages":[{"a":"]}"} , {"b":1}],"tools":[]}'

    assert cut(body) == [
        b'{"model":"m","messages":[',
        b'{"a":"]}"}',
        b' , {"b":1}',
        b'],"tools":[]}',
    ]


def test_a_request_without_messages_in_it_has_two_pieces() -> None:
    assert cut(b'{"messages":[],"model":"m"}') == [b'{"messages":[', b'],"model":"m"}']


@pytest.mark.parametrize(
    "body",
    [b"", b"no JSON", b"[1]", b'{"model":"m"}', b'{"messages":5}', b'{"messages":[1', b"\xff\xfe",
     b'{"messages":[1 2]}', b'{"messages"', b'{"a":1 "messages":[]}', b"[" * 100_000],
)  # fmt: skip
def test_what_has_no_messages_is_one_piece(body: bytes) -> None:
    assert cut(body) == [body]


@given(
    before=st.dictionaries(TEXTS, JSON, max_size=3),
    messages=st.lists(JSON, max_size=5),
    after=st.dictionaries(TEXTS, JSON, max_size=3),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
def test_the_pieces_are_the_body(
    before: Any, messages: Any, after: Any, ascii_only: bool, indent: int | None
) -> None:
    told = {k: v for k, v in before.items() if k != "messages"}
    rest = {k: v for k, v in after.items() if k != "messages" and k not in told}
    whole = {**told, "messages": messages, **rest}
    body = written(whole, ensure_ascii=ascii_only, indent=indent)

    pieces = cut(body)

    assert b"".join(pieces) == body
    assert [json.loads(piece.lstrip(b", \n")) for piece in pieces[1:-1]] == messages


@given(st.binary(max_size=60))
def test_whatever_the_bytes_are_the_pieces_are_they(body: bytes) -> None:
    assert b"".join(cut(body)) == body


@given(earlier=st.lists(JSON, max_size=5), later=st.lists(JSON, max_size=5))
def test_a_longer_thread_shares_all_pieces_of_its_beginning(earlier: Any, later: Any) -> None:
    def pieces(messages: Any) -> list[bytes]:
        return cut(written({"model": "m", "messages": messages, "tools": []}))

    before, after = pieces(earlier), pieces([*earlier, *later])

    assert after[: len(earlier) + 1] == before[:-1]
    assert after[-1] == before[-1]
