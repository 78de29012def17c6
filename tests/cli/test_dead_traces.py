"""What the command line says of a question whose handler raised, and no edge takes its error."""

import asyncio
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Envelope
from colony.testing.harness import Harness
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, TopologySpec


def raising(envelope: Envelope, params: object) -> None:
    raise ValueError("max_question: there is no such thing")


def spec() -> TopologySpec:
    """A handler that raises, whose edge takes only what it would say otherwise."""
    prep = CellSpec(
        path="/prep",
        cell=CellSettings(type="code"),
        params={"handler": f"{__name__}:raising"},
    )
    return TopologySpec(
        hives=("/",),
        cells=(prep, CellSpec(path="/out", cell=CellSettings(type="sink"))),
        edges=(EdgeSpec(source="/prep", target="/out", condition="has(hop.route)"),),
    )


@pytest.fixture
def dead(redis_url: str) -> str:
    """A trace that died of it."""

    async def ask() -> str:
        async with Harness(redis_url, spec()) as harness:
            trace_id = await harness.send("/prep", Body.of(Entry.say("user", "Why?")))
            await harness.run()
            return trace_id

    return asyncio.run(ask())


@pytest.fixture
def stepped(colony: Any) -> Any:
    """The command, for the colony of a harness."""
    colony.env["COLONY_NAME"] = "stepped"
    return colony


DETAIL = (
    "no edge out of /prep takes this emission, which is an error: "
    "script_failed: ValueError: max_question: there is no such thing"
)


def test_a_trace_says_what_its_handler_raised(stepped: Any, dead: str) -> None:
    last = stepped("trace", dead).stdout.splitlines()[-1]

    assert last.startswith(f"no_route at /prep  {DETAIL}  ")
    assert last.split()[-1] == stepped.json("dead-letters", "list")[0]["id"]


def test_a_trace_that_is_followed_says_it_at_its_end(stepped: Any, dead: str) -> None:
    stepped("cancel", dead)

    assert DETAIL in stepped("trace", dead, "--follow").stdout.splitlines()[-1]


def test_the_letters_of_a_trace_are_told_without_their_envelopes(stepped: Any, dead: str) -> None:
    (letter,) = stepped.json("trace", dead)["dead_letters"]

    assert letter == {
        "id": stepped.json("dead-letters", "list")[0]["id"],
        "error_code": "no_route",
        "cell": "/prep",
        "detail": DETAIL,
    }


def test_a_letter_that_was_dropped_is_told_no_more(stepped: Any, dead: str) -> None:
    stepped("dead-letters", "drop", stepped.json("dead-letters", "list")[0]["id"])

    assert "no_route at" not in stepped("trace", dead).stdout
    assert stepped.json("trace", dead)["dead_letters"] == []
