"""Hop records: what the log keeps of an envelope, and what it must not keep."""

import pytest
from pydantic import JsonValue

from colony.body import Body, Entry
from colony.codec import encode_blob_reference, encode_body, pack
from colony.envelope import Head
from colony.records import EXCERPT_CHARS, EXCERPT_MAX_BYTES, excerpt, read_record, write_record
from colony.routing import Leg
from colony.topology.model import Edge, EdgeSpec

HEAD = Head(
    id="id",
    trace_id="trace",
    target="/b",
    ttl=5,
    sender="/a",
    reply_to="/a",
    parent_message_id="parent",
    context={"k": [1, {"deep": None}]},
    hop={"route": "on"},
    created_at=123,
)
EDGE = Edge.compile(EdgeSpec(source="/a", target="/b", condition="hop.route == 'on'"))


def test_a_record_reads_as_it_was_written() -> None:
    record = read_record(b"1700000000000-3", write_record(Leg(HEAD, EDGE), {"some": "body"}))

    assert record.head == HEAD
    assert (record.entry, record.at) == ("1700000000000-3", 1700000000000)
    assert record.condition == "hop.route == 'on'"
    assert record.body == {"some": "body"}


def test_a_record_keeps_a_head_made_in_this_very_millisecond() -> None:
    heads = [Head(id=str(n), trace_id="trace", target="/b", ttl=5) for n in range(2_000)]

    read = [read_record(b"1-0", write_record(Leg(head, None), None)).head for head in heads]

    assert read == heads


def test_a_record_of_a_birth_has_no_edge() -> None:
    record = read_record(b"1-0", write_record(Leg(HEAD, None), None))

    assert (record.condition, record.body) == (None, None)


def test_a_record_is_shown_with_its_envelope() -> None:
    shown = read_record(b"7-0", write_record(Leg(HEAD, EDGE), None)).to_json()

    assert shown == {
        "id": "id",
        "trace_id": "trace",
        "parent_message_id": "parent",
        "correlation_id": None,
        "ttl": 5,
        "from_path": "/a",
        "to_path": "/b",
        "reply_to": "/a",
        "headers": {"context": {"k": [1, {"deep": None}]}, "hop": {"route": "on"}},
        "condition": "hop.route == 'on'",
        "body_kind": "inline",
        "body_payload": None,
        "created_at": 123,
        "at": 7,
    }


def test_none_of_a_body_is_kept_where_none_is_asked_for() -> None:
    assert excerpt(encode_body(Body.of(Entry.say("user", "hello"))), "none") is None


def test_an_excerpt_keeps_the_shape_and_cuts_the_texts() -> None:
    data = pack({"messages": [{"text": "x" * 5000, "n": 1.5, "ok": True, "no": None}]})

    assert excerpt(data, "excerpt") == {
        "messages": [{"text": "x" * EXCERPT_CHARS + "…", "n": 1.5, "ok": True, "no": None}]
    }
    assert excerpt(data, "full") == {
        "messages": [{"text": "x" * 5000, "n": 1.5, "ok": True, "no": None}]
    }


def test_of_a_large_body_an_excerpt_keeps_the_size() -> None:
    data = pack({"text": "x" * EXCERPT_MAX_BYTES})

    assert excerpt(data, "excerpt") == {"size_bytes": len(data)}
    assert excerpt(data, "full") == {"text": "x" * EXCERPT_MAX_BYTES}


@pytest.mark.parametrize("bodies", ["excerpt", "full"])
def test_of_a_body_behind_a_reference_the_id_is_kept(bodies: str) -> None:
    kept = excerpt(encode_blob_reference("blob"), bodies)  # type: ignore[arg-type]

    assert kept == {"blob_id": "blob"}
    assert read_record(b"1-0", write_record(Leg(HEAD, None), kept)).body_kind == "blob"


@pytest.mark.parametrize("bodies", ["excerpt", "full"])
@pytest.mark.parametrize(
    "secret", ["api_key", "token", "ACCESS_TOKEN", "password", "client_secret", "auth"]
)
def test_secrets_are_never_kept(bodies: str, secret: str) -> None:
    data = pack({"messages": [{"arguments": {secret: "s3cret", "query": "fine"}}]})

    kept: JsonValue = excerpt(data, bodies)  # type: ignore[arg-type]

    assert "s3cret" not in str(kept)
    assert "fine" in str(kept)


def test_of_broken_bytes_nothing_is_kept() -> None:
    assert excerpt(b"\xc1", "full") is None


def test_what_has_no_json_form_is_not_kept() -> None:
    assert excerpt(pack({"raw": b"bytes"}), "full") == {"raw": None}
