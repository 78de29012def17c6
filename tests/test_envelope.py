"""Envelopes: what may stand in a head, and where ids come from."""

import math
import time
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from colony.body import Body, Entry
from colony.envelope import (
    DEFAULT_TTL,
    EXTERNAL,
    MAX_TTL,
    Emission,
    Envelope,
    Head,
    derived_id,
    digest,
    iteration_of,
    new_id,
)

PARTS = st.lists(st.text() | st.integers(), min_size=1, max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def head(**fields: Any) -> Head:
    return Head(**{"id": "m-1", "trace_id": "t-1", "target": "/a", "ttl": 3, **fields})


def test_a_head_starts_outside_with_nothing_but_an_address() -> None:
    plain = head()

    assert plain.sender == EXTERNAL == "@external"
    assert (plain.context, plain.hop) == ({}, {})
    assert (plain.parent_message_id, plain.reply_to, plain.correlation_id) == (None, None, None)
    assert abs(plain.created_at - time.time() * 1000) < 60_000
    assert DEFAULT_TTL == 64


def test_two_heads_share_no_headers() -> None:
    assert head().context is not head().context


@pytest.mark.parametrize(
    "fields",
    [
        {"ttl": -1},
        {"ttl": MAX_TTL + 1},
        {"ttl": 1.0},
        {"ttl": "5"},
        {"ttl": True},
        {"ttl": None},
        {"id": 7},
        {"id": None},
        {"target": 7},
        {"context": None},
        {"context": []},
        {"context": {1: 2}},
        {"context": {"k": b"bytes"}},
        {"context": {"k": math.nan}},
        {"hop": {"k": [math.inf]}},
        {"hop": {"k": (1, 2)}},
        {"created_at": 1.5},
        {"unknown": 1},
    ],
)
def test_a_head_with_a_wrong_field_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        head(**fields)


@pytest.mark.parametrize("ttl", [0, 1, MAX_TTL])
def test_a_ttl_is_a_32_bit_number(ttl: int) -> None:
    assert head(ttl=ttl).ttl == ttl


def test_an_envelope_is_a_head_with_a_body() -> None:
    body = Body.of(Entry.say("user", "hello"))
    envelope = Envelope(**dict(head()), body=body)

    assert isinstance(envelope, Head)
    assert envelope.body.last("user") == Entry.say("user", "hello")


def test_an_emission_has_hop_and_body_and_no_address() -> None:
    emission = Emission.say("hello", route="done", n=1)

    assert emission.hop == {"route": "done", "n": 1}
    assert emission.body.last("assistant") == Entry.say("assistant", "hello")
    assert set(Emission.model_fields) == {"hop", "body"}


def test_a_new_id_is_a_uuid7_of_this_moment() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_id())
    after = time.time_ns() // 1_000_000

    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= after
    assert len({new_id() for _ in range(1000)}) == 1000


@given(PARTS)
def test_a_derived_id_is_a_uuid5_and_stays_the_same(parts: list[str | int]) -> None:
    made = derived_id(*parts)

    assert made == derived_id(*parts)
    assert uuid.UUID(made).version == 5
    assert uuid.UUID(made).variant == uuid.RFC_4122
    assert str(uuid.UUID(made)) == made


@given(PARTS, PARTS)
def test_other_parts_give_another_id(one: list[str | int], other: list[str | int]) -> None:
    assert (derived_id(*one) == derived_id(*other)) is (one == other)


def test_parts_do_not_run_into_each_other() -> None:
    ids = [
        derived_id(*parts) for parts in [("a", "b"), ("ab",), ("a", 1), ("a", "1"), ("a", "", "1")]
    ]

    assert len(set(ids)) == len(ids)


def test_a_derived_id_is_the_same_on_every_host_and_version() -> None:
    assert derived_id("m-1", 0) == "571d5132-2556-54da-a218-297208170d6d"


@given(JSON)
def test_a_digest_does_not_depend_on_the_order_of_keys(value: Any) -> None:
    def turned(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: turned(item[key]) for key in reversed(item)}
        return [turned(child) for child in item] if isinstance(item, list) else item

    assert digest(value) == digest(turned(value))


def test_a_digest_tells_unlike_values_apart() -> None:
    values: list[Any] = [
        [],
        {},
        None,
        "",
        0,
        False,
        "0",
        [0],
        {"a": []},
        {"a": {}},
        2**53,
        2**53 + 1,
    ]

    assert len({digest(value) for value in values}) == len(values)


def test_a_digest_can_be_made_of_text_that_is_no_unicode() -> None:
    assert digest("\ud800") != digest("\udfff")


@pytest.mark.parametrize(
    ("told", "iteration"),
    [(3, 3), ("3", 3), (2.0, 2), ("x", 0), ([3], 0), (math.inf, 0), (None, 0)],
)
def test_a_round_is_counted_in_numbers_or_texts_and_nothing_else(told: Any, iteration: int) -> None:
    assert iteration_of({"iter": told}) == iteration
