"""What `bench.sessions` claims of many sessions at once, over real processes."""

import asyncio

from bench.contenders import running, tree_of
from bench.sessions import TREE, Found, ask
from colony.topology.model import TopologySpec

WORKERS = 4


def found(spec: TopologySpec) -> Found:
    with running(spec, workers=WORKERS) as url:
        return asyncio.run(ask(url, sessions=50, questions=3, workers=WORKERS))


def test_fifty_sessions_keep_their_order_over_four_workers() -> None:
    kept = found(tree_of(TREE))

    assert (kept.questions, kept.answered) == (150, 150)
    assert (kept.out_of_order, kept.overlapping) == (0, 0)
    assert kept.at_once >= 2


def test_without_the_modifier_the_same_questions_overtake_each_other() -> None:
    spec = tree_of(TREE)
    edges = tuple(edge.model_copy(update={"modifier": None}) for edge in spec.edges)

    lost = found(spec.model_copy(update={"edges": edges}))

    assert lost.answered == 150
    assert lost.overlapping > 0
