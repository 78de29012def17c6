import logging
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from colony.errors import ExpressionError, ExpressionTooLarge, MissingKey
from colony.topology import cel, expressions, syntax
from colony.topology.expressions import WHOLE, Expression, Verdict

Headers = dict[str, JsonValue]

TRUE, FALSE, MISSING, ERROR = Verdict.TRUE, Verdict.FALSE, Verdict.MISSING, Verdict.ERROR


def condition(source: str, context: Headers | None = None, hop: Headers | None = None) -> Verdict:
    return Expression.parse(source).condition(context or {}, hop or {})


def value(source: str, context: Headers | None = None, hop: Headers | None = None) -> JsonValue:
    return Expression.parse(source).value(context or {}, hop or {})


def same(one: JsonValue, other: JsonValue) -> bool:
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(
    ("source", "context", "hop", "expected"),
    [
        ("0", {}, {}, 0),
        ("'0'", {}, {}, "0"),
        ("''", {}, {}, ""),
        ("int(context.iter) + 1", {"iter": "0"}, {}, 1),
        ("int(context.iter) + 1", {"iter": 0}, {}, 1),
        ("int(context.iter) + 1", {"iter": 5}, {}, 6),
        ("context.iter + 1", {"iter": 0}, {}, 1),
        ("hop.count == 3", {}, {"count": 3}, True),
        ("hop.count == 3", {}, {"count": 3.0}, True),
        ("hop.count == 3", {}, {"count": "3"}, False),
        ("hop.count != 3", {}, {"count": "3"}, True),
        ("hop.count < 3", {}, {"count": 2.5}, True),
        ("hop.count > 2u", {}, {"count": 2.5}, True),
        ("int(context.iter) < 12", {"iter": "0"}, {}, True),
        ("int(context.iter) < 12", {"iter": 0}, {}, True),
        ("hop.route in ['a', 'b']", {}, {"route": "b"}, True),
        ("'k' in hop", {}, {"k": None}, True),
        ("'k' in hop", {}, {}, False),
        ("hop.name.startsWith('web_')", {}, {"name": "web_fetch"}, True),
        ("hop.name.contains('b_f')", {}, {"name": "web_fetch"}, True),
        ("has(hop.n) ? int(context.t) + int(hop.n) : int(context.t)", {"t": "4"}, {}, 4),
        ("has(hop.n) ? int(context.t) + int(hop.n) : int(context.t)", {"t": "4"}, {"n": 3}, 7),
        ("hop.x", {}, {"x": [1, 1.0, True, None, {"a": "b"}]}, [1, 1.0, True, None, {"a": "b"}]),
        ("[hop.x, {'k': hop.x}]", {}, {"x": 1}, [1, {"k": 1}]),
        ("1.0 / 0.0", {}, {}, None),
        ("b'bytes'", {}, {}, None),
        ("duration('1s')", {}, {}, None),
    ],
)
def test_value_of(source: str, context: Headers, hop: Headers, expected: JsonValue) -> None:
    assert same(value(source, context, hop), expected)


@pytest.mark.parametrize(
    ("source", "hop"),
    [
        ("int('')", {}),
        ("hop.iter < 12", {"iter": "0"}),
        ("'a' in 'abc'", {}),
        ("int(' 3')", {}),
        ("int('0x10')", {}),
        ("int(3.5) == int('3.5')", {}),
        ("int(true)", {}),
        ("int(null)", {}),
        ("uint(-1)", {}),
        ("double('1_0')", {}),
        ("bool('yes')", {}),
        ("string(null)", {}),
        ("1 && true", {}),
        ("true && 1", {}),
        ("false || 1", {}),
        ("1 ? 2 : 3", {}),
        ("!1", {}),
        ("true + 1", {}),
        ("1 + 1.5", {}),
        ("1u - 2u", {}),
        ("'a' * 2", {}),
        ("'%s' % 'a'", {}),
        ("[1, 2][-1]", {}),
        ("'abc'[0]", {}),
        ("size(null)", {}),
        ("true < 2", {}),
        ("9223372036854775807 + 1", {}),
        ("hop.big + 1", {"big": 2**63}),
        ("1 / 0", {}),
        ("'abc'.matches('a(')", {}),
        ("[1].filter(x, 1)", {}),
        ("'abc'.map(x, x)", {}),
        ("{1: 'a', 1u: 'b'}", {}),
        ("hop.x.y", {"x": "text"}),
        ("hopp.x == 1", {}),
        ("has(nope.x)", {}),
        ("true || hopp.x", {}),
        ("shout(hop.x)", {"x": "a"}),
        ("hop.x.shout()", {"x": "a"}),
    ],
)
def test_evaluation_that_the_specification_refuses_is_an_error(source: str, hop: Headers) -> None:
    expression = Expression.parse(source)

    assert expression.condition({}, hop) is ERROR
    with pytest.raises(ExpressionError) as raised:
        expression.value({}, hop)
    assert not isinstance(raised.value, MissingKey)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("1 == 1.0", True),
        ("1u == 1", True),
        ("1 < 1.5", True),
        ("9007199254740993 == 9007199254740992.0", False),
        ("true == 1", False),
        ("1 == '1'", False),
        ("null == null", True),
        ("null != 0", True),
        ("[1, 'a'] == [1.0, 'a']", True),
        ("[true] == [1]", False),
        ("{'a': 1} == {'a': 1.0}", True),
        ("1 in [1.0]", True),
        ("true in [1]", False),
        ("{1: 'x'}[1.0] == 'x'", True),
        ("string(true)", "true"),
        ("string(7)", "7"),
        ("int('-12')", -12),
        ("-5 / 2", -2),
        ("-5 % 3", -2),
        ("false && 1", False),
        ("1 / 0 == 1 && false", False),
        ("1 / 0 == 1 || true", True),
        ("[1, 'a'].exists(x, x > 0)", True),
        ("[1, 2, 3].filter(x, x > 1)", [2, 3]),
        ("[1, 2].map(x, x + 1)", [2, 3]),
        ("[1, 2].exists_one(x, x == 2)", True),
        ("[1, 2].all(x, x < 2)", False),
        ("type(1) == int", True),
        ("type('a') == string && type(null) == null_type", True),
        (".int('3')", 3),
        ("size('ab') + size([1]) + size({})", 3),
        ("'abc'.matches('^a.c$')", True),
        ("{1: 'a'}", {"1": "a"}),
    ],
)
def test_specification_is_the_meaning(source: str, expected: JsonValue) -> None:
    assert same(value(source), expected)


@pytest.mark.parametrize(
    ("source", "hop", "verdict"),
    [
        ("hop.route == 'fire'", {"route": "fire"}, TRUE),
        ("hop.route == 'fire'", {"route": "ice"}, FALSE),
        ("hop.route == 'fire'", {}, MISSING),
        ("hop['route'] == 'fire'", {}, MISSING),
        ("hop.route", {}, MISSING),
        ("hop.a.b == 1", {"a": {}}, MISSING),
        ("has(hop.a.b)", {}, MISSING),
        ("hop.a == 1 || hop.b == 1", {}, MISSING),
        ("hop.a == 1 || hop.b == 1", {"b": 1}, TRUE),
        ("'abc'.startsWith(hop.a)", {}, MISSING),
        ("hop.a ? true : false", {}, MISSING),
        ("[1].exists(x, x == hop.a)", {}, MISSING),
        ("has(hop.route) && hop.route == 'fire'", {}, FALSE),
        ("hop.route == 'fire' && has(hop.route)", {}, FALSE),
        ("!has(hop.route) || hop.route == 'fire'", {}, TRUE),
        ("has(hop.route)", {"route": None}, TRUE),
        ("hop.flag", {"flag": True}, TRUE),
        ("hop.flag", {"flag": 1}, ERROR),
        ("hop.flag", {"flag": "true"}, ERROR),
        ("'true'", {}, ERROR),
        ("true", {}, TRUE),
        ("hop.count < 3", {"count": "2"}, ERROR),
    ],
)
def test_condition_ends_as(source: str, hop: Headers, verdict: Verdict) -> None:
    assert condition(source, {}, hop) is verdict


def test_missing_key_is_named_as_it_was_written() -> None:
    with pytest.raises(MissingKey) as raised:
        value("int(hop.tokens_prompt) + int(hop['other'])")

    assert raised.value.facts == {"detail": "hop.tokens_prompt"}


def test_error_does_not_quote_the_value_of_a_header() -> None:
    for source in ("hop.key < 1", "hop.key.x", "int(hop.key)", "hop.key.matches(hop.key)"):
        with pytest.raises(ExpressionError) as raised:
            value(source, {}, {"key": "s3cret("})
        assert "s3cret" not in str(raised.value)
        assert raised.value.__cause__ is None


def test_integer_beyond_64_bits_rides_through_and_compares() -> None:
    assert value("true ? hop.big : 0", {}, {"big": 2**70}) == 2**70
    assert condition("hop.big > 1", {}, {"big": 2**70}) is TRUE
    assert condition("has(hop.big)", {}, {"big": 2**70}) is TRUE


def test_nan_and_infinity_become_null_wherever_they_are() -> None:
    hop: Headers = {"x": [float("nan"), {"y": float("inf")}]}

    assert value("hop.x", {}, hop) == [None, {"y": None}]
    assert value("[hop.x]", {}, hop) == [[None, {"y": None}]]


@pytest.mark.parametrize(
    "source",
    [
        "",
        " ",
        "hop.x ==",
        "hop.x = 1",
        "'abc",
        "has()",
        "has(hop)",
        "has(hop['x'])",
        "has(hop.tool-name)",
        "[1].map(x)",
        "[1].exists(hop, hop == 1)",
        "Message{a: 1}",
        "9223372036854775808",
        "'\\U99999999'",
        "'\\ud800'",
    ],
)
def test_what_is_no_expression_is_refused(source: str) -> None:
    with pytest.raises(ExpressionError):
        Expression.parse(source)


def test_has_of_a_name_with_a_minus_says_what_it_is() -> None:
    with pytest.raises(ExpressionError, match=r"has\(hop\.tool-name\); .* subtraction"):
        Expression.parse("has(hop.tool-name) && hop.tool-name == 'x'")


@pytest.mark.parametrize(
    ("open_", "close"),
    [("(", ")"), ("[", "]"), ("int(", ")"), ("!!", ""), ("false ? 1 : ", ""), ("1 + ", "")],
)
def test_nesting_up_to_the_limit_evaluates_and_above_it_is_refused(open_: str, close: str) -> None:
    levels = 16 if open_ == "!!" else 32
    core = "true" if open_ == "!!" else "1"

    value(open_ * levels + core + close * levels)

    for above in (levels + 1, 1000 // len(open_)):
        with pytest.raises(ExpressionTooLarge):
            Expression.parse(open_ * above + core + close * above)


def test_length_up_to_the_limit_is_parsed_and_above_it_is_refused() -> None:
    assert value("'" + "ä" * 2047 + "'") == "ä" * 2047

    with pytest.raises(ExpressionTooLarge):
        Expression.parse("'" + "ä" * 2048 + "'")


def test_long_chain_of_conditions_is_not_deep() -> None:
    assert condition(" && ".join(["hop.a == 1"] * 290), {}, {"a": 1}) is TRUE
    assert condition(" || ".join(["hop.a == 2"] * 290), {}, {"a": 1}) is FALSE


def test_expression_leaves_the_process_as_it_was() -> None:
    program = (
        "import sys; before = sys.getrecursionlimit()\n"
        "from colony.topology.expressions import Expression\n"
        "Expression.parse('hop.a + 1 == 2').condition({}, {'a': 's3cret'})\n"
        "assert sys.getrecursionlimit() == before\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert run.stderr == ""


def test_evaluation_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    condition("hop.secret < 1 && int(hop.secret) > 2", {}, {"secret": "s3cret"})

    assert caplog.records == []


@pytest.mark.parametrize(
    ("source", "one", "other"),
    [
        ("string(hop.x)", 1, True),
        ("string(hop.x)", 1, 1.0),
        ("string(hop.x)", 0.0, -0.0),
        ("string(hop.x) == '1'", 1, "1"),
        ("string(hop.x[0])", [1], [True]),
        ("type(hop.x) == list", [], "[]"),
        ("has(hop.x)", None, "None"),
    ],
)
def test_memo_keeps_types_apart(source: str, one: JsonValue, other: JsonValue) -> None:
    for header in (one, other, one):
        fresh = cel.evaluate(source, syntax.parse(source), {"context": {}, "hop": {"x": header}})
        assert same(value(source, {}, {"x": header}), fresh)


def test_memo_keeps_null_and_absent_apart() -> None:
    assert condition("has(hop.x)", {}, {"x": None}) is TRUE
    assert condition("has(hop.x)") is FALSE


def test_expression_over_a_whole_root_sees_every_key() -> None:
    for source in ("size(hop) == 1", "hop == {'a': 1}", "hop[context.name] == 1"):
        assert condition(source, {"name": "a"}, {"a": 1}) is TRUE
        assert condition(source, {"name": "b"}, {"a": 1, "b": 2}) is FALSE


def test_second_evaluation_of_the_same_keys_does_not_interpret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expression = Expression.parse("has(hop.route) && int(hop.route) > 41414")
    other = Expression.parse("int(hop.missing) > 41414")
    assert expression.condition({"turn": "a"}, {"route": "41415"}) is TRUE
    assert other.condition({}, {}) is MISSING
    monkeypatch.setattr(cel, "evaluate", None)

    assert expression.condition({"turn": "b"}, {"route": "41415", "n": 1}) is TRUE
    assert other.condition({}, {"n": 1}) is MISSING


@pytest.mark.parametrize("source", ["hop.x", "context.x", "'literal'", "true"])
def test_bare_key_and_literal_are_not_interpreted_twice(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expression = Expression.parse(source)
    expression.condition({}, {})
    monkeypatch.setattr(cel, "evaluate", None)

    expression.condition({"x": "unseen"}, {"x": "unseen"})


def test_memo_is_bounded_in_entries_and_in_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MEMO_ENTRIES", 3)
    monkeypatch.setattr(expressions, "_memo", type(expressions._memo)())
    expression = Expression.parse("size(hop.x) > 1")

    for text in ("a", "b", "c", "a", "d", "x" * 10_000):
        expression.condition({}, {"x": text})

    assert [key[-1] for key in expressions._memo] == ["c", "a", "d"]


def test_changing_a_value_does_not_change_the_next_one() -> None:
    expression = Expression.parse("[hop.x]")
    first = expression.value({}, {"x": "a"})
    assert isinstance(first, list)
    first.append("changed")

    assert expression.value({}, {"x": "a"}) == ["a"]


def test_expressions_of_the_same_source_are_equal() -> None:
    assert Expression.parse("hop.a == 1") == Expression.parse("hop.a == 1")
    assert Expression.parse("hop.a == 1") != Expression.parse("hop.a ==  1")


_ROOTS = st.sampled_from(["hop", "context"])
_KEYS = st.sampled_from(["a", "b", "c"])
_SCALARS = st.sampled_from([0, 1, -1, 0.0, -0.0, 1.0, 1.5, True, False, None, "", "0", "1", "a"])
_VALUES = _SCALARS | st.lists(_SCALARS, max_size=2) | st.dictionaries(_KEYS, _SCALARS, max_size=2)
_HEADERS = st.dictionaries(_KEYS, _VALUES, max_size=3)
_SELECTS = st.builds("{}.{}".format, _ROOTS, _KEYS)
_LITERALS = st.sampled_from(["0", "1", "1.0", "1.5", "true", "null", "''", "'1'", "'a'", "[1]"])
_OPERANDS = (
    _SELECTS
    | _LITERALS
    | st.builds(
        "{}({})".format, st.sampled_from(["int", "string", "size", "double", "type"]), _SELECTS
    )
)
_TESTS = (
    st.builds("has({})".format, _SELECTS)
    | st.builds("'{}' in {}".format, _KEYS, _ROOTS)
    | st.builds(
        "{} {} {}".format,
        _OPERANDS,
        st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "+", "-", "in"]),
        _OPERANDS,
    )
    | st.builds("{0}[{1}] == {1}".format, _ROOTS, _SELECTS)
)
_CONDITIONS = st.recursive(
    _TESTS,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["&&", "||"]), inner)
        | st.builds("!({})".format, inner)
        | st.builds("(({0}) ? ({1}) : ({2}))".format, inner, inner, _OPERANDS)
    ),
    max_leaves=4,
)


def _outcome(source: str, headers: tuple[Headers, Headers]) -> tuple[str, str]:
    context, hop = headers
    try:
        fresh = cel.evaluate(source, syntax.parse(source), {"context": context, "hop": hop})
    except ExpressionError as error:
        return type(error).__name__, str(error)
    return type(fresh).__name__, repr(fresh)


def _remembered(expression: Expression, headers: tuple[Headers, Headers]) -> tuple[str, str]:
    try:
        remembered = expression.value(*headers)
    except ExpressionError as error:
        return type(error).__name__, str(error)
    return type(remembered).__name__, repr(remembered)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_CONDITIONS, st.lists(st.tuples(_HEADERS, _HEADERS), min_size=1, max_size=5))
def test_remembered_outcome_is_the_interpreted_one(
    source: str, several: list[tuple[Headers, Headers]]
) -> None:
    """Whole headers interpreted afresh, against the keys read and the memo; twice, so it hits."""
    expression = Expression.parse(source)
    for headers in [*several, *several]:
        fresh = _outcome(source, headers)

        assert _remembered(expression, headers) == fresh
        verdict = expression.condition(*headers)
        expected = {"True": TRUE, "False": FALSE}.get(fresh[1], ERROR)
        assert verdict is (MISSING if fresh[0] == "MissingKey" else expected)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_CONDITIONS, st.tuples(_HEADERS, _HEADERS))
def test_fully_guarded_expression_never_misses_and_a_true_one_keeps_its_guarantees(
    source: str, headers: tuple[Headers, Headers]
) -> None:
    expression = Expression.parse(source)
    verdict = expression.condition(*headers)
    present = {("context", key) for key in headers[0]} | {("hop", key) for key in headers[1]}

    if not expression.unguarded_reads:
        assert verdict is not MISSING
    if verdict is TRUE:
        assert {key for key in expression.guarantees if key[1] != WHOLE} <= present


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="hop.context[]()'a1 &|!=<>-+?:,{}\"\\u", max_size=30))
def test_any_text_is_an_expression_or_an_expression_error(source: str) -> None:
    try:
        expression = Expression.parse(source)
    except ExpressionError:
        return
    assert expression.condition({}, {"a": "1"}) in Verdict
