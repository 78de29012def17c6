"""Folding: how a summary comes to stand for the oldest part of a session.

A summary that would part a call from its result, or make the request no smaller, is dropped; the
run goes on with the window as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from colony.agent.events import CHUNK_BYTES
from colony.agent.history import HistoryRow
from colony.agent.in_hand import RunInHand
from colony.body import Body, Entry
from colony.envelope import Emission
from colony.topology.model import ToolDeclaration
from workers.agent import tokens
from workers.agent.trimming import kept_of
from workers.agent.view import View, paired
from workers.compaction.prep import json_size
from workers.compaction.prompt import INSTRUCTION, prompt
from workers.compaction.rounds import in_rounds
from workers.compaction.summary import parted
from workers.toolloop.params import Positive
from workers.toolloop.view import ViewParams


class RequestParams(ViewParams):
    """What every request to the model has beside what was said."""

    persona: str = ""
    fold_item_chars: Positive = 2_000
    fold_prompt_chars: Positive = 200_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large requests are, in tokens."""

    persona: str
    tools: Mapping[str, ToolDeclaration]

    def of(self, view: View) -> int:
        """How large the request of a view is."""
        return tokens.of_request(self.persona, view.entries, self.tools)


def summary_row(run: RunInHand, summary: Entry, upto: int) -> HistoryRow:
    """The row of a summary of every row before number `upto`."""
    turn = run.record.turn
    return HistoryRow(kind="summary", run_id=run.id, turn=turn, entries=(summary,), upto=upto)


def take_up(view: View, row: HistoryRow, run: RunInHand, sizes: Sizes) -> View | None:
    """The view with a summary, which is recorded; None where it is no better than without."""
    folded = view.with_summary(row)
    before, after = sizes.of(view), sizes.of(folded)
    if after >= before or not paired(folded.entries):
        return None
    run.remember(row)
    run.event("compaction", text="\n".join(row.texts), before=before, after=after, upto=row.upto)
    for rows in _in_chunks(view.shown_rows):
        run.event("compaction.archive", rows=rows)
    return folded


def ask_for_summary(view: View, upto: int, own: RequestParams) -> Emission:
    """The rows before number `upto` that no summary stands for, on their way to the model that
    folds."""
    told = [entry for at in view.folded(upto) for entry in view.rows[at].entries]
    running, before = parted("\n".join(view.summary.texts) if view.summary else "")
    asked = view.rows[view.anchor].texts if view.anchor is not None else ()
    text = prompt(
        "\n".join(asked),
        [told],
        running=running,
        kept=len(
            in_rounds(
                [entry for at in view.behind if at >= upto for entry in view.rows[at].entries]
            )
        ),
        limit=min(own.fold_item_chars, own.fold_prompt_chars // max(1, len(told)) + 1),
    )
    kept = before.and_then(kept_of(told)).text
    summary = view.summary.entries if view.summary else ()
    return Emission(
        hop={
            "route": "condense",
            "compact_upto": str(upto),
            "compact_bytes": json_size([*summary, *told]),
            **({"compact_kept": kept} if kept else {}),
        },
        body=Body(
            system={"instructions": {"text": INSTRUCTION}},
            messages=(Entry.say("user", text),),
        ),
    )


def _in_chunks(rows: Sequence[HistoryRow]) -> Iterator[list[JsonValue]]:
    """The rows as JSON, in lists that one event holds."""
    chunk: list[JsonValue] = []
    size = 0
    for row in rows:
        weight = len(row.encode().encode(errors="replace"))
        if chunk and size + weight > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(row.model_dump(mode="json", exclude_defaults=True))
        size += weight
    if chunk:
        yield chunk
