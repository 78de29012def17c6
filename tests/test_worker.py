"""The worker's desk: what becomes of an envelope, whatever its cell does with it."""

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.codec import decode_body, decode_head, encode_blob_reference
from colony.dead_letters import Buried
from colony.envelope import Emission, Envelope, derived_id, digest
from colony.errors import CellError, Fenced
from colony.host import Host
from colony.streams import Delivery
from colony.testing.claims import eventually
from colony.testing.harness import Harness
from colony.topology.model import (
    CellSettings,
    CellSpec,
    ColonySettings,
    Consumes,
    Contract,
    EdgeSpec,
    Emits,
    FieldSpec,
    ToolDeclaration,
    TopologySpec,
)

HELLO = Body.of(Entry.say("user", "hello"))

Acts = dict[str, Any]
Start = Callable[..., Any]


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> Acts:
    """What cells of the type `probe` do, by the name their params give."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "probe"))
    found: Acts = importlib.import_module("colony_probe").Probe.ACTS
    found.clear()
    return found


def probe(
    path: str,
    *,
    contract: Contract | None = None,
    timeout_ms: int | None = None,
    **params: Any,
) -> CellSpec:
    settings = CellSettings(type="probe", message_timeout=timeout_ms)
    return CellSpec(path=path, cell=settings, params=params, contract=contract)


def edge(source: str, target: str) -> EdgeSpec:
    return EdgeSpec(source=source, target=target)


def contract(*, needs: str | None = None, emits: str | None = None) -> Contract:
    required = FieldSpec(type="string")
    return Contract(
        version="1",
        settings={},
        consumes=Consumes(hop={needs: required} if needs else {}),
        emits=Emits(hop={emits: required} if emits else {}),
    )


@pytest.fixture
async def start(redis_url: str, acts: Acts) -> AsyncIterator[Start]:
    """Starts the cells and edges of a tree, stepped."""
    async with AsyncExitStack() as stack:

        async def begin(*parts: CellSpec | EdgeSpec, **settings: Any) -> Harness:
            spec = TopologySpec(
                settings=ColonySettings(**settings),
                cells=tuple(part for part in parts if isinstance(part, CellSpec)),
                edges=tuple(part for part in parts if isinstance(part, EdgeSpec)),
            )
            return await stack.enter_async_context(Harness(redis_url, spec))

        yield begin


async def at_cell(harness: Harness, trace_id: str) -> Delivery:
    """The delivery of the trace's first envelope to its cell."""
    (birth,) = await harness.pending()
    await harness.step(birth)
    (delivery,) = await harness.pending()
    assert delivery.head.trace_id == trace_id
    return delivery


async def only_letter(harness: Harness) -> Buried:
    (letter,) = await harness.letters()
    return letter


def doing(acts: Acts, name: str, *emissions: Emission, error: BaseException | None = None) -> None:
    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        if error is not None:
            raise error
        return emissions

    acts[name] = act


async def test_emissions_carry_the_correlation_of_what_they_answer(
    start: Start, acts: Acts
) -> None:
    doing(acts, "one", Emission.say("a"))
    harness = await start(probe("/a", act="one"), edge("/a", "/a"))
    delivery = await at_cell(harness, await harness.send("/a", HELLO))
    correlated = delivery.head.model_copy(update={"correlation_id": "order-1"})

    step = await harness.decide(replace(delivery, head=correlated))

    (emission,) = step.published
    assert decode_head(emission.head).correlation_id == "order-1"


async def test_emissions_come_from_their_cell_in_order_and_ride_the_context(
    start: Start, acts: Acts
) -> None:
    doing(acts, "two", *(Emission.say(text, n=n) for n, text in enumerate("ab")))
    harness = await start(probe("/a", act="two"), edge("/a", "/a"))
    trace_id = await harness.send("/a", HELLO, context={"k": 1}, ttl=9)
    delivery = await at_cell(harness, trace_id)

    step = await harness.decide(delivery)
    await harness.commit(step)

    first, second = await harness.pending()
    head = first.head
    assert [d.head.hop for d in (first, second)] == [{"n": 0}, {"n": 1}]
    assert [d.head.id for d in (first, second)] == [
        derived_id(delivery.head.id, n) for n in range(2)
    ]
    assert (head.sender, head.reply_to, head.target) == ("/a", "/a", None)
    assert (head.parent_message_id, head.trace_id) == (delivery.head.id, trace_id)
    assert (head.ttl, head.context) == (8, {"k": 1})
    again = await harness.decide(delivery)
    assert decode_head(again.published[0].head).id == first.head.id


async def test_what_a_cell_needs_and_does_not_get_is_refused_and_answered_once(
    start: Start, acts: Acts
) -> None:
    called: list[str] = []

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        called.append(envelope.id)
        return []

    acts["called"] = act
    picky = probe("/picky", act="called", contract=contract(needs="must"))
    harness = await start(probe("/asker"), picky, edge("/asker", "/picky"))
    trace_id = await harness.send("/asker", HELLO, ttl=20)

    asked = await at_cell(harness, trace_id)
    await harness.step(asked)
    await harness.step((await harness.pending())[0])
    (refused,) = await harness.pending()
    assert refused.head.target == "/picky"
    await harness.step(refused)
    (reply,) = await harness.pending()

    letter = await only_letter(harness)
    assert (letter.code, letter.facts["resolved_target"]) == ("consumes_violation", "/picky")
    assert "must" in str(letter.facts["detail"])
    assert called == []
    assert reply.head.hop == {
        "finish_reason": "error",
        "error_code": "consumes_violation",
        "dead_target": "/picky",
        "dead_message_id": refused.head.id,
    }
    assert (reply.head.target, reply.head.reply_to) == ("/asker", None)


async def test_a_reply_that_is_refused_itself_is_not_answered(start: Start, acts: Acts) -> None:
    """Two cells that refuse each other's refusals would talk for ever."""
    one = probe("/one", contract=contract(needs="must"))
    two = probe("/two", contract=contract(needs="must"))
    harness = await start(one, two, edge("/one", "/two"), edge("/two", "/one"))
    trace_id = await harness.send("/one", HELLO, hop={"must": "x"}, ttl=20)

    await harness.finish()

    codes = [letter.code for letter in await harness.letters()]
    assert codes == ["consumes_violation"] * 2
    assert (await harness.trace(trace_id)).state == "ended"


async def test_what_a_cell_promised_and_did_not_emit_is_refused_as_a_whole(
    start: Start, acts: Acts
) -> None:
    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        host.keep(HELLO, {})
        return [Emission.say("fine", must="here"), Emission.say("broken")]

    acts["breaks"] = act
    harness = await start(
        probe("/a", act="breaks", contract=contract(emits="must")), edge("/a", "/a")
    )
    trace_id = await harness.ask("/a", "x")

    await harness.finish()

    letter = await only_letter(harness)
    assert letter.code == "contract_violation"
    assert await harness.outputs(trace_id) == []
    assert (await harness.trace(trace_id)).cause == "failed"


@pytest.mark.parametrize(
    ("emission", "code"),
    [
        (Emission.say("x", much="x" * 70_000), "header_too_large"),
        (Emission.say("x" * (10 * 1024 * 1024 + 1)), "body_too_large"),
        (Emission.say("x", n=2**70), "envelope_invalid"),
    ],
    ids=["headers", "body", "number"],
)
async def test_an_emission_that_cannot_be_sent_is_a_dead_letter_and_its_siblings_go_on(
    start: Start, acts: Acts, emission: Emission, code: str
) -> None:
    doing(acts, "large", Emission.say("fine", route="on"), emission)
    harness = await start(probe("/a", act="large"), probe("/b"), edge("/a", "/b"))
    trace_id = await harness.ask("/a", "question")
    delivery = await at_cell(harness, trace_id)

    await harness.step(delivery)

    letter = await only_letter(harness)
    assert letter.code == code
    assert letter.head is not None
    assert letter.head.id == delivery.head.id
    (sibling,) = await harness.pending()
    assert sibling.head.hop == {"route": "on"}


async def test_a_handler_that_raises_is_a_dead_letter(
    start: Start, acts: Acts, caplog: pytest.LogCaptureFixture
) -> None:
    doing(acts, "raises", error=ZeroDivisionError("oh"))
    harness = await start(probe("/a", act="raises"), edge("/a", "/a"))
    trace_id = await harness.ask("/a", "x")

    await harness.finish()

    letter = await only_letter(harness)
    assert letter.code == "cell_failed"
    assert letter.facts["detail"] == "ZeroDivisionError: oh"
    trace = await harness.trace(trace_id)
    assert (trace.cause, trace.reason) == ("failed", "cell_failed")
    assert any("Traceback" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (asyncio.CancelledError("of another task"), "cancelled from within"),
        (SystemExit(3), "asked the process to exit: 3"),
    ],
)
async def test_a_handler_that_would_end_its_task_or_its_process_is_a_dead_letter(
    start: Start, acts: Acts, error: BaseException, told: str
) -> None:
    doing(acts, "ends", error=error)
    harness = await start(probe("/a", act="ends"), edge("/a", "/a"))
    trace_id = await harness.ask("/a", "x")

    await harness.finish()

    letter = await only_letter(harness)
    assert letter.code == "cell_failed"
    assert told in letter.facts["detail"]
    assert (await harness.trace(trace_id)).cause == "failed"


def tool(*, timeout_ms: int | None = None, **parameters: Any) -> Contract:
    declared = ToolDeclaration(
        name="look", description="d", parameters=parameters, timeout_ms=timeout_ms
    )
    return contract().model_copy(update={"tool": declared})


async def test_a_call_that_does_not_fit_is_answered_and_its_tool_not_asked(
    start: Start, acts: Acts
) -> None:
    doing(acts, "never", error=ZeroDivisionError("asked"))
    declared = tool(type="object", required=["q"])
    harness = await start(probe("/a", act="never", contract=declared), edge("/a", "/a"))
    calls = Body.of(Entry.call("wrong", {}), Entry.call("right", {"q": 1}))
    delivery = await at_cell(harness, await harness.send("/a", calls))

    await harness.step(delivery)

    (told,) = await harness.pending()
    assert told.head.hop == {
        "operation": "look",
        "finish_reason": "error",
        "error_code": "invalid_arguments",
    }
    wrong, right = decode_body(told.body).entries
    assert (wrong.id, wrong.is_error) == ("wrong", True)
    assert wrong.text == "invalid_arguments: 'q' is a required property"
    assert (right.id, right.is_error) == ("right", True)
    assert "not run" in (right.text or "")
    assert await harness.letters() == []


async def test_a_call_that_is_not_the_one_that_was_let_out_is_not_made(
    start: Start, acts: Acts
) -> None:
    doing(acts, "never", error=ZeroDivisionError("asked"))
    harness = await start(probe("/a", act="never", contract=tool()), edge("/a", "/a"))
    call = Body.of(Entry.call("c", {"path": "/etc/passwd"}))
    delivery = await at_cell(harness, await harness.send("/a", call))
    approved = {"args_hash": digest({"path": "notes.txt"})}

    await harness.step(replace(delivery, head=delivery.head.model_copy(update={"hop": approved})))

    (told,) = await harness.pending()
    assert told.head.hop["error_code"] == "arguments_changed"


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_tool_that_changes_something_is_begun_once_in_a_run(
    start: Start, acts: Acts, read_only: bool
) -> None:
    begun: list[str] = []

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        begun.append(envelope.id)
        if len(begun) == 1:
            raise CellError(detail="the process is gone", retryable=True)
        return [Emission.of(Entry.result("c", "changed"))]

    acts["dies"] = act
    declared = ToolDeclaration(name="look", description="d", parameters={}, read_only=read_only)
    changing = contract().model_copy(update={"tool": declared})
    harness = await start(probe("/a", act="dies", contract=changing), edge("/a", "/a"))
    delivery = await at_cell(harness, await harness.send("/a", Body.of(Entry.call("c", {}))))
    delivery = replace(delivery, head=delivery.head.model_copy(update={"session": "s"}))
    with pytest.raises(CellError):
        await harness.step(delivery)

    await harness.step(delivery)

    (told,) = await harness.pending()
    assert told.head.hop.get("error_code") == (None if read_only else "outcome_unknown")
    assert len(begun) == (2 if read_only else 1)


async def test_a_tool_that_takes_longer_than_it_declares_is_an_answer(
    start: Start, acts: Acts
) -> None:
    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        host.keep(HELLO, {})
        await asyncio.Event().wait()
        return []

    acts["hangs"] = act
    harness = await start(probe("/a", act="hangs", contract=tool(timeout_ms=20)), edge("/a", "/a"))
    trace_id = await harness.send("/a", Body.of(Entry.call("c", {})))
    delivery = await at_cell(harness, trace_id)

    await harness.step(delivery)

    (told,) = await harness.pending()
    assert told.head.hop["error_code"] == "tool_timeout"
    (result,) = decode_body(told.body).entries
    assert result == Entry.result("c", "tool_timeout: /a took longer than 20 ms", is_error=True)
    assert await harness.outputs(trace_id) == []
    assert await harness.letters() == []


async def test_the_message_timeout_holds_for_a_tool_that_may_take_longer(
    start: Start, acts: Acts
) -> None:
    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        await asyncio.Event().wait()
        return []

    acts["hangs"] = act
    cell = probe("/a", act="hangs", contract=tool(timeout_ms=60_000), timeout_ms=20)
    harness = await start(cell, edge("/a", "/a"))
    await harness.send("/a", Body.of(Entry.call("c", {})))

    await harness.finish()

    assert (await only_letter(harness)).code == "message_timeout"


@pytest.mark.parametrize("declared", [contract(), tool()], ids=["cell", "tool"])
async def test_only_results_of_a_tool_are_cut(start: Start, acts: Acts, declared: Contract) -> None:
    doing(acts, "large", Emission.of(Entry.result("c", "x" * 300_000)))
    harness = await start(probe("/a", act="large", contract=declared), edge("/a", "/a"))
    delivery = await at_cell(harness, await harness.ask("/a", "x"))

    step = await harness.decide(delivery)

    (entry,) = decode_body(step.published[0].body).entries
    cut = "[kept: 300000 bytes at blob:" in (entry.text or "")
    assert cut == (declared.tool is not None)
    assert (len(entry.text or "") < 300_000) == cut


async def test_a_tool_whose_parameters_are_no_schema_is_not_hosted(start: Start) -> None:
    with pytest.raises(CellError, match="no JSON Schema"):
        await start(probe("/a", contract=tool(type="strnig")), edge("/a", "/a"))


async def test_a_failure_that_may_pass_leaves_the_delivery(start: Start, acts: Acts) -> None:
    doing(acts, "busy", error=CellError(detail="try later", retryable=True))
    harness = await start(probe("/a", act="busy"), edge("/a", "/a"))
    delivery = await at_cell(harness, await harness.ask("/a", "x"))

    with pytest.raises(CellError, match="try later"):
        await harness.decide(delivery)

    assert await harness.letters() == []


async def test_a_handler_past_its_time_is_cancelled(start: Start, acts: Acts) -> None:
    cancelled: list[bool] = []

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return []

    acts["endless"] = act
    harness = await start(probe("/a", act="endless", timeout_ms=20), edge("/a", "/a"))
    await harness.ask("/a", "x")

    await harness.finish()

    assert (await only_letter(harness)).code == "message_timeout"
    assert cancelled == [True]


async def test_a_handler_that_will_not_be_cancelled_does_not_hold_its_delivery(
    start: Start, acts: Acts
) -> None:
    released = asyncio.Event()

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        raise RuntimeError("nobody listens any more")

    acts["stubborn"] = act
    harness = await start(probe("/a", act="stubborn", timeout_ms=20), edge("/a", "/a"))
    await harness.ask("/a", "x")

    await harness.finish()

    assert (await only_letter(harness)).code == "message_timeout"
    released.set()


async def test_a_time_out_of_the_handlers_own_is_not_that_of_the_message(
    start: Start, acts: Acts
) -> None:
    doing(acts, "impatient", error=TimeoutError("its own"))
    harness = await start(probe("/a", act="impatient"), edge("/a", "/a"))
    await harness.ask("/a", "x")

    await harness.finish()

    letter = await only_letter(harness)
    assert (letter.code, letter.facts["detail"]) == ("cell_failed", "TimeoutError: its own")


async def test_the_clock_does_not_run_while_an_envelope_waits_for_its_turn(
    start: Start, acts: Acts
) -> None:
    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        await asyncio.sleep(0.03)
        return []

    acts["slow"] = act
    harness = await start(
        probe("/a", act="slow", max_concurrency=1, timeout_ms=100), edge("/a", "/a")
    )
    for _ in range(6):
        await harness.ask("/a", "x")
    for birth in await harness.pending():
        await harness.step(birth)

    await asyncio.gather(*(harness.step(d) for d in await harness.pending()))

    assert await harness.letters() == []


async def test_work_of_a_trace_that_was_ended_is_not_handled(start: Start, acts: Acts) -> None:
    called: list[str] = []

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        called.append(envelope.id)
        return []

    acts["called"] = act
    harness = await start(probe("/a", act="called"), edge("/a", "/a"))
    trace_id = await harness.ask("/a", "x")
    delivery = await at_cell(harness, trace_id)
    await harness.traces.end(trace_id, "cancelled", "by hand")

    outcome = await harness.step(delivery)

    assert (outcome.token, called) == ("fenced", [])
    assert (await harness.trace(trace_id)).live == 0


async def test_work_under_way_stops_once_its_trace_was_ended(
    start: Start, acts: Acts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colony.worker.WATCH_S", 0.01)
    stopped = asyncio.Event()

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        await harness.traces.end(envelope.trace_id, "cancelled", "by hand")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return []

    acts["works"] = act
    harness: Harness = await start(probe("/a", act="works"), edge("/a", "/a"))
    trace_id = await harness.ask("/a", "x")

    outcome = await harness.step(await at_cell(harness, trace_id))

    assert outcome.token == "fenced"
    await eventually(stopped.is_set)
    assert (await harness.trace(trace_id)).live == 0


async def test_work_that_waited_for_its_turn_is_asked_for_again(
    start: Start, acts: Acts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colony.worker.FRESH_S", 0.0)
    called: list[str] = []
    go_on = asyncio.Event()

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        called.append(envelope.trace_id)
        await go_on.wait()
        return []

    acts["waits"] = act
    harness = await start(probe("/a", act="waits", max_concurrency=1), edge("/a", "/a"))
    first, second = [await harness.ask("/a", text) for text in "xy"]
    for birth in await harness.pending():
        await harness.step(birth)
    tasks = [asyncio.create_task(harness.step(d)) for d in await harness.pending()]
    await eventually(lambda: called)
    await harness.traces.end(second, "cancelled", "by hand")
    go_on.set()

    outcomes = await asyncio.gather(*tasks)

    assert called == [first]
    assert [outcome.token for outcome in outcomes] == ["committed", "fenced"]


async def test_what_a_cell_is_told_of_an_ended_trace_ends_its_handle(
    start: Start, acts: Acts
) -> None:
    doing(acts, "fenced", error=Fenced(trace_id="t"))
    harness = await start(probe("/a", act="fenced"), edge("/a", "/a"))
    await harness.ask("/a", "x")

    await harness.finish()

    assert await harness.letters() == []


async def test_a_body_that_cannot_be_opened_is_a_dead_letter(start: Start, acts: Acts) -> None:
    harness = await start(probe("/a"), edge("/a", "/a"))
    trace_id = await harness.ask("/a", "x")
    delivery = await at_cell(harness, trace_id)
    bodies = {
        "blob_unavailable": encode_blob_reference("gone"),
        "envelope_invalid": b"\xc7\xff",
        "invalid_ubf_body": b"\x81\xa1x\x01",
    }

    for code, body in bodies.items():
        step = await harness.decide(
            Delivery(delivery.source, delivery.entry, delivery.server, delivery.head, body)
        )
        assert [letter.code for letter in step.letters] == [code]
    await harness.commit(step)
    assert (await only_letter(harness)).body_bytes == body


async def test_a_cell_that_left_does_not_take_what_is_still_delivered(
    start: Start, acts: Acts
) -> None:
    harness = await start(probe("/a"), edge("/a", "/a"))
    delivery = await at_cell(harness, await harness.ask("/a", "x"))
    await harness.publication.publish(TopologySpec())
    await harness.publication.refresh()

    with pytest.raises(CellError, match="does not run here"):
        await harness.decide(delivery)


async def test_a_cell_that_is_replaced_finishes_what_it_has_in_hand(
    start: Start, acts: Acts
) -> None:
    go_on, said = asyncio.Event(), []

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        said.append("begun")
        await go_on.wait()
        said.append("done")
        return []

    async def stop(*_: Any) -> Sequence[Emission]:
        said.append("stopped")
        return []

    acts.update(waits=act, stop=stop)
    harness = await start(probe("/a", act="waits"), edge("/a", "/a"))
    delivery = await at_cell(harness, await harness.ask("/a", "x"))
    task = asyncio.create_task(harness.step(delivery))
    await eventually(lambda: said)

    changed = TopologySpec(cells=(probe("/a", act="other"),), edges=(edge("/a", "/a"),))
    await harness.publication.publish(changed)
    await harness.publication.refresh()
    assert said == ["begun"]
    go_on.set()
    assert (await task).token == "committed"
    await eventually(lambda: said[-1] == "stopped")

    assert said == ["begun", "done", "stopped"]


async def test_a_ttl_death_is_one_line_that_names_what_is_needed(
    start: Start, acts: Acts, caplog: pytest.LogCaptureFixture
) -> None:
    harness = await start(probe("/a"), probe("/b"), edge("/a", "/b"), edge("/b", "/a"))
    with caplog.at_level(logging.WARNING):
        trace_id = await harness.ask("/a", "x", ttl=5)
        await harness.finish()

    (record,) = caplog.records
    (letter,) = await harness.letters()
    assert (record.levelname, letter.code) == ("ERROR", "ttl_expired")
    line = record.getMessage()
    assert letter.head is not None
    for word in ("ttl_expired", letter.head.id, "/b", trace_id, "message_default_ttl"):
        assert word in line
    trace = await harness.trace(trace_id)
    assert (trace.state, trace.cause, trace.reason) == ("ended", "failed", "ttl_expired")


async def test_two_cells_that_refuse_each_other_do_not_go_on_until_the_ttl_is_spent(
    start: Start, acts: Acts
) -> None:
    async def answer(envelope: Envelope, host: Host) -> list[Emission]:
        return [Emission.say("again")]

    acts["answer"] = answer
    picky = probe("/picky", contract=contract(needs="never"), act="answer")
    colony = await start(
        probe("/talker", act="answer"), picky, edge("/talker", "/picky"), edge("/picky", "/talker")
    )

    await colony.send("/talker", HELLO)
    await colony.finish()

    codes = [letter.code for letter in await colony.letters()]
    assert codes == ["consumes_violation"] * 2
