import json
from pathlib import Path

import pytest

from colony.errors import TopologyError, TopologyTooLarge, VariableUnset
from colony.topology.embedding import MAX_FILE_BYTES
from colony.topology.graph import dot, mermaid
from colony.topology.model import parse_spec
from colony.trees import shipped

from .conftest import Tree, contract, edge


def codes(tree: Tree, **environment: str) -> list[str]:
    return [finding.code for finding in tree.findings(**environment)]


def test_a_tree_of_directories_becomes_cells_and_edges(tree: Tree) -> None:
    tree.hive("main", edge("./ask", "tools"), edge("tools/look", "/ask"))
    tree.cell("main/ask", "echo", params={"prefix": "> "}, description={"purpose": "asks"})
    tree.hive("main/tools", edge(".", "./look"))
    tree.cell("main/tools/look")

    loaded = tree.load()

    assert loaded.spec is not None
    assert loaded.spec.hives == ("/", "/tools")
    assert [cell.path for cell in loaded.spec.cells] == ["/ask", "/tools/look"]
    ends = [(edge.source, edge.target) for edge in loaded.spec.edges]
    assert ends == [("/ask", "/tools"), ("/tools/look", "/ask"), ("/tools", "/tools/look")]
    assert loaded.spec.cells[0].params == {"prefix": "> "}


def test_what_was_loaded_survives_publication(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./b", "hop.n < ${N:-3}", set_context={"n": "1"}))
    tree.cell("main/a", params={"key": "${SECRET}"}, contract=contract())
    tree.cell("main/b")

    spec = tree.load().publishable()

    assert parse_spec(json.dumps(spec.to_json())) == spec
    assert spec.edges[0].condition == "hop.n < 3"


def test_a_three_line_cell_is_enough(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./b"))
    tree.cell("main/a")
    tree.cell("main/b", "sink")

    assert tree.load().findings == ()


def test_a_tree_as_meclaw_writes_it_loads(tree: Tree) -> None:
    tree.put("colony.json", {"schema_version": 1, "message_default_ttl": 160, "ttl_notice": True})
    tree.put("templates/unused/config.json", "{")
    tree.put("blobs/x.json", "{")
    tree.put(
        "main/config.json",
        {
            "cell": {"type": "hive", "provenance": {"template": "x"}},
            "params": {
                "graph": {"edges": [{"from": "./a", "to": "."}, {"from": ".", "to": "/store"}]},
                "ports": [{"name": "in"}],
                "required_drains": [{"accepts": "in", "emits": "out", "because": "so"}],
                "contract": {"accepts": []},
            },
            "description": {"purpose": "x", "examples": []},
        },
    )
    tree.cell(
        "main/a",
        params={"runner": "python3", "script_inline": "print('{}')", "external_timeout_ms": 1},
        contract=contract(
            consumes={
                "body": {"messages": {"type": "array", "required": True}},
                "hop": {"rows": {"type": "int", "required": False, "description": "rows"}},
            },
            emits={"body": {"messages": {"type": "array"}}, "hop": {}},
            multi_send_capable=True,
            capabilities=["shell:exec"],
        ),
    )
    tree.cell("main/store", "store", contract=contract(write_surface="internal", transfer={}))
    tree.put("main/store/seed/thread.jsonl", '{"id": 1}\n')

    loaded = tree.load()

    assert loaded.findings == ()
    assert loaded.spec is not None
    assert loaded.spec.settings.message_default_ttl == 160
    assert loaded.spec.cells[1].files == {"seed/thread.jsonl": '{"id": 1}\n'}


@pytest.mark.parametrize(
    ("folders", "code"),
    [([], "root_missing"), (["main", "other"], "root_ambiguous")],
)
def test_a_tree_has_exactly_one_root(tree: Tree, folders: list[str], code: str) -> None:
    for folder in folders:
        tree.hive(folder)

    loaded = tree.load()

    assert [finding.code for finding in loaded.findings] == [code]
    with pytest.raises(TopologyError, match=code):
        loaded.publishable()


def test_a_root_that_is_a_cell_is_refused(tree: Tree) -> None:
    tree.cell("main")

    assert "root_missing" in codes(tree)


def test_secrets_stay_as_they_are_written(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./a"))
    tree.cell("main/a", params={"key": "${SECRET}"})
    tree.put(".env", "SECRET=hunter2")

    text = json.dumps(tree.load({"SECRET": "hunter3"}).publishable().to_json())

    assert "${SECRET}" in text
    assert "hunter" not in text


def test_an_unset_variable_of_a_cell_is_a_warning_and_no_more(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./b"))
    tree.cell("main/a", "echo", params={"prefix": "x", "limit": "${LIMIT}"})
    tree.cell("main/b")

    loaded = tree.load()

    assert [(f.severity, f.json_path, f.code) for f in loaded.findings] == [
        ("warning", "$.params.limit", "variable_unset")
    ]
    assert loaded.publishable().cells[0].params["limit"] == "${LIMIT}"


def test_a_set_variable_of_a_cell_is_held_against_its_params(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./a"))
    tree.cell("main/a", "echo", params={"prefix": "x", "limit": "${LIMIT}"})

    assert "invalid_value" in codes(tree, LIMIT="many")
    assert "invalid_value" not in codes(tree, LIMIT="7")


@pytest.mark.parametrize("slot", ["edge", "contract", "colony.json"])
def test_an_unset_variable_of_what_is_published_is_refused_there(tree: Tree, slot: str) -> None:
    written = {name: "${X}" if name == slot else "1" for name in ("edge", "contract")}
    tree.hive("main", edge("./a", "./b", f"hop.x == {written['edge']}"))
    hop = {"x": {"type": "string", "values": ["1"]}}
    declared = contract(emits={"hop": hop}, consumes={}) | {"version": written["contract"]}
    tree.cell("main/a", contract=declared)
    tree.cell("main/b")
    if slot == "colony.json":
        tree.put("colony.json", {"message_default_ttl": "${X}"})

    loaded = tree.load()

    assert {f.code for f in loaded.findings if f.severity == "error"} == set()
    assert "variable_unset" in {f.code for f in loaded.findings}
    with pytest.raises(VariableUnset, match="X"):
        loaded.publishable()
    assert tree.load({"X": "1"}).publishable()


def test_a_setting_may_come_out_of_a_variable(tree: Tree) -> None:
    tree.hive("main")
    tree.put("colony.json", {"message_default_ttl": "${TTL:-96}", "ttl_notice": "${NOTICE}"})

    settings = tree.load({"NOTICE": "true"}).publishable().settings

    assert (settings.message_default_ttl, settings.ttl_notice) == (96, True)


def test_a_script_and_seeds_travel_with_the_cell(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./a"))
    tree.cell("main/a", params={"script_path": "./code/run.py"})
    tree.put("main/a/code/run.py", "print(1)")
    tree.put("main/a/seed/rows.jsonl", "{}")
    tree.put("main/a/notes.txt", "stays here")

    files = tree.load().publishable().cells[0].files

    assert files == {"code/run.py": "print(1)", "seed/rows.jsonl": "{}"}


@pytest.mark.parametrize("written", ["missing.py", "../b/run.py", "/etc/passwd", "link.py"])
def test_a_script_outside_the_directory_of_the_cell_is_refused(tree: Tree, written: str) -> None:
    tree.hive("main", edge("./a", "./a"))
    tree.cell("main/a", params={"script_path": written})
    tree.put("main/b/run.py", "print(1)")
    (tree.root / "main/a/link.py").symlink_to(tree.root / "main/b/run.py")

    assert "script_missing" in codes(tree)


def test_a_file_above_the_limit_is_refused(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./b"))
    tree.cell("main/b")
    tree.cell("main/a")
    tree.put("main/a/seed/rows.jsonl", "x" * (MAX_FILE_BYTES + 1))

    loaded = tree.load()

    assert [finding.code for finding in loaded.findings] == ["topology_too_large"]
    with pytest.raises(TopologyTooLarge, match="1048577"):
        loaded.publishable()


def test_a_tree_above_the_limit_is_refused(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./b"))
    tree.cell("main/b")
    tree.cell("main/a")
    for name in range(9):
        tree.put(f"main/a/seed/{name}.jsonl", "x" * MAX_FILE_BYTES)

    with pytest.raises(TopologyTooLarge, match="sum"):
        tree.load().publishable()


def test_sinks_are_put_where_edges_lead_nowhere(tree: Tree) -> None:
    tree.hive("main", edge("./a", "/out"))
    tree.cell("main/a")

    loaded = tree.load(sinks=("/out",))

    assert [finding.code for finding in loaded.findings] == []
    assert [(c.path, c.cell.type) for c in loaded.publishable().cells] == [
        ("/a", "code"),
        ("/out", "sink"),
    ]
    assert "sink_defined" in [f.code for f in tree.load(sinks=("/a",)).findings]


class TestTemplates:
    def agent(self, tree: Tree, home: str = "templates") -> None:
        tree.hive(f"{home}/agent", edge(".", "./model"), edge("./model", "./tool"))
        tree.cell(f"{home}/agent/model", "echo", params={"prefix": "${with.prefix}", "limit": 2})
        tree.cell(f"{home}/agent/tool", params={"script_path": "run.py"})
        tree.put(f"{home}/agent/tool/run.py", "of the template")

    def use(self, tree: Tree, **params: object) -> None:
        tree.hive("main", edge("./in", "./agent"))
        tree.cell("main/in")
        tree.hive("main/agent", template="agent", **params)

    def test_its_files_lie_under_the_hive(self, tree: Tree) -> None:
        self.agent(tree)
        self.use(tree, **{"with": {"prefix": "${WHO}: "}})

        loaded = tree.load({"WHO": "me"})

        assert loaded.findings == ()
        assert loaded.spec is not None
        cells = {cell.path: cell for cell in loaded.spec.cells}
        assert list(cells) == ["/agent/model", "/agent/tool", "/in"]
        assert cells["/agent/model"].params == {"prefix": "${WHO}: ", "limit": 2}
        assert cells["/agent/tool"].files == {"run.py": "of the template"}
        ends = [(edge.source, edge.target) for edge in loaded.spec.edges]
        assert ("/agent", "/agent/model") in ends

    def test_files_of_the_hive_win_and_its_edges_come_on_top(self, tree: Tree) -> None:
        self.agent(tree)
        self.use(tree, **{"with": {"prefix": "x"}})
        tree.hive(
            "main/agent", edge("./tool", "./mine"), template="agent", **{"with": {"prefix": "x"}}
        )
        tree.put("main/agent/tool/run.py", "of the hive")
        tree.cell("main/agent/mine")

        spec = tree.load().publishable()

        files = {cell.path: cell.files for cell in spec.cells}
        assert files["/agent/tool"] == {"run.py": "of the hive"}
        assert ("/agent/tool", "/agent/mine") in [(e.source, e.target) for e in spec.edges]
        assert ("/agent/model", "/agent/tool") in [(e.source, e.target) for e in spec.edges]

    def test_the_tree_s_own_templates_go_before_those_that_ship(self, tree: Tree) -> None:
        self.agent(tree, "../shipped")
        self.use(tree, **{"with": {"prefix": "x"}})
        assert tree.load().publishable().cells[1].files == {"run.py": "of the template"}

        self.agent(tree)
        tree.put("templates/agent/tool/run.py", "of the tree")

        assert tree.load().publishable().cells[1].files == {"run.py": "of the tree"}

    def test_a_fault_is_named_where_the_template_has_it(self, tree: Tree) -> None:
        self.agent(tree)
        tree.cell("templates/agent/model", "echo", params={"prefix": "${with.prefix}", "limt": 2})
        self.use(tree, **{"with": {"prefix": "x"}})

        [finding] = tree.findings()

        assert finding.file == "templates/agent/model/config.json"
        assert finding.json_path == "$.params.limt"

    @pytest.mark.parametrize(
        ("params", "code"),
        [
            ({}, "with_missing"),
            ({"with": {"prefix": "x", "prefx": "y"}}, "unknown_key"),
        ],
    )
    def test_values_that_do_not_meet_are_named(
        self, tree: Tree, params: dict[str, object], code: str
    ) -> None:
        self.agent(tree)
        self.use(tree, **params)

        assert code in codes(tree)

    @pytest.mark.parametrize("name", ["nothing", "../agent", "/etc"])
    def test_a_template_that_is_not_there_is_named(self, tree: Tree, name: str) -> None:
        tree.hive("main", template=name)

        assert codes(tree) == ["template_missing"]

    def test_a_template_that_contains_itself_is_refused(self, tree: Tree) -> None:
        self.agent(tree)
        tree.hive("templates/agent/inner", template="agent", **{"with": {"prefix": "x"}})
        self.use(tree, **{"with": {"prefix": "x"}})

        assert "template_cycle" in codes(tree)


def test_a_directory_without_config_hides_the_cells_below_it(tree: Tree) -> None:
    tree.hive("main", edge("./a", "./a"))
    tree.cell("main/a")
    tree.cell("main/folder/b")
    tree.put("main/notes/readme.txt", "no cells here")

    unregistered = [f for f in tree.findings() if f.code == "directory_unregistered"]

    assert [finding.file for finding in unregistered] == ["main/folder"]


def test_a_graph_names_every_node_and_edge_once(tree: Tree) -> None:
    changed = edge("./a", "./h", 'hop.x == "y"', set_context={"n": "1"})
    tree.hive("main", changed, edge("./h", "/z", in_session_order=True))
    tree.cell("main/a")
    tree.hive("main/h")
    spec = tree.load().publishable()

    assert mermaid(spec).splitlines() == [
        "flowchart LR",
        '    n0["/a (code)"]',
        '    n1{{"/h"}}',
        '    n2["/z (?)"]',
        '    n0 -->|"hop.x == #quot;y#quot; / n := 1"| n1',
        '    n1 -->|"in session order"| n2',
    ]
    assert '    "/a" -> "/h" [label="hop.x == \\"y\\" / n := 1"];' in dot(spec).splitlines()


def test_shipped_trees_lie_in_the_checkout() -> None:
    assert shipped("templates") == Path(__file__).parents[2] / "config" / "templates"
