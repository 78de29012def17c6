"""What a template accepts in `with`, and what is said to a hive that hands over something else."""

import pytest

from tests.topology.conftest import Tree, edge

TOKENS = {"type": "integer", "minimum": 1, "default": 60}
MEASURE = {"enum": ["sum", "last"], "default": "sum"}
MODEL = {"type": "string"}
TAGS = {"type": "array", "items": {"type": "string"}, "default": []}

ACCEPTS = {"tokens": TOKENS, "measure": MEASURE, "model": MODEL, "tags": TAGS}


@pytest.fixture
def lane(tree: Tree) -> Tree:
    """A tree with a template that asks for all that it accepts."""
    template(tree, ACCEPTS)
    return tree


def template(tree: Tree, accepts: object) -> None:
    tree.hive(
        "templates/lane",
        edge(".", "./fold", set_hop={"full": "60 < ${with.tokens}", "by": "'${with.measure}'"}),
        accepts=accepts,
    )
    params = {"prefix": "${with.model}", "limit": "${with.tokens}"}
    tree.cell("templates/lane/fold", "echo", params=params)
    tree.cell("templates/lane/tagged", params={"tags": "${with.tags}"})
    tree.hive("templates/lane/inner", edge("../fold", "../tagged"))


def found(tree: Tree, /, *, variables: dict[str, str] | None = None, **handed: object) -> list[str]:
    """The findings, where a hive hands these values to the template."""
    tree.hive("main", edge("./in", "./lane"))
    tree.cell("main/in")
    tree.hive("main/lane", template="lane", **{"with": handed})
    return [
        f"{finding.file} {finding.json_path} {finding.code}"
        for finding in tree.load(variables or {}).findings
    ]


AT = "main/lane/config.json $.params.with"


def test_defaults_stand_in_for_what_is_left_out(lane: Tree) -> None:
    assert found(lane, model="small") == []

    spec = lane.load().publishable()

    cells = {cell.path: cell.params for cell in spec.cells}
    assert cells["/lane/fold"] == {"prefix": "small", "limit": 60}
    assert cells["/lane/tagged"] == {"tags": []}
    modifiers = [e.modifier.set_hop for e in spec.edges if e.source == "/lane" and e.modifier]
    assert modifiers == [{"full": "60 < 60", "by": "'sum'"}]


def test_what_is_handed_over_goes_before_the_default(lane: Tree) -> None:
    assert found(lane, model="small", tokens=5, tags=["a"]) == []

    cells = {cell.path: cell.params for cell in lane.load().publishable().cells}

    assert cells["/lane/fold"]["limit"] == 5
    assert cells["/lane/tagged"] == {"tags": ["a"]}


@pytest.mark.parametrize(
    ("handed", "findings"),
    [
        ({"tokens": "many"}, [f"{AT}.tokens invalid_value"]),
        ({"tokens": "5"}, [f"{AT}.tokens invalid_value"]),
        ({"tokens": -5}, [f"{AT}.tokens invalid_value"]),
        ({"tokens": True}, [f"{AT}.tokens invalid_value"]),
        ({"measure": "lst"}, [f"{AT}.measure invalid_value"]),
        ({"tags": ["a", 1]}, [f"{AT}.tags[1] invalid_value"]),
        ({"tokns": 5}, [f"{AT}.tokns unknown_key"]),
        (
            {"tokens": 0, "measure": 1},
            [f"{AT}.tokens invalid_value", f"{AT}.measure invalid_value"],
        ),
    ],
)
def test_what_a_template_does_not_accept_is_named_where_it_is_written(
    lane: Tree, handed: dict[str, object], findings: list[str]
) -> None:
    assert found(lane, model="small", **handed) == findings


def test_what_has_no_default_is_missed_where_it_would_be_written(lane: Tree) -> None:
    assert found(lane) == [f"{AT}.model with_missing"]


def test_a_number_may_come_out_of_a_variable(lane: Tree) -> None:
    handed = {"model": "${WHO}", "tokens": "${TOKENS}"}

    assert found(lane, variables={"WHO": "7", "TOKENS": "7"}, **handed) == []
    assert found(lane, variables={"WHO": "7", "TOKENS": "0"}, **handed) == [
        f"{AT}.tokens invalid_value"
    ]
    assert found(lane, variables={"WHO": "7", "TOKENS": "all"}, **handed) == [
        f"{AT}.tokens invalid_value"
    ]


def test_a_variable_that_is_not_set_is_given_the_benefit(lane: Tree) -> None:
    codes = {line.split()[-1] for line in found(lane, model="x", tokens="${TOKENS}")}

    assert codes == {"variable_unset"}


@pytest.mark.parametrize(
    "schema",
    [{"type": "array"}, {"type": "object"}, {"type": "boolean"}, {"enum": [["x"]]}],
    ids=str,
)
def test_what_is_missing_is_said_once(tree: Tree, schema: dict[str, object]) -> None:
    template(tree, {**ACCEPTS, "tags": schema})

    assert found(tree, model="small") == [f"{AT}.tags with_missing"]


HERE = "templates/lane/config.json $.params.accepts"


@pytest.mark.parametrize(
    ("changed", "finding"),
    [
        ({"tokens": {"type": "number?"}}, f"{HERE}.tokens.type invalid_value"),
        ({"tokens": {**TOKENS, "default": 0}}, f"{HERE}.tokens.default invalid_value"),
        ({"tokens": 5}, f"{HERE}.tokens invalid_value"),
        ({"other": TAGS}, f"{HERE}.other unknown_key"),
    ],
)
def test_what_a_template_declares_is_held_against_itself(
    tree: Tree, changed: dict[str, object], finding: str
) -> None:
    template(tree, {**ACCEPTS, **changed})

    assert finding in found(tree, model="small")


def test_what_a_template_asks_for_and_does_not_accept_is_missing(tree: Tree) -> None:
    template(tree, {key: schema for key, schema in ACCEPTS.items() if key != "tags"})

    assert found(tree, model="small") == [
        "templates/lane/tagged/config.json $.params.tags with_missing"
    ]


def test_a_template_within_a_template_is_handed_what_the_outer_one_is(tree: Tree) -> None:
    template(tree, ACCEPTS)
    tree.hive(
        "templates/outer",
        template="lane",
        accepts={"model": MODEL},
        **{"with": {"model": "${with.model}", "tokens": 0}},
    )
    tree.hive("main", edge("./in", "./lane"))
    tree.cell("main/in")
    tree.hive("main/lane", template="outer", **{"with": {"model": "small"}})

    found = [f"{f.file} {f.json_path} {f.code}" for f in tree.load().findings]

    assert found == ["templates/outer/config.json $.params.with.tokens invalid_value"]


def test_a_template_knows_the_path_it_is_laid_into(tree: Tree) -> None:
    tree.hive(
        "templates/lane", edge(".", "./cell", condition="hop.entry == '${with.hive}'"), accepts={}
    )
    tree.cell("templates/lane/cell", params={"own": "${with.hive}"})
    tree.hive("templates/lane/inner", template="inner")
    tree.hive("templates/inner", edge(".", "./cell"))
    tree.cell("templates/inner/cell", params={"own": "${with.hive}"})
    tree.hive("main", edge("/colony/quiet", "./deep/lane"))
    tree.hive("main/deep")
    tree.hive("main/deep/lane", template="lane")

    spec = tree.load().publishable()

    cells = {cell.path: cell.params for cell in spec.cells}
    assert cells["/deep/lane/cell"] == {"own": "/deep/lane"}
    assert cells["/deep/lane/inner/cell"] == {"own": "/deep/lane/inner"}
    assert any(found.condition == "hop.entry == '/deep/lane'" for found in spec.edges)


def test_only_the_hive_of_a_template_accepts_anything(tree: Tree) -> None:
    tree.hive("main", edge("./in", "./out"), accepts={})
    tree.cell("main/in")
    tree.cell("main/out")

    assert [f"{f.file} {f.json_path} {f.code}" for f in tree.load().findings] == [
        "main/config.json $.params.accepts unknown_key"
    ]
