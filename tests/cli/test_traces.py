"""Traces from the command line: by session, with what they were asked and whom they wait for."""

import asyncio
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.cli.trace import CONDITION_CHARS
from colony.envelope import Headers
from colony.results import handle_of
from colony.shelf import Shelf
from colony.testing.harness import Harness
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, ModifierSpec, TopologySpec

LONG = "hop.route == 'answer' || " * 9 + "true"
DOCUMENT = "ä line\n" * 300_000


def spec() -> TopologySpec:
    """Questions that come in at `/in` are in order; nobody handles them."""
    in_order = ModifierSpec(in_session_order=True)
    return TopologySpec(
        hives=("/", "/in"),
        cells=(CellSpec(path="/a", cell=CellSettings(type="sink")),),
        edges=(EdgeSpec(source="/in", target="/a", condition=LONG, modifier=in_order),),
    )


@pytest.fixture
def waiting(redis_url: str) -> list[str]:
    """Two questions of the session `me`, of which the second waits, and a large one of none."""

    async def ask() -> list[str]:
        async with Harness(redis_url, spec()) as harness:
            asked: list[str] = []
            for session, text in (("me", "Who is it?"), ("me", "And then?"), ("", "ö" * 50_000)):
                context: Headers = {"session_id": session} if session else {}
                body = Body.of(Entry.say("user", text))
                asked.append(await harness.send("/in", body, context=context, hop={"route": "x"}))
            for delivery in await harness.pending():
                await harness.step(delivery)
            return asked

    return asyncio.run(ask())


@pytest.fixture
def stepped(colony: Any) -> Any:
    """The command, for the colony of a harness."""
    colony.env["COLONY_NAME"] = "stepped"
    return colony


def test_traces_are_listed_with_session_and_question(stepped: Any, waiting: list[str]) -> None:
    first, second, large = waiting

    titles, *lines = stepped("traces").stdout.splitlines()

    assert titles.split() == "id began sent to is why session question".split()
    by_id = {line.split()[0]: line for line in lines}
    assert by_id[first].split()[-6:] == ["/in", "open", "me", "Who", "is", "it?"]
    assert f"waits for {first}  " in by_id[second]
    assert by_id[second].endswith("me       And then?")
    assert by_id[large].endswith("  open")


def test_the_traces_of_a_session_are_listed(stepped: Any, waiting: list[str]) -> None:
    first, second, _ = waiting
    stepped("cancel", first)

    told = stepped.json("traces", "--session", "me")

    assert [(row["trace_id"], row["state"]) for row in told] == [(second, "open"), (first, "ended")]
    assert told[1]["question"] == "Who is it?"
    assert {row["waits_for"] for row in told} == {None}
    assert stepped.json("traces", "--session", "me", "--state", "ended")[0]["trace_id"] == first
    assert stepped("traces", "--session", "nobody").stdout == "no traces\n"
    assert "it is empty" in stepped("traces", "--session=", status=2).stderr


def test_what_a_trace_waits_for_is_told(stepped: Any, waiting: list[str]) -> None:
    first, second, _ = waiting

    [line] = stepped("trace", second).stdout.splitlines()
    record = stepped.json("trace", second)["record"]

    assert line.endswith(f"waiting for {first}, an older trace of its session")
    assert record["waits_for"] == first
    lines = stepped("status").stdout.splitlines()
    at = lines.index("  1 trace of 1 session waiting their turn")
    assert lines[at + 1] == f"    session me: 1 trace, for {first} to end"


def test_a_long_condition_is_shortened(stepped: Any, waiting: list[str]) -> None:
    shown = stepped("trace", waiting[0]).stdout
    [hop] = stepped.json("trace", waiting[0])["hops"]

    assert f"  [{LONG[: CONDITION_CHARS - 1]}…]  " in shown
    assert hop["children"][0]["condition"] == LONG


def test_a_large_body_is_shown_by_its_beginning(stepped: Any, waiting: list[str]) -> None:
    large = waiting[2]

    *_, body = stepped("trace", large, "--bodies").stdout.splitlines()

    assert body.strip().startswith("user text: öööö")
    assert body.endswith("…")
    assert "blob_id" in stepped.json("trace", large)["hops"][0]["body_payload"]


@pytest.fixture
def handle(redis_url: str, waiting: list[str]) -> str:
    """A document of a trace."""

    async def keep() -> str:
        async with Harness(redis_url, spec()) as harness:
            shelf = Shelf(harness.link, harness.keys, waiting[0], session="s", server=None)
            handle, key = await shelf.put(DOCUMENT.encode())
            await harness.link.command("SADD", harness.keys.belongings(waiting[0]), key)
            return handle

    return asyncio.run(keep())


def test_a_document_is_printed_byte_for_byte(stepped: Any, handle: str) -> None:
    data = DOCUMENT.encode()

    assert stepped("document", handle).stdout_bytes == data
    assert stepped("document", f"{handle}).").stdout_bytes == data
    assert stepped("document", handle, "--offset", "1", "--limit", "9").stdout_bytes == data[1:10]
    assert stepped("document", handle, "--offset", "1600000").stdout_bytes == data[1_600_000:]


def test_a_document_that_is_not_there_is_told(stepped: Any, handle: str) -> None:
    size = len(DOCUMENT.encode())

    behind = stepped("document", handle, "--offset", str(size), status=2)
    assert f"--offset {size} is behind the end: there are {size} bytes" in behind.stderr
    other = handle_of(b"other", handle.partition("@")[2])
    assert "document_not_found: nothing is kept as" in stepped("document", other, status=2).stderr
    assert "the handle is malformed" in stepped("document", "nope", status=2).stderr
