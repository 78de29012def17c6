"""Folded: a summary is recorded for the rows it stands for, or the run goes on without it."""

from pydantic import Field

from colony.agent.in_hand import RunInHand
from colony.body import Entry
from colony.envelope import Emission, Envelope
from colony.log import get_logger
from workers.agent import folding
from workers.agent.charges import Price, charge
from workers.agent.folding import RequestParams, Sizes
from workers.agent.view import View
from workers.compaction.emit import summary_in
from workers.toolloop.requests import nothing

log = get_logger("workers.agent")


class Params(RequestParams):
    """What a fold costs, beside what every request has."""

    prices: dict[str, Price] = Field(default_factory=dict)


async def folded(envelope: Envelope, own: Params, run: RunInHand) -> list[Emission]:
    """The run back at its window; one that only compacts is at its end."""
    # A fold is paid for like any other call of a model.
    charge(envelope.hop, own.prices, run)
    dropped = await _fold(envelope, own, run)
    told = {"dropped": dropped} if dropped else {}
    if dropped:
        log.warning("fold_dropped", reason=dropped, run=run.id)
    run.put(compacted_turn=run.record.turn)
    if run.record.kind == "compact":
        return [nothing(route="end", stop="compacted", **told)]
    return [nothing(route="turn", turn=run.record.turn, **told)]


async def _fold(envelope: Envelope, own: RequestParams, run: RunInHand) -> str:
    """Why no summary was recorded; empty where one was."""
    summary = summary_in(envelope)
    if not isinstance(summary, Entry):
        return summary
    upto = str(envelope.context.get("compact_upto", ""))
    if not upto.isdecimal():
        return "no_boundary"
    view = View.of(await run.history(), own)
    row = folding.summary_row(run, summary, int(upto))
    sizes = Sizes(own.persona, run.tools)
    taken = folding.take_up(view, row, run, sizes)
    if taken is None:
        return "not_shorter"
    run.put_in_session(used=sizes.of(taken))
    return ""
