import pytest

from colony.topology.expressions import WHOLE, Expression


@pytest.mark.parametrize(
    ("source", "reads", "unguarded"),
    [
        ("'x'", set(), set()),
        ("hop.a", {("hop", "a")}, {("hop", "a")}),
        (
            "hop['a'] == context.b",
            {("hop", "a"), ("context", "b")},
            {("hop", "a"), ("context", "b")},
        ),
        ("has(hop.a) && hop.a == 'x'", {("hop", "a")}, set()),
        ("'a' in hop && hop.a == 'x'", {("hop", "a")}, set()),
        ("hop.a == 'x' && has(hop.a)", {("hop", "a")}, {("hop", "a")}),
        ("has(hop.a) || hop.a == 'x'", {("hop", "a")}, {("hop", "a")}),
        ("!has(hop.a) || hop.a == 'x'", {("hop", "a")}, set()),
        ("!(has(hop.a) && hop.a == 'x')", {("hop", "a")}, set()),
        ("has(hop.a) ? hop.a : hop.b", {("hop", "a"), ("hop", "b")}, {("hop", "b")}),
        ("!has(hop.a) ? 'x' : hop.a", {("hop", "a")}, set()),
        ("(has(hop.a) && has(hop.b)) && hop.a == hop.b", {("hop", "a"), ("hop", "b")}, set()),
        ("(has(hop.a) || has(hop.b)) && hop.a", {("hop", "a"), ("hop", "b")}, {("hop", "a")}),
        ("has(hop.a.b)", {("hop", "a")}, {("hop", "a")}),
        ("hop[context.k]", {("hop", WHOLE), ("context", "k")}, {("hop", WHOLE), ("context", "k")}),
        ("size(hop)", {("hop", WHOLE)}, {("hop", WHOLE)}),
        ("[1].exists(x, x == hop.a)", {("hop", "a")}, {("hop", "a")}),
    ],
)
def test_reads_of(source: str, reads: set[object], unguarded: set[object]) -> None:
    expression = Expression.parse(source)

    assert expression.reads == reads
    assert expression.unguarded_reads == unguarded


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("has(hop.a)", {"a"}),
        ("!has(hop.a)", set()),
        ("has(hop.a) && hop.b == 1", {"a", "b"}),
        ("has(hop.a) || has(hop.b)", set()),
        ("hop.a == 1 || has(hop.a)", {"a"}),
        ("!(!has(hop.a) || hop.b == 1)", {"a", "b"}),
        ("hop.a == 1 ? hop.b : hop.c", {"a"}),
        ("[].all(x, x == hop.a)", set()),
    ],
)
def test_guarantees_of(source: str, keys: set[str]) -> None:
    assert Expression.parse(source).guarantees == {("hop", key) for key in keys}


def test_undeclared_names_are_reported() -> None:
    source = "hopp.x == shout(hop.y.cry()) && [1].map(x, x + z) == [] && type(1) == int"

    assert Expression.parse(source).undeclared == {"hopp", "shout", "cry", "z"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("hop.route == 'fire' && int(context.iter) < 12", {("hop", "route"): ("fire",)}),
        ("'fire' == hop.route", {("hop", "route"): ("fire",)}),
        ("has(hop.n) && (hop.n in [1, 2])", {("hop", "n"): (1, 2)}),
        ("hop.r == 'a' || hop.r == 'b'", {("hop", "r"): ("a", "b")}),
        ("hop.r == 'a' || hop.s == 'b'", {}),
        ("hop.r == 'a' || context.ok", {}),
        ("hop.r in ['a', 'b'] && hop.r in ['b', 'c']", {("hop", "r"): ("b",)}),
        ("hop.r in [1] && hop.r == true", {("hop", "r"): ()}),
        ("hop.r != 'a'", {}),
        ("!(hop.r == 'a')", {}),
        ("hop.r == context.r", {}),
        ("string(hop.r) == 'a'", {}),
    ],
)
def test_comparisons_of(source: str, found: dict[object, object]) -> None:
    assert Expression.parse(source).comparisons == found


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        ("int(context.iter) < 12", 12),
        ("int(context.iter) <= 11", 12),
        ("context.iter < 12 && hop.route == 'fire'", 12),
        ("12 > int(context.iter)", 12),
        ("int(context.iter) < 12 && int(context.iter) < 6", 6),
        ("int(context.iter) < 12 || hop.again", None),
        ("int(context.iter) > 12", None),
        ("int(context.iter) < int(context.max)", None),
        ("int(context.iter) + 1 < 12", None),
    ],
)
def test_upper_bounds_of(source: str, limit: int | None) -> None:
    expected = {} if limit is None else {("context", "iter"): limit}

    assert Expression.parse(source).upper_bounds == expected


def test_key_with_a_minus_is_reported_as_the_subtraction_it_is() -> None:
    assert Expression.parse("hop.tool-name == 'x'").subtractions == ("hop.tool-name",)
    assert Expression.parse("hop.n - 1 > hop.m - hop.n").subtractions == ()
