"""Rules: what they cover, which of them wins, and what is learned."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colony.agent.globs import literal, matches
from colony.agent.rules import EFFECTS, Judgement, Rule, RuleSet, judge, learned_rule, rule_sets
from colony.agent.telling import TELLING
from colony.topology.model import ToolDeclaration

Rules = Mapping[str, Sequence[str]]

texts = st.text(max_size=12)
awkward = st.text("ab*?\\()/. \n;&'\"$", max_size=12)


def tool(name: str = "file", *declared: str, read_only: bool = False) -> ToolDeclaration:
    properties: dict[str, Any] = {argument: {"type": "string"} for argument in declared}
    parameters = {"type": "object", "properties": properties} if declared else {"type": "object"}
    return ToolDeclaration(name=name, description="", parameters=parameters, read_only=read_only)


BASH = tool("bash", "command")


def judged(
    call: ToolDeclaration,
    args: Mapping[str, Any],
    settings: Rules | None = None,
    session: Rules | None = None,
    learned: Sequence[str] = (),
) -> Judgement:
    return judge(call, args, rule_sets(settings or {}, session or {}, learned))


def effect_of(command: str, **rules: Sequence[str]) -> str:
    return judged(BASH, {"command": command}, rules).effect


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("/src/*", "/src/a/b.py", True),
        ("*", "", True),
        ("*", "a\nb", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", True),
        ("a?c", "ac", False),
        ("a.c", "abc", False),
        ("[ab]", "a", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("*ab", "aab", True),
        ("a*a", "a", False),
        ("src", "src/a", False),
        ("A", "a", False),
        ("a\\*", "a*", True),
        ("a\\*", "ab", False),
        ("a\\?", "ab", False),
        ("C:\\dir", "C:\\dir", True),
        ("a\\\\", "a\\", True),
    ],
)
def test_glob_matches_all_of_a_text_or_not(pattern: str, text: str, found: bool) -> None:
    assert matches(pattern, text) is found


@given(texts | awkward, texts | awkward)
def test_literal_matches_itself_and_nothing_else(text: str, other: str) -> None:
    assert matches(literal(text), text)
    assert matches(literal(text), other) is (text == other)


@given(awkward, awkward, awkward)
def test_star_stands_for_anything_between(before: str, between: str, after: str) -> None:
    assert matches(f"{literal(before)}*{literal(after)}", before + between + after)


def test_no_pattern_takes_for_ever() -> None:
    assert not matches("*a" * 30 + "b", "a" * 20_000)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("file", Rule("file")),
        (" file ", Rule("file")),
        ("file(/src/*)", Rule("file", "/src/*")),
        ("bash(echo (a) b)", Rule("bash", "echo (a) b")),
        ("bash(a\nb)", Rule("bash", "a\nb")),
        ("git__*", Rule("git__*")),
        ("*", Rule("*")),
    ],
)
def test_rule_is_a_tool_and_perhaps_a_pattern(text: str, rule: Rule) -> None:
    assert Rule.parse(text) == rule
    assert str(rule) == text.strip()


@pytest.mark.parametrize(
    "text", ["", " ", "()", "(x)", "file(", "file)", "file()", "a b", "file(x) y"]
)
def test_what_is_no_rule_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no rule"):
        Rule.parse(text)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"allows": ["file"]}, "allows"),
        ({"allow": ["file", "a b"]}, "a b"),
        ({"deny": "bash"}, "deny"),
        ({"ask": [1]}, "ask"),
    ],
)
def test_rules_are_all_read_or_none(given: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RuleSet.parse("settings", given)


# Rules of the colony, rules of the session, what is learned, whether the tool only reads; effect.
SCOPES: list[tuple[Rules, Rules, Sequence[str], bool, str]] = [
    ({}, {}, (), False, "ask"),
    ({}, {}, (), True, "allow"),
    ({"allow": ["file"]}, {}, (), False, "allow"),
    ({}, {"allow": ["file(/a)"]}, (), False, "allow"),
    ({}, {"allow": ["file(/b)"]}, (), False, "ask"),
    ({}, {}, ("file(/a)",), False, "allow"),
    ({}, {}, ("file(/b)",), False, "ask"),
    # Any deny wins, whoever allows.
    ({"allow": ["file"]}, {"deny": ["file"]}, (), False, "deny"),
    ({"deny": ["file"]}, {"allow": ["file"]}, ("file(/a)",), True, "deny"),
    ({"deny": ["file(/b)"]}, {}, (), True, "allow"),
    # Ask beats allow, in whatever scope.
    ({"allow": ["file"]}, {"ask": ["file"]}, (), False, "ask"),
    ({"ask": ["file"]}, {"allow": ["file"]}, (), False, "ask"),
    ({"ask": ["*"]}, {}, (), True, "ask"),
    # What is learned beats neither.
    ({"ask": ["file(/*)"]}, {}, ("file(/a)",), False, "ask"),
    ({}, {"ask": ["file"]}, ("file(/a)",), False, "ask"),
    ({}, {"deny": ["file(/?)"]}, ("file(/a)",), False, "deny"),
    ({"deny": ["*"]}, {}, (), True, "deny"),
]


@pytest.mark.parametrize(("settings", "session", "learned", "read_only", "effect"), SCOPES)
def test_scopes_are_weighed(
    settings: Rules, session: Rules, learned: Sequence[str], read_only: bool, effect: str
) -> None:
    call = tool("file", "path", read_only=read_only)

    assert judged(call, {"path": "/a"}, settings, session, learned).effect == effect


def test_reason_is_that_of_the_higher_scope() -> None:
    both = {"deny": ["file"]}

    assert judged(tool(), {}, both, both).reason == "deny by file (settings)"
    assert judged(tool(), {}, {}, both).reason == "deny by file (session)"
    assert judged(tool(), {}).reason == "no rule is about this call of file"
    assert judged(tool(read_only=True), {}).reason == "the tool only reads"


@given(
    st.dictionaries(st.sampled_from(EFFECTS), st.lists(st.sampled_from(["file", "file(/a)", "*"]))),
    st.dictionaries(st.sampled_from(EFFECTS), st.lists(st.sampled_from(["file", "file(/b)", "*"]))),
    st.booleans(),
)
def test_deny_wins_and_nothing_is_allowed_that_somebody_asks_about(
    settings: Rules, session: Rules, read_only: bool
) -> None:
    call = tool("file", "path", read_only=read_only)

    found = judged(call, {"path": "/a"}, settings, session).effect

    about = {
        effect: any(rule != "file(/b)" for rules in (settings, session)
                    for rule in rules.get(effect, ()))
        for effect in EFFECTS
    }  # fmt: skip
    otherwise = "allow" if about["allow"] or read_only else "ask"
    assert found == next((e for e in ("deny", "ask") if about[e]), otherwise)


@pytest.mark.parametrize(
    ("declared", "args", "value"),
    [
        ((), {"path": "/a", "url": "u"}, "/a"),
        ((), {"query": "q", "url": "u"}, "u"),
        ((), {"pattern": "p", "query": "q"}, "p"),
        ((), {"file_path": "/a", "pattern": "p"}, "/a"),
        ((), {"path": 1, "query": "q"}, "q"),
        ((), {"other": "x"}, ""),
        # What a tool does not declare says nothing of what it does.
        (("url",), {"path": "/a", "url": "u"}, "u"),
        (("url",), {"command": "c", "url": "u"}, "u"),
        (("city",), {"path": "/a", "city": "x"}, ""),
    ],
)
def test_telling_value_is_the_first_that_is_declared(
    declared: Sequence[str], args: Mapping[str, Any], value: str
) -> None:
    call = tool("file", *declared)

    assert judged(call, args, {"deny": [f"file({value or '?*'})"]}).effect == (
        "deny" if value else "ask"
    )


@pytest.mark.parametrize("name", TELLING)
def test_every_telling_argument_can_be_ruled_on(name: str) -> None:
    assert judged(tool("file", name), {name: "x"}, {"allow": ["file(x)"]}).effect == "allow"


@pytest.mark.parametrize(
    ("path", "pattern", "effect"),
    [
        ("docs/a", "docs/*", "allow"),
        ("./docs//a", "docs/*", "allow"),
        ("docs/a", "./docs/*", "allow"),
        ("docs/../secret", "docs/*", "ask"),
        ("/docs/../etc/passwd", "/docs/*", "ask"),
        ("/docs/x/../a", "/docs/*", "allow"),
    ],
)
def test_path_is_allowed_by_where_it_leads(path: str, pattern: str, effect: str) -> None:
    found = judged(tool("file", "path"), {"path": path}, {"allow": [f"file({pattern})"]})

    assert found.effect == effect


@pytest.mark.parametrize("path", ["/etc/passwd", "/tmp/../etc/passwd", "/etc/./passwd", "//etc/x"])
def test_path_is_denied_however_it_is_written(path: str) -> None:
    rules = {"deny": ["file(/etc/*)"], "allow": ["file"]}

    assert judged(tool("file", "path"), {"path": path}, rules).effect == "deny"


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ("ls -l", "allow"),
        ("rm x", "deny"),
        ("git push", "ask"),
        ("make", "ask"),
        ("ls && rm x", "deny"),
        ("rm x && ls", "deny"),
        ("ls | make", "ask"),
        ("ls && git push && rm x", "deny"),
        ("ls && ls -l", "allow"),
        ("timeout 5 ls", "allow"),
        ("timeout 5 rm x", "deny"),
        ("sudo ls", "ask"),
        ("sudo rm x", "ask"),
        ("ls $(pwd)", "ask"),
        ("ls $(rm x)", "deny"),
        ("ls 'a && rm x'", "allow"),
        ("ls >out", "ask"),
        ("'r'm x", "deny"),
        ("A=1 ls", "ask"),
        ("A=1 rm x", "deny"),
        ("curl x | sh", "deny"),
        ("ls 'unclosed", "ask"),
        ("ls # \nrm x", "deny"),
        ("", "ask"),
    ],
)
def test_worst_of_the_commands_counts(command: str, effect: str) -> None:
    found = effect_of(
        command,
        allow=["bash(ls*)"],
        ask=["bash(git push*)"],
        deny=["bash(rm *)", "bash(curl * | *)"],
    )

    assert found == effect


def test_nothing_in_doubt_is_allowed_by_any_rule() -> None:
    assert effect_of("ls $(x)", allow=["*", "bash", "bash(*)"]) == "ask"
    assert judged(BASH, {}, {"allow": ["bash"]}).effect == "ask"
    assert judged(BASH, {"command": ["ls"]}, {"allow": ["bash"]}).effect == "ask"


@pytest.mark.parametrize(
    ("call", "args", "judged_as_shell"),
    [
        (tool("bash"), {"command": "a; b"}, True),
        (tool("shell"), {"command": "a; b"}, True),
        (tool("run", "command"), {"command": "a; b"}, True),
        (tool("run", "path"), {"command": "a; b", "path": "/a"}, False),
    ],
)
def test_tool_runs_commands_by_its_name_or_what_it_declares(
    call: ToolDeclaration, args: Mapping[str, Any], judged_as_shell: bool
) -> None:
    assert (judged(call, args, {"deny": ["*(b)"]}).effect == "deny") is judged_as_shell


@pytest.mark.parametrize(
    ("call", "args", "rule"),
    [
        (BASH, {"command": "ls -l  'a b'"}, "bash(ls -l 'a b')"),
        (BASH, {"command": "timeout 5 ls"}, "bash(ls)"),
        (BASH, {"command": "ls *"}, "bash(ls \\*)"),
        (BASH, {"command": "a && b"}, ""),
        (BASH, {"command": "ls $(x)"}, ""),
        (BASH, {"command": "ls > x"}, ""),
        (BASH, {"command": "A=1 ls"}, ""),
        (BASH, {"command": ""}, ""),
        (BASH, {}, ""),
        (tool("file", "path"), {"path": "docs/../a"}, "file(a)"),
        (tool("file", "path"), {"path": ""}, ""),
        (tool("fetch", "url"), {"url": "https://x/?q=*"}, "fetch(https://x/\\?q=\\*)"),
        (tool("weather", "city"), {"city": "Bern"}, ""),
        (tool("a*b", "path"), {"path": "x"}, ""),
        (tool("odd name", "path"), {"path": "x"}, ""),
    ],
)
def test_exact_rule_is_learned_or_none(
    call: ToolDeclaration, args: Mapping[str, Any], rule: str
) -> None:
    assert learned_rule(call, args) == rule


@given(awkward | texts, awkward | texts)
def test_what_is_learned_allows_the_same_and_nothing_else(value: str, other: str) -> None:
    call = tool("search", "query")
    rule = learned_rule(call, {"query": value})

    assert bool(rule) is bool(value)
    if rule:
        assert judged(call, {"query": value}, learned=[rule]).effect == "allow"
        expected = "allow" if other == value else "ask"
        assert judged(call, {"query": other}, learned=[rule]).effect == expected


@given(awkward | texts)
def test_learned_command_is_not_asked_about_again(command: str) -> None:
    rule = learned_rule(BASH, {"command": command})

    found = judged(BASH, {"command": command}, learned=[rule] if rule else []).effect

    assert found == ("allow" if rule else "ask")


def test_learned_star_is_a_star() -> None:
    rule = learned_rule(BASH, {"command": "ls *"})

    assert judged(BASH, {"command": "ls *"}, learned=[rule]).effect == "allow"
    assert judged(BASH, {"command": "ls secret"}, learned=[rule]).effect == "ask"
