import pytest

from .conftest import Tree, contract, edge, emitting

EDGES = "$.params.graph.edges"


def lints(tree: Tree) -> list[tuple[str, str]]:
    return [(f.json_path, f.code) for f in tree.findings() if f.code != "cell_unwired"]


def sentence(tree: Tree, code: str) -> str:
    [finding] = [f for f in tree.findings() if f.code == code]
    return finding.sentence


def sender(tree: Tree, declared: dict[str, object], *edges: object) -> None:
    """A cell /a that declares its hop, with these edges to sinks."""
    tree.hive("main", edge("./in", "./a"), *edges)
    tree.cell("main/in")
    tree.cell("main/a", contract=declared)
    tree.cell("main/b", "sink")
    tree.cell("main/c", "sink")


class TestRoutes:
    def test_a_declared_route_that_no_edge_takes_is_named(self, tree: Tree) -> None:
        sender(
            tree,
            emitting(route=["one", "two", "three"]),
            edge("./a", "./b", "hop.route == 'one'"),
            edge("./a", "./c", "has(hop.route) && hop.route in ['three']"),
        )

        assert lints(tree) == [("$.contract.emits.hop.route.values[1]", "route_untaken")]
        assert "'two'" in sentence(tree, "route_untaken")

    def test_an_edge_that_does_not_look_at_the_route_takes_all(self, tree: Tree) -> None:
        sender(tree, emitting(route=["one", "two"]), edge("./a", "./b"))

        assert lints(tree) == []

    def test_a_cell_without_edges_takes_no_route(self, tree: Tree) -> None:
        sender(tree, emitting(route=["one"]), edge("./b", "./c"))

        assert lints(tree) == [("$.contract.emits.hop.route.values[0]", "route_untaken")]


class TestLanes:
    @pytest.mark.parametrize(
        ("declared", "conditions", "missed"),
        [
            (emitting(f=["x", "y"]), ["hop.f == 'x'"], "hop.f 'y'"),
            (emitting(f=["x", "y"]), ["hop.f == 'x'", "hop.f != 'x'"], None),
            (emitting(f={"type": "string", "required": False}), ["has(hop.f)"], "no hop.f"),
            (emitting(f={"type": "string"}), ["hop.f == 'x'"], "hop.f '(another value)'"),
            (emitting(f={"type": "number"}), ["hop.f < 3", "hop.f > 3"], "hop.f 3"),
            (emitting(f={"type": "number"}), ["hop.f < 3", "hop.f >= 3"], None),
            (emitting(f={"type": "boolean"}), ["hop.f"], "hop.f False"),
            (
                emitting(f={"type": "string", "required": False}),
                ["has(hop.f) && hop.f == 'x'", "!has(hop.f) || hop.f != 'x'"],
                None,
            ),
            (
                emitting(f=["x"], g={"type": "number", "required": False}),
                ["hop.f == 'x' && hop.g > 3", "hop.f == 'x' && hop.g <= 3"],
                "hop.f 'x', no hop.g",
            ),
            (contract(), ["has(hop.error_code)"], "no hop.error_code"),
        ],
    )
    def test_a_lane_that_is_not_exhaustive_names_what_it_misses(
        self, tree: Tree, declared: dict[str, object], conditions: list[str], missed: str | None
    ) -> None:
        sender(tree, declared, *(edge("./a", "./b", condition) for condition in conditions))

        if missed is None:
            assert lints(tree) == []
        else:
            assert lints(tree) == [(f"{EDGES}[1].condition", "lane_open")]
            assert f"with {missed}." in sentence(tree, "lane_open")

    def test_a_cell_that_declares_nothing_may_send_anything(self, tree: Tree) -> None:
        sender(tree, contract(), edge("./a", "./b", "hop.f == 'x'"))
        tree.cell("main/a")

        assert lints(tree) == [(f"{EDGES}[1].condition", "lane_open")]

    def test_an_edge_without_condition_closes_the_lane(self, tree: Tree) -> None:
        sender(
            tree,
            emitting(f=["x", "y"]),
            edge("./a", "./b", "hop.f == 'x'"),
            edge("./a", "./c"),
        )

        assert lints(tree) == []

    def test_a_context_key_has_the_values_that_edges_give_it(self, tree: Tree) -> None:
        tree.hive(
            "main",
            edge("./in", "./a", set_context={"mode": "'fast'"}),
            edge("./a", "./b", "context.mode == 'fast'"),
        )
        tree.cell("main/in")
        tree.cell("main/a")
        tree.cell("main/b", "sink")
        assert lints(tree) == []

        tree.hive(
            "main",
            edge("./in", "./a", "has(hop.quick)", set_context={"mode": "'fast'"}),
            edge("./in", "./a", "!has(hop.quick)", set_context={"mode": "'slow'"}),
            edge("./a", "./b", "context.mode == 'fast'"),
        )
        assert lints(tree) == [(f"{EDGES}[2].condition", "lane_open")]

    def test_what_a_hive_is_sent_is_what_its_edges_must_take(self, tree: Tree) -> None:
        tree.hive("main", edge("./a", "./h", "hop.f == 'x'"), edge("./a", "./b", "hop.f != 'x'"))
        tree.cell("main/a", contract=emitting(f=["x", "y"]))
        tree.cell("main/b", "sink")
        tree.hive("main/h", edge(".", "./c", "hop.f == 'x'"))
        tree.cell("main/h/c", "sink")
        assert lints(tree) == []

        tree.hive("main/h", edge(".", "./c", "hop.f == 'y'"))
        assert lints(tree) == [(f"{EDGES}[0].condition", "lane_open")]

    def test_an_open_iteration_bound_is_an_open_lane(self, tree: Tree) -> None:
        sender(
            tree,
            emitting(route=["fire"]),
            edge("./a", "./b", "hop.route == 'fire' && int(context.iter) < 12"),
        )
        tree.hive(
            "main",
            edge("./in", "./a", set_context={"iter": "'0'"}),
            edge("./c", "./a", set_context={"iter": "int(context.iter) + 1"}),
            edge("./a", "./b", "hop.route == 'fire' && int(context.iter) < 12"),
        )

        assert (f"{EDGES}[2].condition", "lane_open") in lints(tree)
        assert "context.iter 12" in sentence(tree, "lane_open")


class TestOrigins:
    def store(self, tree: Tree, *replies: object) -> None:
        asked = edge("./a", "./store", "hop.n == 1", set_context={"origin": "'a'", "x": "'1'"})
        other = edge("./a", "./store", "hop.n != 1", set_context={"origin": "'b'"})
        tree.hive("main", edge("./in", "./a"), asked, other, *replies)
        tree.cell("main/in")
        tree.cell("main/a", contract=emitting(n={"type": "number"}))
        tree.cell("main/b", "sink")
        tree.cell("main/store", "store")

    def test_an_origin_without_a_way_back_is_named(self, tree: Tree) -> None:
        self.store(tree, edge("./store", "./b", "context.origin == 'a'"))

        place = f"{EDGES}[2].modifier.set_context.origin"
        assert lints(tree) == [(place, "origin_unreturned")]

    def test_origins_that_are_all_compared_are_fine(self, tree: Tree) -> None:
        self.store(tree, edge("./store", "./b", "context.origin in ['a', 'b']"))

        assert lints(tree) == []

    def test_an_edge_that_takes_every_reply_is_fine(self, tree: Tree) -> None:
        self.store(tree, edge("./store", "./b"))

        assert lints(tree) == []

    def test_a_store_that_nothing_leaves_returns_no_origin(self, tree: Tree) -> None:
        self.store(tree)

        assert [code for _, code in lints(tree)] == ["origin_unreturned"] * 2


class TestLoops:
    def loop(self, tree: Tree, condition: str = "hop.route == 'fire'", **modifier: object) -> None:
        """The store-backed loop: in, planner, dispatch, tool, collector, store."""
        again = {"set_context": {"iter": "int(context.iter) + 1"}, **modifier}
        tree.hive(
            "main",
            edge("./in", "./planner", set_context={"iter": "0"}),
            edge("./planner", "./dispatch", "hop.f == 'calls'"),
            edge("./planner", "./out", "hop.f != 'calls'"),
            edge("./dispatch", "./tool", "hop.route == 'tool'"),
            edge("./dispatch", "./collector", "hop.route == 'calls'"),
            edge("./tool", "./collector"),
            edge("./collector", "./store", "hop.route == 'row'", set_context={"origin": "'c'"}),
            edge("./collector", "./store", "hop.route == 'claim'", set_context={"origin": "'c'"}),
            edge("./store", "./collector", "context.origin == 'c'"),
            {"from": "./collector", "to": "./planner", "condition": condition, "modifier": again},
            edge("./collector", "./out", "hop.route == 'fire' && int(context.iter) >= 12"),
        )
        tree.cell("main/in")
        tree.cell("main/planner", "llm", contract=emitting(f=["calls", "stop"]))
        tree.cell("main/dispatch", contract=emitting(route=["tool", "calls"]))
        tree.cell("main/tool")
        tree.cell("main/collector", contract=emitting(route=["row", "claim", "fire"]))
        tree.cell("main/store", "store")
        tree.cell("main/out", "sink")

    def bounded(self) -> str:
        return "hop.route == 'fire' && int(context.iter) < 12"

    def test_a_loop_without_a_bound_is_named_where_it_starts_again(self, tree: Tree) -> None:
        self.loop(tree)

        assert lints(tree) == [(f"{EDGES}[9]", "loop_unbounded")]

    def test_a_bound_beyond_the_budget_is_named_with_the_budget_it_needs(self, tree: Tree) -> None:
        self.loop(tree, self.bounded())

        assert lints(tree) == [(f"{EDGES}[9]", "loop_exceeds_ttl")]
        # Four legs from planner to planner, and four store operations of two hops each.
        assert "12 rounds of 12 hops" in sentence(tree, "loop_exceeds_ttl")
        assert "a ttl of 147" in sentence(tree, "loop_exceeds_ttl")

    @pytest.mark.parametrize(("ttl", "enough"), [(146, False), (147, True)])
    def test_a_budget_that_lasts_is_enough(self, tree: Tree, ttl: int, enough: bool) -> None:
        self.loop(tree, self.bounded())
        tree.put("colony.json", {"message_default_ttl": ttl})

        assert (lints(tree) == []) is enough

    def test_a_loop_that_restores_needs_the_budget_of_one_round(self, tree: Tree) -> None:
        self.loop(tree, self.bounded(), restore_ttl=True)
        assert lints(tree) == []

        tree.put("colony.json", {"message_default_ttl": 8})
        assert [code for _, code in lints(tree)] == ["loop_exceeds_ttl"]

    def test_a_limit_on_what_nothing_counts_is_no_bound(self, tree: Tree) -> None:
        self.loop(tree, self.bounded(), set_context={"iter": "0"})

        assert "loop_unbounded" in [code for _, code in lints(tree)]

    def test_a_conversation_with_a_store_is_no_loop(self, tree: Tree) -> None:
        tree.hive(
            "main",
            edge("./in", "./a"),
            edge("./a", "./store"),
            edge("./store", "./a"),
        )
        tree.cell("main/in")
        tree.cell("main/a")
        tree.cell("main/store", "store")

        assert lints(tree) == []

    def test_two_cells_that_answer_each_other_are_a_loop(self, tree: Tree) -> None:
        tree.hive("main", edge("./in", "./a"), edge("./a", "./b"), edge("./b", "./a"))
        for name in ("in", "a", "b"):
            tree.cell(f"main/{name}")

        assert [code for _, code in lints(tree)] == ["loop_unbounded"]

    @pytest.mark.timeout(30)
    def test_a_large_graph_is_linted_in_bounded_time(self, tree: Tree) -> None:
        names = [f"n{at}" for at in range(14)]
        count = {"n": "int(context.n) + 1"}
        everywhere = [
            edge(f"./{one}", f"./{other}", "context.n < 3", set_context=count)
            for one in names
            for other in names
        ]
        tree.hive("main", *everywhere)
        for name in names:
            tree.cell(f"main/{name}")

        tree.put("colony.json", {"message_default_ttl": 3})

        assert "loop_exceeds_ttl" in [code for _, code in lints(tree)]


class TestExpressions:
    def test_a_hop_key_that_the_sender_does_not_declare_is_named(self, tree: Tree) -> None:
        sender(
            tree,
            emitting(route=["x"]),
            edge("./a", "./b", "has(hop.rout) && hop.rout == 'x'"),
            edge("./a", "./c", "hop.route == 'x'", set_hop={"k": "hop.kind"}),
        )

        assert lints(tree) == [
            (f"{EDGES}[1].condition", "hop_undeclared"),
            (f"{EDGES}[2].modifier.set_hop.k", "hop_undeclared"),
        ]

    def test_what_every_cell_may_add_counts_as_declared(self, tree: Tree) -> None:
        sender(
            tree,
            emitting(route=["x"]),
            edge("./a", "./b", "has(hop.error_code)"),
            edge("./a", "./c", "!has(hop.error_code)"),
        )

        assert lints(tree) == []

    def test_what_every_cell_of_a_type_may_emit_counts_as_declared(self, tree: Tree) -> None:
        counted = edge("./a", "./b", set_hop={"n": "has(hop.length) ? hop.length : 0"})
        sender(tree, emitting(route=["x"]), counted)
        assert [code for _, code in lints(tree)] == ["hop_undeclared"]

        tree.cell("main/a", "echo", params={"prefix": ""}, contract=emitting(route=["x"]))
        assert lints(tree) == []

    def test_a_hop_key_is_looked_for_behind_a_hive(self, tree: Tree) -> None:
        tree.hive("main", edge("./a", "./h", set_hop={"kind": "'x'"}))
        tree.cell("main/a", contract=emitting(route=["x"]))
        tree.hive("main/h", edge(".", "./b", "hop.kind == 'x' && hop.route == 'x'"))
        tree.cell("main/h/b", "sink")
        assert lints(tree) == []

        tree.hive("main/h", edge(".", "./b", "hop.knd == 'x'"))
        assert lints(tree) == [(f"{EDGES}[0].condition", "hop_undeclared")]

    @pytest.mark.parametrize(
        ("condition", "value", "found"),
        [
            (None, "hop.tokens", True),
            ("has(hop.tokens)", "hop.tokens", False),
            ("hop.tokens > 3 || hop.tokens <= 3", "hop.tokens", False),
            (None, "has(hop.tokens) ? hop.tokens : 0", False),
            (None, "hop.sure", False),
            (None, "int(context.unheard) + 1", True),
            (None, "has(context.unheard) ? context.unheard : 0", False),
        ],
    )
    def test_a_modifier_reads_what_may_be_absent_only_behind_a_guard(
        self, tree: Tree, condition: str | None, value: str, found: bool
    ) -> None:
        tokens = {"type": "number", "required": False}
        sender(
            tree,
            emitting(tokens=tokens, sure={"type": "number"}),
            edge("./a", "./b", condition, set_context={"seen": value}),
            edge("./a", "./c"),
        )

        place = f"{EDGES}[1].modifier.set_context.seen"
        assert lints(tree) == ([(place, "modifier_unguarded")] if found else [])

    def test_a_key_with_a_minus_is_a_subtraction(self, tree: Tree) -> None:
        sender(tree, contract(), edge("./a", "./b", "hop.tool-name == 'x'"), edge("./a", "./c"))

        assert lints(tree) == [(f"{EDGES}[1].condition", "hop_subtraction")]
        assert "hop['tool-name']" in sentence(tree, "hop_subtraction")

    def test_a_difference_of_two_keys_is_none(self, tree: Tree) -> None:
        sender(
            tree,
            emitting(n={"type": "number"}, m={"type": "number"}),
            edge("./a", "./b", "hop.n-hop.m == 1"),
            edge("./a", "./c"),
        )

        assert lints(tree) == []

    def test_a_name_that_does_not_exist_is_named(self, tree: Tree) -> None:
        sender(tree, contract(), edge("./a", "./b", "hopp.x == 'x'"), edge("./a", "./c"))

        assert lints(tree) == [(f"{EDGES}[1].condition", "undeclared_name")]

    @pytest.mark.parametrize("condition", [
        "hop.error_code == 'rate_limit'",
        "has(hop.error_code) && hop.error_code in ['auth', 'rate_limit']",
        "!has(hop.error_code) || hop.error_code != 'rate_limit'",
    ])  # fmt: skip
    def test_an_error_code_of_old_names_its_new_name(self, tree: Tree, condition: str) -> None:
        sender(tree, contract(), edge("./a", "./b", condition), edge("./a", "./c"))

        assert lints(tree) == [(f"{EDGES}[1].condition", "error_code_renamed")]
        assert "rate_limited" in sentence(tree, "error_code_renamed")

    def test_the_quiet_lane_reads_what_it_is_given(self, tree: Tree) -> None:
        sender(
            tree,
            contract(),
            edge("./a", "./b"),
            edge(
                "/colony/quiet",
                "./c",
                "hop.entry == '/a' && (hop.outputs == 0 || has(hop.error_code))",
                set_hop={"why": "has(hop.error_code) ? hop.error_code : 'stalled'"},
            ),
        )

        assert lints(tree) == []


def test_the_stalls_of_a_research_loop_are_named(tree: Tree) -> None:
    """A loop as it was once shipped elsewhere: each of these findings was a silence live."""
    tree.hive(
        "main",
        edge("./prep", "./memory", "hop.route == 'ustore'", set_context={"origin": "'prep'"}),
        edge("./prep", "./planner", "hop.route == 'ullm'", set_context={"iter": "'0'"}),
        edge("./planner", "./dispatch", "hop.finish_reason == 'tool_calls'"),
        edge("./planner", "./out", "hop.finish_reason == 'stop'"),
        edge("./planner", "./out", "hop.finish_reason == 'error'"),
        edge("./dispatch", "./collector", "has(hop.route) && hop.route == 'c_asst'"),
        edge("./dispatch", "./searcher", "has(hop.tool_name) && hop.tool_name == 'web_search'"),
        edge(
            "./dispatch",
            "./memory",
            "has(hop.tool_name) && hop.tool_name == 'remember'",
            set_context={"origin": "'tool'"},
        ),
        edge("./searcher", "./collector", set_hop={"route": "'c_res'"}),
        edge("./collector", "./memory", "hop.route == 'cstore'", set_context={"origin": "'c'"}),
        edge(
            "./collector",
            "./planner",
            "hop.route == 'fire' && int(context.iter) < 12",
            set_context={"iter": "int(context.iter) + 1"},
            restore_ttl=True,
        ),
        edge("./memory", "./collector", "context.origin == 'c'"),
    )
    optional = {"type": "string", "required": False}
    reasons = ["stop", "length", "tool_calls", "content_filter", "error"]
    tree.cell("main/prep", contract=emitting(route=["ustore", "ullm"]))
    tree.cell("main/planner", "llm", contract=emitting(finish_reason=reasons))
    tree.cell("main/dispatch", contract=emitting(route=optional, tool_name=optional))
    tree.cell("main/searcher")
    tree.cell("main/collector", contract=emitting(route=["cstore", "fire"]))
    tree.cell("main/memory", "store", contract=emitting(operation={"type": "string"}))
    tree.cell("main/out", "sink")

    assert sorted(lints(tree), key=lambda found: found[1]) == [
        (f"{EDGES}[9].condition", "lane_open"),
        (f"{EDGES}[5].condition", "lane_open"),
        (f"{EDGES}[2].condition", "lane_open"),
        (f"{EDGES}[0].modifier.set_context.origin", "origin_unreturned"),
        (f"{EDGES}[7].modifier.set_context.origin", "origin_unreturned"),
    ]


def test_every_lint_is_a_warning(tree: Tree) -> None:
    sender(
        tree,
        emitting(route=["one", "two"], f={"type": "string", "required": False}),
        edge("./a", "./b", "hop.route == 'one' && hop.f == 'x'", set_hop={"g": "hop.g"}),
        edge("./b", "./a", "hopp.x"),
    )

    assert {f.severity for f in tree.findings()} == {"warning"}


class TestOverlaps:
    REST = "has(hop.tool) && !(hop.tool in ['x'])"

    def test_a_catch_all_that_takes_what_another_edge_names_is_a_finding(self, tree: Tree) -> None:
        sender(
            tree,
            emitting(tool={"type": "string"}),
            edge("./a", "./b", "hop.tool == 'x'"),
            edge("./a", "./b", "has(hop.tool) && hop.tool == 'y'", set_hop={"n": "1"}),
            edge("./a", "./c", self.REST),
        )

        assert lints(tree) == [(f"{EDGES}[3].condition", "lane_overlap")]
        said = sentence(tree, "lane_overlap")
        assert all(part in said for part in ("/a", "hop.tool 'y'", "/b", "/c"))

    @pytest.mark.parametrize(
        "conditions",
        [
            # The catch-all excludes all that its siblings take, in each way of saying so.
            ["hop.tool == 'x'", "hop.tool == 'y'", "!(hop.tool in ['x', 'y'])"],
            ["hop.tool == 'x'", "hop.tool == 'y'", "hop.tool != 'x' && hop.tool != 'y'"],
            ["hop.tool == 'x'", "hop.tool == 'y'", "!(hop.tool == 'x' || hop.tool == 'y')"],
            # Nothing is excluded by name: a fan-out.
            ["hop.tool == 'x'", "hop.tool in ['x', 'y']", "hop.tool != 'z'"],
            ["hop.tool == 'x'", "has(hop.tool)"],
            # Another key keeps the two apart.
            ["hop.tool == 'x'", "hop.tool == 'y' && hop.k", "!(hop.tool in ['x']) && !hop.k"],
        ],
    )
    def test_edges_that_agree_are_none(self, tree: Tree, conditions: list[str]) -> None:
        declared = emitting(tool={"type": "string"}, k={"type": "boolean"})
        sender(tree, declared, *(edge("./a", "./b", condition) for condition in conditions))

        assert "lane_overlap" not in [code for _, code in lints(tree)]

    def test_a_value_that_its_sender_never_emits_is_none(self, tree: Tree) -> None:
        sender(
            tree,
            emitting(tool=["x", "z"]),
            edge("./a", "./b", "hop.tool in ['x']"),
            edge("./a", "./b", "hop.tool == 'y'"),
            edge("./a", "./c", self.REST),
        )

        assert lints(tree) == []
