"""Rules: whether a call may be made, must be asked about, or is refused.

A rule is `Tool`, for any arguments, or `Tool(pattern)`, for those whose telling value matches. Any
deny wins. Ask beats allow, but that an allow of somebody beats the ask that comes of nothing but a
tool being able to change things.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import JsonValue

from colony.agent.globs import literal, matches
from colony.agent.telling import Part, parts_of
from colony.topology.model import ToolDeclaration

Effect = Literal["allow", "ask", "deny"]
Scope = Literal["settings", "session", "learned"]

# The one that wins comes first.
EFFECTS: Final[tuple[Effect, ...]] = ("deny", "ask", "allow")

_RULE = re.compile(r"(?P<tool>[A-Za-z0-9_.:/*?-]{1,128})(?:\((?P<pattern>.*)\))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """A tool by its name, where `*` and `?` stand for any, and a pattern of the telling value."""

    tool: str
    pattern: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """The rule that a text is; raises ValueError where it is none."""
        match = _RULE.fullmatch(text.strip())
        if match is None or match["pattern"] == "":
            raise ValueError(f"{text!r} is no rule: it is Tool or Tool(pattern)")
        return cls(match["tool"], match["pattern"])

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"

    def covers(self, tool: str, values: Iterable[str]) -> bool:
        """Whether it is about a call of `tool` with one of these telling values."""
        if not matches(self.tool, tool):
            return False
        pattern = self.pattern
        return pattern is None or any(matches(pattern, value) for value in values)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of one scope."""

    scope: Scope
    allow: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()

    @classmethod
    def parse(cls, scope: Scope, given: Mapping[str, Sequence[str]]) -> "RuleSet":
        """The rules that are written under `allow`, `ask` and `deny`.

        Raises ValueError for another word, and for what is no rule.
        """
        unknown = sorted(set(given) - set(EFFECTS))
        if unknown:
            raise ValueError(f"rules have allow, ask and deny, and no {', '.join(unknown)}")
        return cls(scope, **{effect: _parsed(effect, rules) for effect, rules in given.items()})

    def first(self, effect: Effect, tool: str, values: Iterable[str]) -> Rule | None:
        """The first rule of an effect that is about a call."""
        rules: tuple[Rule, ...] = getattr(self, effect)
        return next((rule for rule in rules if rule.covers(tool, values)), None)


def rule_sets(
    settings: Mapping[str, Sequence[str]],
    session: Mapping[str, Sequence[str]],
    learned: Sequence[str],
) -> list[RuleSet]:
    """The scopes, the highest first; raises ValueError where one has what is no rule."""
    return [
        RuleSet.parse("settings", settings),
        RuleSet.parse("session", session),
        RuleSet.parse("learned", {"allow": learned}),
    ]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a call, and why."""

    effect: Effect
    reason: str


def judge(
    tool: ToolDeclaration, args: Mapping[str, JsonValue], scopes: Sequence[RuleSet]
) -> Judgement:
    """What becomes of a call by the rules of these scopes, the highest first.

    Each command of a command line is judged, and the worst of them counts.
    """
    judged = [_judged(tool, part, scopes) for part in parts_of(tool, args)]
    return min(judged, key=lambda judgement: EFFECTS.index(judgement.effect))


def learned_rule(tool: ToolDeclaration, args: Mapping[str, JsonValue]) -> str:
    """The rule that allows this very call again; empty where nothing so exact can be said of it."""
    parts = parts_of(tool, args)
    value = parts[0].values[0]
    if len(parts) > 1 or parts[0].doubt or not value:
        return ""
    rule = Rule(literal(tool.name), literal(value))
    try:
        return str(rule) if Rule.parse(str(rule)) == rule else ""
    except ValueError:
        return ""


def _judged(tool: ToolDeclaration, part: Part, scopes: Sequence[RuleSet]) -> Judgement:
    for effect in EFFECTS:
        # However the same is written, what speaks against it counts.
        values = part.values if effect == "allow" else (*part.values, *part.spellings)
        for scope in scopes:
            rule = scope.first(effect, tool.name, values)
            if rule is not None:
                return _allowed(Judgement(effect, f"{effect} by {rule} ({scope.scope})"), part)
    if tool.read_only:
        return _allowed(Judgement("allow", "the tool only reads"), part)
    return Judgement("ask", f"no rule is about this call of {tool.name}")


def _allowed(judgement: Judgement, part: Part) -> Judgement:
    """The same, but that nothing is allowed that is in doubt."""
    if judgement.effect == "allow" and part.doubt:
        return Judgement("ask", part.doubt)
    return judgement


def _parsed(effect: str, rules: Sequence[str]) -> tuple[Rule, ...]:
    if isinstance(rules, str) or not all(isinstance(rule, str) for rule in rules):
        raise ValueError(f"the rules under {effect} are a list of texts")
    return tuple(map(Rule.parse, rules))
