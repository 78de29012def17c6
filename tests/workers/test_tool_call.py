import asyncio
import json

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.errors import Unreadable
from colony.results import MAX_RESULT_BYTES
from colony.testing.host import RecordingHost
from workers.tool_call import Answer, Arguments, answer


class Wish(Arguments):
    """Not part of the schema a model is shown."""

    text: str
    times: int = 1


def envelope(*entries: Entry) -> Envelope:
    return Envelope(id="e", trace_id="t", target="/tool", ttl=9, body=Body.of(*entries))


def call(text: str | None, call_id: str = "call-1") -> Entry:
    return Entry(origin="assistant", type="tool_call", id=call_id, text=text)


async def repeat(wish: Wish) -> Answer:
    return Answer(wish.text * wish.times, {"chars": len(wish.text)})


async def ask(*entries: Entry, do=repeat, timeout_ms: int | None = 5_000) -> Emission:
    [emission] = await answer(
        envelope(*entries),
        do,
        host=RecordingHost.of("tool"),
        operation="repeat",
        arguments=Wish,
        timeout_ms=timeout_ms,
    )
    return emission


async def test_a_call_is_answered_under_its_id_with_counters() -> None:
    emission = await ask(Entry.call("call-7", {"text": "ab", "times": 2}))

    assert emission.body.entries == (Entry.result("call-7", "abab"),)
    duration = emission.hop.pop("duration_ms")
    assert isinstance(duration, int)
    assert emission.hop == {"operation": "repeat", "chars": 2}


async def test_other_entries_beside_the_call_are_ignored() -> None:
    emission = await ask(Entry.say("user", "hello"), Entry.call("call-1", {"text": "x"}))

    assert emission.body.entries == (Entry.result("call-1", "x"),)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "no json",
        "[]",
        '"text"',
        '{"times": 2}',
        '{"text": 5}',
        '{"text": "x", "txet": "y"}',
        '{"text": "\\ud800"}',
        "[" * 100_000,
    ],
)
async def test_malformed_arguments_are_an_error_under_the_id(text: str | None) -> None:
    emission = await ask(call(text, "call-9"))

    [entry] = emission.body.entries
    assert (entry.type, entry.id, entry.is_error) == ("tool_result", "call-9", True)
    assert entry.text
    assert entry.text.startswith("invalid_input: ")
    assert emission.hop["operation"] == "repeat"
    assert emission.hop["finish_reason"] == "error"
    assert emission.hop["error_code"] == "invalid_input"
    assert "duration_ms" in emission.hop


async def test_several_calls_are_refused_under_each_id() -> None:
    emission = await ask(call('{"text": "x"}', "a"), call('{"text": "y"}', "b"))

    assert [(entry.id, entry.is_error) for entry in emission.body.entries] == [
        ("a", True),
        ("b", True),
    ]
    assert emission.hop["error_code"] == "invalid_input"


async def test_no_call_is_an_error_without_a_result() -> None:
    emission = await ask(Entry.say("user", "hello"))

    assert [entry.type for entry in emission.body.entries] == ["text"]
    assert emission.hop["error_code"] == "invalid_input"


async def test_a_tool_that_fails_says_why_to_model_and_edges() -> None:
    async def fail(wish: Wish) -> Answer:
        raise Unreadable(detail="the disk is wet", hop={"http_status": 503})

    emission = await ask(Entry.call("call-1", {"text": "x"}), do=fail)

    assert emission.body.entries == (
        Entry.result("call-1", "io_error: the disk is wet", is_error=True),
    )
    assert emission.hop["error_code"] == "io_error"
    assert emission.hop["http_status"] == 503


async def test_a_tool_that_never_ends_is_a_timeout() -> None:
    async def hang(wish: Wish) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    emission = await ask(Entry.call("call-1", {"text": "x"}), do=hang, timeout_ms=20)

    assert emission.hop["error_code"] == "timeout"
    assert emission.body.entries[0].id == "call-1"


async def test_a_bug_of_the_tool_is_not_hidden() -> None:
    async def stumble(wish: Wish) -> Answer:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await ask(Entry.call("call-1", {"text": "x"}), do=stumble)


async def test_an_answer_may_name_its_own_operation() -> None:
    async def insert(wish: Wish) -> Answer:
        return Answer("done", {"operation": "insert"})

    emission = await ask(Entry.call("call-1", {"text": "x"}), do=insert)

    assert emission.hop["operation"] == "insert"


def test_the_schema_holds_what_a_model_needs_and_nothing_else() -> None:
    assert Wish.schema_of_tool() == {
        "type": "object",
        "additionalProperties": False,
        "properties": {"text": {"type": "string"}, "times": {"type": "integer", "default": 1}},
        "required": ["text"],
    }
    assert "title" not in json.dumps(Wish.schema_of_tool())


def test_a_text_within_the_cap_is_whole() -> None:
    found = Answer.capped("äöü", max_bytes=6, lines=1)

    assert found == Answer("äöü", {"bytes": 6, "lines": 1})


def test_a_text_above_the_cap_is_cut_between_characters() -> None:
    found = Answer.capped("äöü", max_bytes=5)

    hop = {"bytes": 6, "truncated": True}
    assert found == Answer("äö… [truncated, 6 bytes total]", hop, whole="äöü")


async def test_what_is_cut_off_is_shelved_and_named_by_the_result() -> None:
    host = RecordingHost.of("tool")

    async def say(wish: Wish) -> Answer:
        return Answer.capped("äöü", max_bytes=5)

    [emission] = await answer(
        envelope(call('{"text": "x"}')),
        say,
        host=host,
        operation="say",
        arguments=Wish,
        timeout_ms=None,
    )

    [handle] = host.shelved
    assert host.shelved[handle] == "äöü".encode()
    assert emission.hop["shelved"] == [handle]
    assert (emission.body.entries[0].text or "").endswith(f"\n[kept: 6 bytes at {handle}]")


@pytest.mark.parametrize(("keep_bytes", "kept"), [(0, None), (3, None), (4, "äö"), (5, "äö")])
def test_of_a_text_above_the_cap_no_more_is_kept_than_is_said(
    keep_bytes: int, kept: str | None
) -> None:
    assert Answer.capped("äöü", max_bytes=3, keep_bytes=keep_bytes).whole == kept


def test_a_text_that_is_only_the_beginning_says_so() -> None:
    found = Answer.capped("abc", max_bytes=10, size=99)

    assert found == Answer("abc… [truncated, 99 bytes total]", {"bytes": 99, "truncated": True})


def test_a_text_that_cannot_be_encoded_is_repaired() -> None:
    assert Answer.capped("a\ud800b", max_bytes=10).text == "a?b"


def test_no_cap_lets_through_more_than_a_result_may_have() -> None:
    found = Answer.capped("x" * (MAX_RESULT_BYTES + 1_000), max_bytes=1 << 30)

    assert found.text.count("x") == MAX_RESULT_BYTES
    assert found.whole is not None


@pytest.mark.parametrize(
    ("keep_bytes", "size", "ends"),
    [(50_000, None, True), (49_999, None, False), (1, 60_000, False)],
)
def test_the_end_of_a_text_is_shown_where_all_of_it_is_kept(
    keep_bytes: int, size: int | None, ends: bool
) -> None:
    text = "x" * 49_997 + "END"

    found = Answer.capped(text, max_bytes=32_768, keep_bytes=keep_bytes, size=size)

    assert found.text.endswith("END") == ends
    assert found.text.startswith("x" * (28_672 if ends else 32_768) + "… [truncated, ")
