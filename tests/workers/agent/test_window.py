import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colony.agent.history import HistoryRow
from colony.agent.in_hand import RunInHand
from colony.body import Entry
from colony.topology.model import ToolDeclaration
from tests.workers.agent.in_hand import (
    arriving,
    asked,
    calling,
    events,
    in_hand,
    kinds,
    put,
    results,
    said,
    summary,
)
from workers.agent import tokens
from workers.agent.charges import Price
from workers.agent.folded import Params as FoldedParams
from workers.agent.folded import folded
from workers.agent.trimming import MARKER
from workers.agent.view import View, paired
from workers.agent.window import Params, window
from workers.agent.windows import window_of
from workers.toolloop.view import ViewParams

OWN = Params(persona="You read.", window=1_000)
FOLDING = Params(window=1_000, fold_provider="openai", fold_max_tokens=50)
LONG = "x" * 400
TOOL = ToolDeclaration(name="file", description="Reads.", parameters={"type": "object"})
SUMMARY = Entry.say("assistant", "GOAL\nRead on.")


def rounds(number: int, *, first: int = 0) -> list[HistoryRow]:
    """So many rounds of about two hundred tokens each."""
    found = [(calling(f"c{n}", path=f"/p{n}"), results(f"c{n}", text=LONG * 2)) for n in range(
        first, first + number)]  # fmt: skip
    return [row for pair in found for row in pair]


def entries_of(rows: Sequence[HistoryRow]) -> list[Entry]:
    return View(rows, ViewParams()).entries


def size_of(rows: Sequence[HistoryRow], own: Params = OWN) -> int:
    return tokens.of_request(own.persona, entries_of(rows), {})


async def asking(run: RunInHand, own: Params = OWN, **hop: Any) -> Any:
    (emission,) = await window(arriving(**{"route": "turn", **hop}), own, run)
    return emission


def folded_into(rows: Sequence[HistoryRow], run: RunInHand) -> list[Entry]:
    """What the model is shown once what the handler has recorded is there."""
    return entries_of([*rows, *run.changes.rows])


async def test_request_is_the_persona_and_what_was_said() -> None:
    rows = [asked("one"), *rounds(1)]
    run = in_hand(rows, turn=1, tools={"file": TOOL})

    emission = await asking(run)

    assert emission.hop == {"route": "ask"}
    assert emission.body.system == {"identity": {"soul": {"text": "You read."}}}
    assert list(emission.body.entries) == entries_of(rows)
    used = tokens.of_request("You read.", entries_of(rows), {"file": TOOL})
    assert put(run, "session") == {"used": str(used), "window": "1000"}
    assert run.changes.events == []


async def test_model_of_the_session_is_asked() -> None:
    emission = await asking(in_hand([asked("one")], session={"model": "small"}))

    assert emission.body.__pydantic_extra__ == {"params": {"model": "small"}}


async def test_last_answer_is_asked_of_the_model_without_tools() -> None:
    emission = await asking(in_hand([asked("one")], wrapping_up="max_turns"))

    assert emission.hop == {"route": "close"}


async def test_tools_and_persona_count() -> None:
    wordy = ToolDeclaration(name="w", description="d" * 4_000, parameters={})

    with_tools, without = in_hand([asked("one")], tools={"w": wordy}), in_hand([asked("one")])
    await asking(with_tools)
    await asking(without)

    counted = int(put(with_tools, "session")["used"]) - int(put(without, "session")["used"])
    assert counted == tokens.AROUND + (1 + 4_000 + 2) // tokens.BYTES_PER_TOKEN


async def test_folds_at_the_share_of_the_window_and_not_below_it() -> None:
    rows = [asked("one"), *rounds(3)]
    size = size_of(rows)

    at, below = in_hand(rows, turn=3), in_hand(rows, turn=3)
    await asking(at, OWN.model_copy(update={"window": size, "ratio": 1}))
    await asking(below, OWN.model_copy(update={"window": size + 1, "ratio": 1}))

    assert "compaction" in kinds(at)
    assert kinds(below) == []


async def test_share_is_rounded_down() -> None:
    rows = [asked("one"), *rounds(3)]
    run = in_hand(rows, turn=3)

    await asking(run, OWN.model_copy(update={"window": size_of(rows) + 1, "ratio": 0.9999}))

    assert "compaction" in kinds(run)


async def test_trim_keeps_the_first_message_and_the_newest_rounds() -> None:
    rows = [asked("one"), *rounds(5)]
    run = in_hand(rows, turn=5)

    emission = await asking(run)

    shown = list(emission.body.entries)
    assert shown == folded_into(rows, run)
    assert shown[0] == Entry.say("user", "one")
    assert (shown[1].text or "").startswith(MARKER)
    assert "/p0, /p1" in (shown[1].text or "")
    assert shown[-2:] == entries_of(rows)[-2:]
    assert paired(shown)
    assert len(shown) < len(entries_of(rows))
    assert emission.body.system == {"identity": {"soul": {"text": "You read."}}}
    assert put(run)["compacted_turn"] == "5"
    assert int(put(run, "session")["used"]) == tokens.of_request("You read.", shown, {})


async def test_compaction_is_told_and_then_what_was_shown_before() -> None:
    rows = [asked("one"), *rounds(5)]
    run = in_hand(rows, turn=5)

    await asking(run)

    assert kinds(run) == ["compaction", "compaction.archive"]
    told, archive = events(run)
    assert told["before"] == size_of(rows) > told["after"]
    assert told["upto"] == run.changes.rows[0].upto
    assert [HistoryRow.decode(json.dumps(row)) for row in archive["rows"]] == rows


async def test_archive_is_told_in_pieces_that_an_event_holds() -> None:
    own = OWN.model_copy(update={"max_result_bytes": 10})
    rows = [asked("one"), *(row for n in range(5) for row in (
        calling(f"c{n}"), results(f"c{n}", text="x" * 700_000)))]  # fmt: skip
    run = in_hand(rows, turn=5)

    await asking(run, own.model_copy(update={"window": 200}))

    archives = events(run, "compaction.archive")
    assert len(archives) == 5
    assert [row for part in archives for row in part["rows"]] == [
        row.model_dump(mode="json", exclude_defaults=True) for row in rows
    ]


async def test_second_compaction_keeps_the_first_message_and_no_earlier_note() -> None:
    rows = [asked("one"), *rounds(5)]
    first = in_hand(rows, turn=5)
    await asking(first)
    rows = [*rows, *first.changes.rows, *rounds(4, first=5)]
    second = in_hand(rows, turn=9)

    emission = await asking(second)

    shown = list(emission.body.entries)
    assert shown[0] == Entry.say("user", "one")
    assert sum((entry.text or "").startswith(MARKER) for entry in shown) == 1
    assert second.changes.rows[0].upto > first.changes.rows[0].upto


async def test_turn_is_compacted_once() -> None:
    rows = [asked("one"), *rounds(5)]
    run = in_hand(rows, turn=5, compacted_turn=5)

    emission = await asking(run)

    assert list(emission.body.entries) == entries_of(rows)
    assert kinds(run) == []


async def test_nothing_is_folded_where_only_the_newest_is_there() -> None:
    rows = [asked("one " + LONG * 20)]
    run = in_hand(rows)

    emission = await asking(run)

    assert emission.hop == {"route": "ask"}
    assert run.changes.rows == []
    assert kinds(run) == []


async def test_note_that_is_no_smaller_is_dropped() -> None:
    rows = [asked("x" * 4_000), said("a"), asked("b"), said("c")]
    run = in_hand(rows)

    emission = await asking(run)

    assert list(emission.body.entries) == entries_of(rows)
    assert (run.changes.rows, kinds(run)) == ([], [])


async def test_model_that_folds_is_asked_with_what_is_to_be_folded() -> None:
    rows = [asked("one"), *rounds(5)]
    run = in_hand(rows, turn=5)

    emission = await asking(run, FOLDING)

    assert emission.hop["route"] == "condense"
    text = emission.body.entries[0].text
    assert text.startswith("The user asked: one")
    assert "call c0" in text
    assert "call c4" not in text
    assert not run.changes.any


async def test_summary_is_recorded_for_the_rows_it_stands_for() -> None:
    rows = [asked("one"), *rounds(5)]
    asks = (await asking(in_hand(rows, turn=5), FOLDING)).hop
    run = in_hand(rows, turn=5)

    (emission,) = await folded(arriving(SUMMARY, context=asks), FoldedParams(), run)

    assert emission.hop == {"route": "turn", "turn": 5}
    assert (run.changes.rows[0].kind, run.changes.rows[0].upto) == (
        "summary", int(asks["compact_upto"]))  # fmt: skip
    assert folded_into(rows, run)[:2] == [Entry.say("user", "one"), SUMMARY]
    assert kinds(run) == ["compaction", "compaction.archive"]
    assert put(run) == {"compacted_turn": "5"}


@pytest.mark.parametrize(
    ("entry", "hop"),
    [
        (Entry.say("assistant", " \n"), {"finish_reason": "stop"}),
        (Entry.say("user", "the prompt"), {"finish_reason": "error", "error_code": "timeout"}),
        (Entry.say("assistant", "cut"), {"finish_reason": "length"}),
        (Entry.say("assistant", LONG * 50), {"finish_reason": "stop"}),
        (Entry.call("c", {}), {"finish_reason": "tool_calls"}),
    ],
)
async def test_what_is_no_summary_changes_nothing_and_the_run_goes_on(
    entry: Entry, hop: dict[str, Any]
) -> None:
    rows = [asked("one"), *rounds(5)]
    asks = (await asking(in_hand(rows, turn=5), FOLDING)).hop
    run = in_hand(rows, turn=5)

    (emission,) = await folded(arriving(entry, context=asks, **hop), FoldedParams(), run)

    assert emission.hop["route"] == "turn"
    assert emission.hop["dropped"]
    assert (run.changes.rows, kinds(run)) == ([], [])
    assert put(run) == {"compacted_turn": "5"}


async def test_fold_is_paid_for() -> None:
    rows = [asked("one"), *rounds(5)]
    run = in_hand(rows, turn=5)

    own = FoldedParams(prices={"small": Price(input=1.0, output=10.0)})
    summed = arriving(SUMMARY, model="small", tokens_prompt=70, tokens_completion=8)

    await folded(summed, own, run)

    assert run.changes.counts == {
        (scope, name): count
        for scope in ("run", "session")
        for name, count in (("input_tokens", 70), ("output_tokens", 8), ("cost_micro", 150))
    }


async def test_earlier_summary_is_refined_and_not_asked_about() -> None:
    rows = [asked("one"), *rounds(2), summary("GOAL\nearlier", 3), *rounds(5, first=2)]

    emission = await asking(in_hand(rows, turn=7), FOLDING)

    text = emission.body.entries[0].text
    assert text.startswith("The user asked: one")
    assert "Running summary so far:\nGOAL\nearlier" in text
    assert "call c0" not in text


async def test_window_that_was_refused_is_folded_though_it_seems_to_fit() -> None:
    rows = [asked("one"), *rounds(3)]
    run = in_hand(rows, turn=3)

    await asking(run, OWN.model_copy(update={"window": 100_000}), route="fold")

    assert "compaction" in kinds(run)


async def test_run_that_only_compacts_ends_at_its_window() -> None:
    rows = [asked("one"), *rounds(3)]
    run = in_hand(rows, kind="compact")

    emission = await asking(run, OWN.model_copy(update={"window": 100_000}), route="fold")

    assert emission.hop == {"route": "end", "stop": "compacted"}
    assert kinds(run) == ["compaction", "compaction.archive"]


async def test_run_that_has_nothing_to_compact_says_so_by_no_event() -> None:
    run = in_hand([asked("one")], kind="compact")

    emission = await asking(run, route="fold")

    assert emission.hop == {"route": "end", "stop": "compacted"}
    assert (run.changes.rows, kinds(run)) == ([], [])


async def test_run_that_only_compacts_ends_behind_its_summary() -> None:
    rows = [asked("one"), *rounds(5)]
    asks = (await asking(in_hand(rows, kind="compact"), FOLDING, route="fold")).hop
    run = in_hand(rows, kind="compact")

    (emission,) = await folded(arriving(SUMMARY, context=asks), FoldedParams(), run)

    assert emission.hop == {"route": "end", "stop": "compacted"}
    assert "compaction" in kinds(run)


ROWS = st.lists(
    st.sampled_from(["user", "note", "said", "round", "batches"]), min_size=1, max_size=12
)


def written(wanted: Sequence[str]) -> list[HistoryRow]:
    rows: list[HistoryRow] = []
    for n, kind in enumerate(wanted):
        match kind:
            case "round":
                rows += rounds(1, first=n)
            case "batches":
                found = [f"b{n}-0", f"b{n}-1"]
                rows += [calling(*found), *(results(one, text=LONG) for one in found)]
            case "said":
                rows.append(said(f"answer {n}"))
            case "note":
                row = asked(f"go on {n}")
                rows.append(row.model_copy(update={"kind": "note"}))
            case _:
                rows.append(asked(f"question {n} {LONG}"))
    return rows


@given(ROWS, st.integers(1, 2_000))
def test_no_cut_parts_a_call_from_its_result(wanted: list[str], room: int) -> None:
    rows = written(wanted)
    view = View(rows, ViewParams())

    upto = view.cut(room)

    if upto is not None:
        shorter = view.with_summary(summary("short", upto))
        assert paired(shorter.entries)
        assert len(shorter.entries) <= len(view.entries)
        anchor = next((row for row in rows if row.kind == "user"), None)
        assert anchor is None or anchor.entries[0] in shorter.entries


@pytest.mark.parametrize(
    ("entries", "whole"),
    [
        ([calling("a"), results("a")], True),
        ([calling("a", "b"), results("b"), results("a")], True),
        ([calling("a"), asked("x"), results("a")], False),
        ([calling("a")], False),
        ([results("a")], False),
        ([calling("a"), results("a"), results("a")], False),
    ],
)
def test_pairing_is_judged_both_ways(entries: list[HistoryRow], whole: bool) -> None:
    assert paired([entry for row in entries for entry in row.entries]) is whole


@pytest.mark.parametrize(
    ("model", "configured", "window"),
    [
        ("gpt-4o-mini", 0, 128_000),
        ("gpt-4.1-nano", 0, 1_047_576),
        ("gpt-4", 0, 8_192),
        ("openai/gpt-5", 0, 400_000),
        ("anything", 0, 128_000),
        ("", 0, 128_000),
        ("gpt-4o", 9_000, 9_000),
    ],
)
def test_window_is_what_the_tree_says_or_what_is_known(
    model: str, configured: int, window: int
) -> None:
    assert window_of(model, configured) == window
