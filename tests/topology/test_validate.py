from dataclasses import replace

import pytest

from colony.errors import TopologyError
from colony.topology.findings import Finding, Place, exit_status, strictly

from .conftest import Tree, contract, edge, emitting


def faults(tree: Tree) -> list[tuple[str, str, str]]:
    return [(f.file, f.json_path, f.code) for f in tree.findings()]


def one_edge(tree: Tree, *edges: object) -> None:
    """A tree of /a and /b in which nothing but `edges` can be wrong."""
    tree.hive("main", edge("./b", "./a"), *edges)
    tree.cell("main/a")
    tree.cell("main/b")


def test_twelve_planted_faults_are_all_found_and_nothing_else(tree: Tree) -> None:
    tree.put("colony.json", {"message_default_tll": 64})
    tree.hive(
        "main",
        edge("./in", "./a"),
        {"from": "./a", "to": "./b", "conditon": "true"},
        edge("./b", "./c", "hop.x =="),
        edge("./c", "./nowhere"),
        edge("./c", "./d", restore_ttl=True),
        edge("./d", "./e"),
        edge("./e", "./f"),
    )
    tree.cell("main/in")
    tree.cell("main/a", "eccho")
    tree.put("main/b/config.json", '{"cell": {"type": "code"}, "params": {},}')
    tree.cell("main/c", "echo", params={"prefix": "x", "limit": "many"})
    tree.cell("main/d", contract={"version": "1", "settings": {}})
    tree.cell("main/e", parms={})
    tree.cell("main/f", contract=contract(consumes={"context": {"turn_id": {"type": "string"}}}))
    tree.cell("main/g", params={"script_path": "run.py"})

    assert sorted(faults(tree)) == sorted([
        ("colony.json", "$.message_default_tll", "unknown_key"),
        ("main/a/config.json", "$.cell.type", "unknown_cell_type"),
        ("main/b/config.json", "$", "invalid_json"),
        ("main/c/config.json", "$.params.limit", "invalid_value"),
        ("main/config.json", "$.params.graph.edges[1].conditon", "unknown_key"),
        ("main/config.json", "$.params.graph.edges[2].condition", "expression_invalid"),
        ("main/config.json", "$.params.graph.edges[3].to", "dangling_endpoint"),
        ("main/config.json", "$.params.graph.edges[4].modifier.restore_ttl",
         "restore_unconditional"),
        ("main/d/config.json", "$.contract.consumes", "missing_key"),
        ("main/e/config.json", "$.parms", "unknown_key"),
        ("main/g/config.json", "$", "cell_unwired"),
        ("main/g/config.json", "$.params.script_path", "script_missing"),
    ])  # fmt: skip


def test_a_context_key_that_nothing_sets_is_an_error(tree: Tree) -> None:
    needs = contract(consumes={"context": {"turn_id": {"type": "string"}}})
    tree.hive("main", edge("./in", "./a"), edge("./a", "./b"))
    tree.cell("main/in")
    tree.cell("main/a")
    tree.cell("main/b", contract=needs)
    place = ("main/b/config.json", "$.contract.consumes.context.turn_id", "header_contract")
    assert faults(tree) == [place]

    tree.hive("main", edge("./in", "./a", set_context={"turn_id": "'1'"}), edge("./a", "./b"))
    assert faults(tree) == []

    tree.hive(
        "main",
        edge("./in", "./a", set_context={"turn_id": "'1'"}),
        edge("./a", "./b", delete_context=["turn_id"]),
    )
    assert faults(tree) == [place]

    tree.hive("main", edge("./in", "./a"), edge("./a", "./b"))
    entry = contract(ingress={"context": ["turn_id"]})
    tree.cell("main/in", contract=entry)
    [found] = tree.findings()
    assert (found.file, found.json_path, found.code) == place
    assert found.severity == "warning"
    assert "/in" in found.sentence

    tree.hive("main", edge("./in", "./a", set_context={"turn_id": "'1'"}), edge("./a", "./b"))
    assert faults(tree) == []

    tree.hive("main", edge("./in", "./a"), edge("./a", "./b"))
    tree.cell("main/in", contract=entry | needs)
    assert faults(tree) == []


def test_a_hop_key_must_arrive_over_every_edge(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./c"), edge("./b", "./c"))
    tree.cell("main/a", contract=emitting(kind=["x"]))
    tree.cell("main/b", contract=emitting(kind={"type": "string", "required": False}))
    tree.cell("main/c", contract=contract(consumes={"hop": {"kind": {"type": "string"}}}))
    place = ("main/c/config.json", "$.contract.consumes.hop.kind", "header_contract")
    assert faults(tree) == [place]

    tree.hive("main", edge("./a", "./c"), edge("./b", "./c", set_hop={"kind": "'y'"}))
    assert faults(tree) == []

    tree.hive("main", edge("./a", "./c", delete_hop=["kind"]), edge("./b", "./a"))
    assert faults(tree) == [place]

    tree.hive("main", edge("./b", "./a"))
    assert place in faults(tree)


def test_a_hop_key_arrives_through_a_hive(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./h"))
    tree.cell("main/a", contract=emitting(kind=["x"]))
    tree.hive("main/h", edge(".", "./c"))
    tree.cell("main/h/c", contract=contract(consumes={"hop": {"kind": {"type": "string"}}}))
    assert faults(tree) == []

    tree.cell("main/a", contract=emitting())
    assert [code for _, _, code in faults(tree)] == ["header_contract"]


def test_what_an_undeclared_sender_emits_is_not_held_against_it(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./c"))
    tree.cell("main/a")
    tree.cell("main/c", contract=contract(consumes={"hop": {"kind": {"type": "string"}}}))

    assert faults(tree) == []


@pytest.mark.parametrize(
    ("written", "place", "code"),
    [
        ({"to": "./b"}, "from", "missing_key"),
        (edge("./a", "./b") | {"modifer": {}}, "modifer", "unknown_key"),
        (edge("./a", "./b", set_contxt={}), "modifier.set_contxt", "unknown_key"),
        (edge("./a", "./b", "true", restore_ttl="yes"), "modifier.restore_ttl", "invalid_value"),
        (edge("./a", "./b", in_session_order=1), "modifier.in_session_order", "invalid_value"),
        (edge("./a", "./b", set_hop={"k": 1}), "modifier.set_hop.k", "invalid_value"),
        (edge("./a", "./b", set_hop={"k": "("}), "modifier.set_hop.k", "expression_invalid"),
        (edge("./a", "./b", "'" + "x" * 5000 + "'"), "condition", "expression_limit"),
        (edge("./a", "./b", "(true)", restore_ttl=True), "modifier.restore_ttl", "restore_always"),
        (edge("./c", "./b"), "from", "dangling_endpoint"),
        (edge("./a", "/colony/dead_letters"), "to", "dangling_endpoint"),
        (edge("/colony/quite", "./a"), "from", "dangling_endpoint"),
    ],
)
def test_an_edge_that_cannot_work_is_named(
    tree: Tree, written: dict[str, object], place: str, code: str
) -> None:
    one_edge(tree, written)

    found = [f for f in tree.findings() if f.code not in ("loop_unbounded", "lane_open")]

    assert [(f.json_path, f.code) for f in found] == [(f"$.params.graph.edges[1].{place}", code)]


def test_an_edge_that_is_no_object_is_named(tree: Tree) -> None:
    one_edge(tree, "from a to b")

    assert faults(tree) == [("main/config.json", "$.params.graph.edges[1]", "invalid_value")]


def test_the_quiet_lane_is_no_dangling_end(tree: Tree) -> None:
    one_edge(tree, edge("/colony/quiet", "./a", "hop.entry == '/a' && hop.outputs == 0"))

    assert faults(tree) == []


@pytest.mark.parametrize(
    ("slots", "json_path", "code"),
    [
        ({"cell": {"type": "code", "restart": 1}}, "$.cell.restart", "unknown_key"),
        ({"cell": {}}, "$.cell.type", "missing_key"),
        ({}, "$.cell", "missing_key"),
        ({"cell": {"type": "code"}, "params": []}, "$.params", "invalid_value"),
        ({"cell": {"type": "echo"}, "params": {}}, "$.params.prefix", "missing_key"),
        (
            {"cell": {"type": "code"}, "contract": contract(version="")},
            "$.contract.version",
            "invalid_value",
        ),
        (
            {"cell": {"type": "code"}, "contract": contract(consumes={"hop": {"a-b": {}}})},
            "$.contract.consumes.hop['a-b'].type",
            "missing_key",
        ),
        (
            {"cell": {"type": "code"}, "contract": contract(ingress={"context": ["sessionid"]})},
            "$.contract.ingress.context[0]",
            "invalid_value",
        ),
        (
            {"cell": {"type": "code"}, "contract": emitting(rows={"type": "int"})},
            "$.contract.emits.hop.rows.type",
            "invalid_value",
        ),
        (
            {"cell": {"type": "code"}, "params": {"a": "${X:=1}"}},
            "$.params.a",
            "substitution_unsupported",
        ),
        ({"cell": {"type": "hive"}, "params": {"edges": []}}, "$.params.edges", "unknown_key"),
    ],
)
def test_a_config_that_breaks_its_schema_is_named(
    tree: Tree, slots: dict[str, object], json_path: str, code: str
) -> None:
    one_edge(tree)
    tree.put("main/a/config.json", slots)

    assert faults(tree) == [("main/a/config.json", json_path, code)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"a": "\\ud800"}',
        '{"a":' * 66 + "1" + "}" * 66,
        "{",
        '{"cell": {"type": "code"}, "cell": {}}',
        '{"a": NaN}',
        "[" * 100_000,
    ],
)
def test_a_file_that_is_no_json_object_is_named(tree: Tree, text: str) -> None:
    one_edge(tree)
    tree.put("main/a/config.json", text)

    assert faults(tree) == [("main/a/config.json", "$", "invalid_json")]


def test_bytes_that_are_no_text_are_named(tree: Tree) -> None:
    one_edge(tree)
    (tree.root / "main/a/config.json").write_bytes(b"\xff\xfe{}")

    assert faults(tree) == [("main/a/config.json", "$", "unreadable_file")]


def test_a_dotenv_that_is_no_text_is_named(tree: Tree) -> None:
    one_edge(tree)
    (tree.root / ".env").write_bytes(b"A=\xff")

    assert faults(tree) == [(".env", "$", "unreadable_file")]


def test_a_directory_that_cannot_be_a_path_is_named(tree: Tree) -> None:
    one_edge(tree)
    tree.cell("main/a:b")

    assert [code for _, _, code in faults(tree)] == ["path_invalid"]


def test_a_tree_with_an_error_is_not_published_and_says_why(tree: Tree) -> None:
    one_edge(tree, edge("./a", "./b", restore_ttl=True))

    loaded = tree.load()

    assert loaded.spec is None
    with pytest.raises(TopologyError, match="needs a condition"):
        loaded.publishable()


def test_what_validate_exits_with() -> None:
    warning = Finding("warning", "a", "$", "lane_open", "x")
    dangling = replace(warning, code="dangling_endpoint")
    error = replace(warning, severity="error")

    statuses = [exit_status(found, strict=False) for found in ([], [warning], [warning, error])]
    strict = [exit_status(found, strict=True) for found in ([], [warning], [dangling], [error])]

    assert statuses == [0, 0, 2]
    assert strict == [0, 1, 2, 2]
    assert [f.severity for f in strictly([warning, dangling])] == ["warning", "error"]


def test_a_place_is_spelled_as_a_json_path() -> None:
    assert Place("f").at("a", 3, "b-c", "it's").json_path == "$.a[3]['b-c']['it\\'s']"
