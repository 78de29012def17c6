"""The edges of the compaction lane: whatever is known, exactly one of those that share a lane is
taken, and what its page says of its values is so."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from colony.topology.expressions import Expression, Verdict
from colony.topology.load import Loaded, load
from colony.topology.model import EdgeSpec
from colony.trees import shipped
from tests.colonies.folding import COLLECTOR
from tests.pages import PAGES, rows

ABSENT = object()
NONE = "\N{EN DASH}"
FOLDS = {"fold_provider": "openai", "fold_model": "m"}
# What each sender's edges read of the context.
OF_MODEL = {"iter": [0, 1, 2, "3", 12], "overflow": [ABSENT, "", "met", "tried"]}
OF_COLLECTOR = {
    "iter": [0, 1, "3", 11, 12],
    "tokens_seen": [ABSENT, 39, "40"],
    "compacting": [ABSENT, "1"],
    "overflow": [ABSENT, "met", "tried"],
    "compacted_at": [ABSENT, 0],
}


@pytest.fixture(scope="module")
def edges() -> tuple[EdgeSpec, ...]:
    return load(shipped("compaction"), environment={}).publishable().edges


def known(read: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every context that these values make."""
    return [
        {name: value for name, value in zip(read, values, strict=True) if value is not ABSENT}
        for values in product(*read.values())
    ]


def taken(edges: list[EdgeSpec], context: dict[str, Any], hop: dict[str, Any]) -> list[str]:
    """Where the edges lead that take this; none of them may fail, for whatever is absent."""
    verdicts = [(e.target, Expression.parse(e.condition or "true")) for e in edges]
    found = [(target, condition.condition(context, hop)) for target, condition in verdicts]
    assert {verdict for _, verdict in found} <= {Verdict.TRUE, Verdict.FALSE}
    return [target for target, verdict in found if verdict is Verdict.TRUE]


def test_what_the_collector_fires_goes_one_way(edges):
    ways = [e for e in edges if e.source == COLLECTOR and "fire" in str(e.condition)]

    found = {tuple(taken(ways, context, {"route": "fire"})) for context in known(OF_COLLECTOR)}

    assert found == {("/llm",), ("/compact/prep",), ("/drain",)}


@pytest.mark.parametrize(
    "hop",
    [
        {"finish_reason": "stop"},
        {"finish_reason": "tool_calls"},
        {"finish_reason": "tool_calls", "tokens_prompt": 10},
        {"finish_reason": "length"},
        {"finish_reason": "content_filter"},
        {"finish_reason": "error", "error_code": "timeout"},
        {"finish_reason": "error", "error_code": "context_length"},
        {"finish_reason": "error"},
    ],
)
def test_what_the_model_says_goes_one_way(edges, hop):
    ways = [e for e in edges if e.source == "/llm"]

    assert {len(taken(ways, context, hop)) for context in known(OF_MODEL)} == {1}


def test_a_chain_is_folded_once(edges):
    (fold,) = [e for e in edges if (e.source, e.target) == (COLLECTOR, "/compact/prep")]
    contexts = known(OF_COLLECTOR)
    folded = [context for context in contexts if taken([fold], context, {"route": "fire"})]

    assert folded
    assert all(context.get("compacting") != "1" for context in folded)
    assert all(int(context["iter"]) >= 1 for context in folded)


@pytest.mark.parametrize(
    ("measure", "context", "hop", "seen"),
    [
        ("sum", {}, {"tokens_prompt": 10}, 10),
        ("sum", {"tokens_seen": 30}, {"tokens_prompt": 10}, 40),
        ("sum", {"tokens_seen": "30"}, {}, 30),
        ("sum", {}, {}, 0),
        ("last", {"tokens_seen": 30}, {"tokens_prompt": 10}, 10),
        ("last", {"tokens_seen": 30}, {}, 0),
    ],
)
def test_what_was_read_is_counted_on_the_edge(tmp_path, measure, context, hop, seen):
    spec = laid(tmp_path, {"measure": measure}).spec
    assert spec is not None
    (edge,) = [e for e in spec.edges if (e.source, e.target) == ("/planner", "/dispatch")]

    counted = Expression.parse(edge.modifier.set_context["tokens_seen"])

    assert counted.value(context, hop) == seen


@pytest.mark.parametrize(
    "handed",
    [
        {"tokens": "many"},
        {"tokens": -5},
        {"measure": "lsat"},
        {"keep": 0},
        {"keep": "two"},
        {"pause": -1},
        {"rounds": 0},
        {"table": 3},
        {"store": ""},
        {"origin": "it's"},
        {"fold_script": "GOAL"},
    ],
    ids=str,
)
def test_a_value_that_the_lane_does_not_take_is_refused(tmp_path, handed):
    loaded = laid(tmp_path, handed)

    (name,) = handed
    refused = [(f.file, f.json_path, f.code) for f in loaded.findings if f.severity == "error"]
    assert refused == [("main/compact/config.json", f"$.params.with.{name}", "invalid_value")]
    assert loaded.spec is None


@pytest.mark.parametrize(
    ("folds", "code"),
    [({}, "with_missing"), ({"fold_provider": "extractive"}, "invalid_value")],
    ids=["nobody", "a model that writes nothing"],
)
def test_who_folds_has_to_be_said_and_to_write(tmp_path, folds, code):
    loaded = laid(tmp_path, {}, folds=folds)

    at = [found.code for found in loaded.findings if found.json_path.endswith("with.fold_provider")]
    assert at == [code]
    assert loaded.spec is None


def laid(folder: Path, handed: dict[str, Any], *, folds: dict[str, str] = FOLDS) -> Loaded:
    """A tree with nothing but the lane."""
    params = {"template": "compaction", "with": {**folds, **handed}}
    hive = {"cell": {"type": "hive"}, "params": params}
    (folder / "main" / "compact").mkdir(parents=True)
    (folder / "main" / "config.json").write_text('{"cell": {"type": "hive"}}')
    (folder / "main" / "compact" / "config.json").write_text(json.dumps(hive))
    return load(folder, environment={})


def test_values_of_the_template_are_those_of_its_page():
    hive = json.loads((shipped("templates", "compaction") / "config.json").read_text())
    accepted = hive["params"]["accepts"].items()

    told = {(name.strip("`"), default.strip("`")) for name, default, _ in _table()}

    assert told == {(name, str(schema.get("default", NONE))) for name, schema in accepted}


def _table() -> list[tuple[str, ...]]:
    return rows(PAGES["compaction"], "value")
