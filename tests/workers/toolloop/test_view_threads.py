"""What is shown of any thread, under any caps: always one that providers take as it is."""

import copy
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colony.body import Body
from colony.envelope import Envelope
from colony.testing.host import RecordingHost
from colony.testing.messages_server import MessagesServer
from colony.testing.model_server import ModelServer
from colony.testing.threads import block_problem, problem
from tests.workers.toolloop.threads import TURN, threads
from workers.llm import Llm
from workers.llm.servers.message_blocks import to_alternating
from workers.llm.threads.pairing import repaired
from workers.llm.threads.thread import to_messages
from workers.toolloop.eviction import weight_of
from workers.toolloop.thread import Thread
from workers.toolloop.view import ViewParams, view

CAPS = st.builds(
    ViewParams,
    max_result_bytes=st.sampled_from([1, 300, 16_384]),
    max_round_bytes=st.sampled_from([1, 2_000, 65_536]),
    max_view_bytes=st.one_of(st.integers(1, 20_000), st.just(262_144)),
    max_rounds=st.integers(1, 22),
)


def shown_of(rows, caps):
    return view(Thread.of(rows, TURN), caps)


def is_marker(entry):
    return entry.type == "text" and " of this question, with " in (entry.text or "")


def parted(rows, caps):
    """What is shown: the entries before the rounds, the marker, and the entries of the rounds."""
    thread, shown = Thread.of(rows, TURN), shown_of(rows, caps)
    before = len(thread.earlier) + 1 + (thread.summary is not None)
    marker = [entry for entry in shown[before:] if is_marker(entry)]
    return shown[:before], marker, [entry for entry in shown[before:] if not is_marker(entry)]


@given(threads(), CAPS)
@settings(max_examples=300, deadline=None)
def test_any_view_is_a_thread_that_strict_servers_take_unrepaired(rows, caps):
    shown = shown_of(rows, caps)

    sent, repairs = repaired(shown)
    assert repairs == {}
    assert problem(to_messages(sent, None)) is None
    assert block_problem(to_alternating(sent)) is None


@given(threads(), CAPS)
@settings(max_examples=200, deadline=None)
def test_rounds_leave_whole_and_oldest_first_and_the_newest_never_does(rows, caps):
    unfolded = Thread.of(rows, TURN).unfolded

    _, marker, shown = parted(rows, caps)

    ids = [(entry.type, entry.id) for entry in shown]
    starts = [
        first
        for first in range(len(unfolded) + 1)
        if ids == [(e.type, e.id) for f in unfolded[first:] for e in [*f.said, *f.answers]]
    ]
    assert starts
    assert bool(marker) == (min(starts) > 0)
    assert not unfolded or min(starts) < len(unfolded)


@given(threads(), CAPS)
@settings(max_examples=200, deadline=None)
def test_caps_hold_with_the_marker_unless_one_round_alone_is_above_them(rows, caps):
    _, marker, shown = parted(rows, caps)

    turns = [kind for kind, _ in groupby(entry.type == "tool_result" for entry in shown)]
    rounds = turns.count(True)
    assert rounds <= caps.max_rounds
    assert rounds <= 1 or weight_of([*marker, *shown]) <= caps.max_view_bytes


@given(threads(), CAPS)
@settings(max_examples=200, deadline=None)
def test_what_a_marker_adds_is_no_message_of_its_own(rows, caps):
    before, _, shown = parted(rows, caps)

    with_it = to_messages(shown_of(rows, caps), None)
    without = to_messages([*before, *shown], None)

    assert [message["role"] for message in with_it] == [message["role"] for message in without]


@given(threads(), CAPS)
@settings(max_examples=100, deadline=None)
def test_what_has_left_does_not_come_back_and_the_rows_are_as_they_were(rows, caps):
    kept = copy.deepcopy(rows)
    rows_of_rounds = [row for row in rows if row["role"] != "summary"]
    newest = max(int(row["iter"]) for row in rows_of_rounds)

    left = []
    for iteration in range(newest + 1):
        then = [row for row in rows_of_rounds if int(row["iter"]) <= iteration]
        results = [entry for entry in shown_of(then, caps) if entry.type == "tool_result"]
        made = sum(len(found.answers) for found in Thread.of(then, TURN).in_order)
        left.append(made - len(results))

    assert left == sorted(left)
    assert rows == kept


@given(threads(), CAPS)
@settings(max_examples=50, deadline=None)
def test_the_same_rows_are_shown_by_the_same_bytes(rows, caps):
    one, other = shown_of(rows, caps), shown_of(copy.deepcopy(rows), caps)

    assert Body.of(*one).model_dump_json() == Body.of(*other).model_dump_json()


@pytest.fixture(scope="module")
def model_server():
    with ModelServer(lambda request: {"text": "done"}) as server:
        yield server


@pytest.fixture(scope="module")
def messages_server():
    with MessagesServer(lambda request: {"content": "done"}) as server:
        yield server


async def asked(server, provider, entries):
    params = {"provider": provider, "model": "m", "base_url": server.base_url, "attempts": 1}
    host = RecordingHost.of("llm", params)
    cell = Llm(Llm.Params.model_validate(host.spec.params))
    await cell.start(host)
    body = Body.of(*entries)
    asking = Envelope(id="m-1", trace_id="t-1", target="/cell", ttl=9, context={}, body=body)
    (emission,) = await cell.handle(asking, host)
    await cell.stop()
    return emission


@given(threads(), CAPS)
@settings(max_examples=10, deadline=None)
async def test_a_view_that_is_sent_is_answered(model_server, messages_server, rows, caps):
    shown = shown_of(rows, caps)

    for server, provider in ((model_server, "openai"), (messages_server, "anthropic")):
        emission = await asked(server, provider, shown)
        assert emission.body.entries[-1].text == "done"
        assert server.refused == []
