"""Rules: whether a call may be made, must be asked about, or is refused.

A rule is `Tool`, for any arguments, or `Tool(pattern)`, for those whose telling value matches. Any
deny wins. Ask beats allow, but that an allow of somebody beats the ask that comes of nothing but a
tool being able to change things.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from pydantic import JsonValue

from colony.agent.shell import Segment, segments

Effect = Literal["allow", "ask", "deny"]
Scope = Literal["settings", "session", "learned", "builtin"]

EFFECTS: Final[tuple[Effect, ...]] = ("deny", "ask", "allow")
# What tells most of the arguments of a call, the first that is there.
TELLING: Final = ("path", "file_path", "pattern", "url", "query")
COMMAND: Final = "command"

_RULE = re.compile(r"(?P<tool>[A-Za-z0-9_.*?-]{1,128})(?:\((?P<pattern>.*)\))?\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """A tool by its name, where `*` and `?` stand for any, and a pattern of the telling value."""

    tool: str
    pattern: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """The rule that a text is; raises ValueError where it is none."""
        match = _RULE.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no rule: it is Tool or Tool(pattern)")
        return cls(match["tool"], match["pattern"])

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"

    def covers(self, tool: str, value: str) -> bool:
        """Whether it is about a call of `tool` with this telling value."""
        named = _glob(self.tool).fullmatch(tool) is not None
        return named and (self.pattern is None or _glob(self.pattern).fullmatch(value) is not None)


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
        parsed = {effect: tuple(map(Rule.parse, rules)) for effect, rules in given.items()}
        return cls(scope, **parsed)

    def first(self, effect: Effect, tool: str, value: str) -> Rule | None:
        """The first rule of an effect that is about a call."""
        rules: tuple[Rule, ...] = getattr(self, effect)
        return next((rule for rule in rules if rule.covers(tool, value)), None)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a call, and why."""

    effect: Effect
    reason: str


def judge(
    tool: str, args: Mapping[str, JsonValue], scopes: Sequence[RuleSet], *, read_only: bool
) -> Judgement:
    """What becomes of a call; `scopes` are those of the colony, of the session, and the learned."""
    command = args.get(COMMAND)
    if not isinstance(command, str):
        return _judged(tool, telling(args), scopes, read_only=read_only)
    found = segments(command)
    if not found:
        return _judged(tool, command, scopes, read_only=read_only)
    judged = [_of_segment(tool, segment, scopes, read_only=read_only) for segment in found]
    return min(judged, key=lambda judgement: EFFECTS.index(judgement.effect))


def telling(args: Mapping[str, JsonValue]) -> str:
    """What tells most of the arguments of a call; empty where nothing does."""
    values = (args.get(name) for name in TELLING)
    return next((value for value in values if isinstance(value, str)), "")


def learned_rule(tool: str, args: Mapping[str, JsonValue]) -> str | None:
    """The rule that allows this very call again; None where nothing so exact can be said of it."""
    command = args.get(COMMAND)
    if isinstance(command, str):
        found = segments(command)
        exact = len(found) == 1 and found[0].plain
        return f"{tool}({_literal(found[0].text)})" if exact else None
    value = telling(args)
    return f"{tool}({_literal(value)})" if value else None


def _of_segment(
    tool: str, segment: Segment, scopes: Sequence[RuleSet], *, read_only: bool
) -> Judgement:
    judged = _judged(tool, segment.text, scopes, read_only=read_only)
    if judged.effect == "allow" and not segment.plain:
        return Judgement("ask", "the command substitutes, groups or redirects something")
    return judged


def _judged(tool: str, value: str, scopes: Sequence[RuleSet], *, read_only: bool) -> Judgement:
    for effect in EFFECTS:
        for scope in scopes:
            # What was learned from an answer allows, and no more.
            rule = scope.first(effect, tool, value)
            if rule is not None:
                return Judgement(effect, f"{effect} by {rule} ({scope.scope})")
    if read_only:
        return Judgement("allow", "the tool only reads")
    return Judgement("ask", f"no rule is about this call of {tool}")


@cache
def _glob(pattern: str) -> re.Pattern[str]:
    """A pattern where `*` is any run of characters, `?` any one, and `\\` takes that from both."""
    parts: list[str] = []
    escaped = False
    for char in pattern:
        if escaped or char not in "*?\\":
            parts.append(re.escape(char))
            escaped = False
        elif char == "\\":
            escaped = True
        else:
            parts.append(".*" if char == "*" else ".")
    if escaped:
        parts.append(re.escape("\\"))
    return re.compile("".join(parts), re.DOTALL)


def _literal(value: str) -> str:
    return "".join(f"\\{char}" if char in "*?\\" else char for char in value)


def rule_sets(
    settings: Mapping[str, Sequence[str]],
    session: Mapping[str, Sequence[str]],
    learned: Iterable[str],
) -> list[RuleSet]:
    """The scopes, the highest first; raises ValueError where one has what is no rule."""
    return [
        RuleSet.parse("settings", settings),
        RuleSet.parse("session", session),
        RuleSet.parse("learned", {"allow": [*learned]}),
    ]
