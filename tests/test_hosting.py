"""What a cell may ask while it handles an envelope, as Redis answers it."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from colony.body import Body, Entry
from colony.envelope import Envelope
from colony.errors import Fenced, NotFound, ServerChanged
from colony.hosting import LiveHost
from colony.keys import Keys
from colony.link import Link
from colony.requests import Requests
from colony.topology.model import CellSettings, CellSpec
from colony.traces import Traces, read_output

KEYS = Keys("test")
HELLO = Body.of(Entry.say("user", "hello"))

MakeHost = Callable[..., LiveHost]


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


@pytest.fixture
async def trace_id(link: Link) -> str:
    return (await Traces(link, KEYS).birth("/a", HELLO, ttl=9)).trace_id


@pytest.fixture
async def host(link: Link, trace_id: str) -> MakeHost:
    """Makes the host of a handle; of the same envelope unless another one is named."""
    server = await link.open()

    def make(envelope_id: str = "e", path: str = "/a", **more: Any) -> LiveHost:
        envelope = Envelope(
            id=envelope_id,
            trace_id=more.pop("trace_id", trace_id),
            target=path,
            ttl=1,
            context=more.pop("context", {}),
            body=HELLO,
        )
        return LiveHost(
            link=link,
            keys=KEYS,
            spec=CellSpec(path=path, cell=CellSettings(type="code")),
            directory=None,
            tools=(),
            envelope=envelope,
            server=more.pop("server", server),
        )

    return make


async def test_the_first_value_of_a_name_wins_in_every_handle_of_an_envelope(
    host: MakeHost,
) -> None:
    assert await host().recall("answer") is None
    assert await host().record("answer", b"first") == b"first"
    assert await host().record("answer", b"second") == b"first"

    assert await host().recall("answer") == b"first"
    assert await host("another").record("answer", b"own") == b"own"
    assert await host().record("other", b"\x00\xff") == b"\x00\xff"


async def test_a_trace_that_was_ended_takes_no_more(
    link: Link, host: MakeHost, trace_id: str
) -> None:
    await Traces(link, KEYS).end(trace_id, "cancelled", "why")

    with pytest.raises(Fenced):
        await host().record("answer", b"late")
    with pytest.raises(Fenced):
        await host().update_state("trace", {"a": "1"}, [])

    assert await link.command("KEYS", "*journal*") == []
    assert await link.command("KEYS", "*state*") == []


async def test_a_trace_that_is_gone_leaves_no_key(link: Link, host: MakeHost) -> None:
    before = await link.command("DBSIZE")

    with pytest.raises(Fenced):
        await host(trace_id="gone").record("answer", b"late")
    with pytest.raises(Fenced):
        await host(trace_id="gone").update_state("cell", {"a": "1"}, [])

    assert await link.command("DBSIZE") == before


async def test_state_of_a_trace_is_seen_in_that_trace_and_goes_with_it(
    link: Link, host: MakeHost, trace_id: str
) -> None:
    await host().update_state("trace", {"a": "1"}, [])
    await host("other").update_state("trace", {"b": "2"}, [])

    assert await host("third").state("trace") == {"a": "1", "b": "2"}
    assert await host(path="/b").state("trace") == {}
    born = await Traces(link, KEYS).birth("/a", HELLO, ttl=9)
    assert await host(trace_id=born.trace_id).state("trace") == {}
    (key,) = await link.command("SMEMBERS", KEYS.belongings(trace_id))
    assert key.decode() == KEYS.state("/a", "trace", trace_id)


async def test_state_of_a_session_is_seen_in_that_session_and_outlives_the_trace(
    link: Link, host: MakeHost, trace_id: str
) -> None:
    context = {"session_id": "s:{1}"}
    await host(context=context).update_state("session", {"a": "1"}, [])

    born = await Traces(link, KEYS).birth("/a", HELLO, ttl=9)
    later = host(context=context, trace_id=born.trace_id)
    assert await later.state("session") == {"a": "1"}
    assert await host(context={"session_id": "other"}).state("session") == {}
    assert await link.command("EXISTS", KEYS.belongings(trace_id)) == 0


@pytest.mark.parametrize("session", [None, "", 7, ["s"]])
async def test_without_a_session_its_state_is_that_of_the_trace(
    host: MakeHost, session: Any
) -> None:
    await host(context={"session_id": session}).update_state("session", {"a": "1"}, [])

    assert await host().state("trace") == {"a": "1"}


async def test_state_of_a_cell_is_one_for_all(link: Link, host: MakeHost) -> None:
    await host().update_state("cell", {"a": "1"}, [])

    born = await Traces(link, KEYS).birth("/a", HELLO, ttl=9)
    assert await host(trace_id=born.trace_id).state("cell") == {"a": "1"}
    assert await host(path="/b").state("cell") == {}


async def test_leaves_are_removed_at_or_below_a_path_before_others_are_put(
    host: MakeHost,
) -> None:
    await host().update_state("cell", {"a": "1", "a.b": "2", "a.b.c": "3", "ab": "4", "z": "5"}, [])

    result = await host().update_state("cell", {"a.b.d": "6"}, ["a.b", "z", "nothing"])

    assert result == {"a": "1", "ab": "4", "a.b.d": "6"}
    assert await host().state("cell") == result
    assert await host().update_state("cell", {}, []) == result


async def test_the_repeat_of_an_update_changes_nothing(host: MakeHost) -> None:
    for _ in range(2):
        result = await host().update_state("cell", {"a": "1"}, ["a", "b"])

    assert result == {"a": "1"}


async def test_nothing_is_asked_of_another_server(host: MakeHost, link: Link) -> None:
    before = await link.command("DBSIZE")
    late = host(server="another")

    for ask in (
        late.recall("x"),
        late.record("x", b"v"),
        late.state("cell"),
        late.update_state("cell", {"a": "1"}, []),
    ):
        with pytest.raises(ServerChanged):
            await ask

    assert await link.command("DBSIZE") == before


async def test_what_is_kept_is_an_output_with_its_cell(host: MakeHost) -> None:
    own = host()

    own.keep(HELLO, {"route": "done"})

    (kept,) = own.kept
    output = read_output(kept)
    assert (output["path"], output["hop"]) == ("/a", {"route": "done"})
    assert Body.parse(output["body"]) == HELLO


async def test_a_key_that_holds_something_else_is_an_error_and_stays(
    link: Link, host: MakeHost, trace_id: str
) -> None:
    await link.command("SET", KEYS.journal(trace_id), "x")

    with pytest.raises(ResponseError):
        await host().record("answer", b"v")

    assert await link.command("GET", KEYS.journal(trace_id)) == b"x"


@pytest.mark.parametrize("server", ["another", None])
async def test_a_request_that_cannot_be_kept_fails_nothing(
    host: MakeHost,
    link: Link,
    trace_id: str,
    server: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither where the server is another one by now, nor where somebody else wrote the key."""
    await link.command("SET", KEYS.requests(trace_id), "x")

    await host(server=server).record_request(b"{}", provider="p", model="m", attempt=1)

    (line,) = caplog.messages
    assert line.startswith("request_not_recorded")
    assert await link.command("GET", KEYS.requests(trace_id)) == b"x"


async def test_a_request_is_kept_with_what_its_envelope_says(
    host: MakeHost, link: Link, trace_id: str
) -> None:
    body = b'{"messages":[{"a":1},{"b":2}]}'
    for number, context in enumerate(({"turn_id": "q", "iter": "3"}, {"turn_id": 5, "iter": None})):
        asking = host(f"e-{number}", context=context)
        await asking.record_request(body, provider="p", model="m", attempt=1)
        await asking.record_request(body, provider="p", model="m", attempt=2)

    requests = Requests(link, KEYS)
    found = await requests.of_trace(trace_id)
    assert [(r.turn_id, r.iteration) for r in found] == [("q", 3), (None, 0)]
    assert {(r.cell, r.attempt, r.sent, r.size) for r in found} == {("/a", 1, 2, len(body))}
    assert [await requests.body(request) for request in found] == [body, body]


async def test_a_cell_that_starts_has_no_envelope_to_ask_for(link: Link, tmp_path: Path) -> None:
    host = LiveHost(
        link=link,
        keys=KEYS,
        spec=CellSpec(path="/a", cell=CellSettings(type="code")),
        directory=tmp_path,
        tools=(),
        envelope=None,
        server=None,
    )

    assert host.directory == tmp_path
    host.log.info("started")
    with pytest.raises(RuntimeError):
        await host.record("answer", b"v")


async def test_a_shelved_text_is_read_by_every_question_of_its_session_and_by_no_other(
    host: MakeHost, link: Link
) -> None:
    async def asked(**context: Any) -> LiveHost:
        later = await Traces(link, KEYS).birth("/a", HELLO, ttl=9)
        return host(trace_id=later.trace_id, context=context)

    handle = await host(context={"session_id": "s"}).shelve("kept")
    sessionless = await host().shelve("kept for nobody else")

    later = await asked(session_id="s")
    assert await later.read_shelved(handle, offset=1, limit=2) == (b"ep", 4)
    for context in ({}, {"session_id": "t"}, {"session_id": ""}, {"session_id": 1}):
        with pytest.raises(NotFound):
            await (await asked(**context)).read_shelved(handle, offset=0, limit=4)
    for other in (later, await asked()):
        with pytest.raises(NotFound):
            await other.read_shelved(sessionless, offset=0, limit=4)


async def test_a_shelved_text_is_read_in_ranges_by_its_own_trace(
    host: MakeHost, link: Link
) -> None:
    shelf = host()
    handle = await shelf.shelve("äöü" * 10)
    stranger = host(trace_id=(await Traces(link, KEYS).birth("/a", HELLO, ttl=9)).trace_id)

    assert await shelf.read_shelved(handle, offset=2, limit=4) == ("öü".encode(), 60)
    assert await shelf.read_shelved(handle, offset=58, limit=2**70) == ("ü".encode(), 60)
    for offset in (60, 61, 2**63, 2**200):
        assert await shelf.read_shelved(handle, offset=offset, limit=4) == (b"", 60)
    for unknown in ("blob:", "blob:*", handle[:-1], f"{handle}:log", "blob:../" + handle):
        with pytest.raises(NotFound):
            await shelf.read_shelved(unknown, offset=0, limit=4)
    with pytest.raises(NotFound):
        await stranger.read_shelved(handle, offset=0, limit=4)
