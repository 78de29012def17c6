"""Window: the request of a turn, and when the oldest part of a session is folded for it.

The estimate is of the complete request. It is folded at most once a turn, by a model of its own or
by a note; where that comes to nothing the request goes out as it is.
"""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from colony.agent.in_hand import RunInHand
from colony.body import Body
from colony.envelope import Emission, Envelope
from colony.log import get_logger
from workers.agent import folding, tokens
from workers.agent.folding import RequestParams, Sizes
from workers.agent.trimming import trimmed
from workers.agent.view import View
from workers.agent.windows import window_of
from workers.toolloop.requests import nothing
from workers.toolloop.turns import route_of

Share = Annotated[float, Field(gt=0, le=1)]

# A summary takes this part of what a request is to come to, at most.
SUMMARY_PART = 4

log = get_logger("workers.agent")


class Params(RequestParams):
    """How much the model reads at once, 0 for what is known of it; from which share of that on the
    oldest part is folded, and to which. `extractive` writes no summary, so a note stands for it."""

    model: str = ""
    window: Annotated[int, Field(ge=0)] = 0
    ratio: Share = 0.8
    target: Share = 0.6
    fold_provider: Literal["openai", "anthropic", "scripted", "extractive"] = "extractive"
    fold_max_tokens: Annotated[int, Field(ge=1)] = 2_048


async def window(envelope: Envelope, own: Params, run: RunInHand) -> list[Emission]:
    """The request for the model, or what is to be folded before it."""
    view = View.of(await run.history(), own)
    sizes, wanted = Sizes(own.persona, run.tools), route_of(envelope) == "fold"
    size = window_of(run.session.model or own.model, own.window)
    estimate = sizes.of(view)
    if _may_fold(run) and (wanted or estimate >= int(size * own.ratio)):
        upto = view.cut(_room(view, estimate, own, size=size, wanted=wanted))
        if upto is not None and own.fold_provider != "extractive":
            return [folding.ask_for_summary(view, upto, own)]
        view = _trimmed(view, upto, run, sizes)
        run.put(compacted_turn=run.record.turn)
    run.put_in_session(used=sizes.of(view), window=size)
    if run.record.kind == "compact":
        return [nothing(route="end", stop="compacted")]
    return [_request(view, own, run)]


def _may_fold(run: RunInHand) -> bool:
    return run.record.kind == "compact" or run.record.compacted_turn != run.record.turn


def _room(view: View, estimate: int, own: Params, *, size: int, wanted: bool) -> int:
    """How many tokens the newest part of the view may have, beside all that stays."""
    said = tokens.of_entries(view.entries)
    target = int(size * own.target) - (estimate - said)
    if wanted:
        # The window may be another than is known, and whoever asks for it wants less of it.
        target = min(target, said // 2)
    summary = min(own.fold_max_tokens, target // SUMMARY_PART)
    anchor = [] if view.anchor is None else view.rows[view.anchor].entries
    return max(1, target - summary - tokens.of_entries(anchor))


def _trimmed(view: View, upto: int | None, run: RunInHand, sizes: Sizes) -> View:
    if upto is None:
        return view
    row = folding.summary_row(run, trimmed(view.rows, upto), upto)
    folded = folding.take_up(view, row, run, sizes)
    if folded is None:
        log.warning("fold_dropped", reason="not_smaller", run=run.id, upto=upto)
    return folded or view


def _request(view: View, own: Params, run: RunInHand) -> Emission:
    body: dict[str, JsonValue] = {"messages": [entry.to_json() for entry in view.entries]}
    if own.persona:
        body["system"] = {"identity": {"soul": {"text": own.persona}}}
    if run.session.model:
        body["params"] = {"model": run.session.model}
    route = "close" if run.record.wrapping_up else "ask"
    return Emission(hop={"route": route}, body=Body.parse(body))
