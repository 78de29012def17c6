"""Findings: what is wrong with a tree, and the place it is written at."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Self

Severity = Literal["error", "warning"]
Step = str | int

DANGLING = "dangling_endpoint"
NOT_IMPORTABLE = "handler_not_importable"
EXTRA_MISSING = "extra_missing"
FOLDER_MISSING = "folder_missing"

_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


@dataclass(frozen=True)
class Place:
    """A place in a file of a tree: the file's name below the root, and the way into its JSON."""

    file: str
    steps: tuple[Step, ...] = ()

    def at(self, *steps: Step) -> Self:
        """The place `steps` further in."""
        return replace(self, steps=(*self.steps, *steps))

    @property
    def json_path(self) -> str:
        """The place as a JSON path: `$.params.graph.edges[3].condition`."""
        return "$" + "".join(_spell(step) for step in self.steps)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a tree, in one sentence.

    An error keeps a tree from being published; a warning names what would go wrong live.
    """

    severity: Severity
    file: str
    json_path: str
    code: str
    sentence: str

    def to_json(self) -> dict[str, str]:
        """The finding as a JSON object."""
        return {
            "severity": self.severity,
            "file": self.file,
            "json_path": self.json_path,
            "code": self.code,
            "sentence": self.sentence,
        }

    def __str__(self) -> str:
        return f"{self.file} {self.json_path}: {self.severity} {self.code}: {self.sentence}"


@dataclass(frozen=True)
class Flaw:
    """What keeps a cell from working, as its type sees it.

    It is written at `steps` in `file`, a file of the cell's directory.
    """

    code: str
    sentence: str
    steps: tuple[Step, ...] = ()
    file: str = "config.json"
    severity: Severity = "error"


class Findings:
    """The findings of one load, in the order they were made; the same one is kept once."""

    def __init__(self) -> None:
        self._found: dict[Finding, None] = {}

    def error(self, place: Place, code: str, sentence: str) -> None:
        """Add what keeps the tree from being published."""
        self._add("error", place, code, sentence)

    def warning(self, place: Place, code: str, sentence: str) -> None:
        """Add what would go wrong live."""
        self._add("warning", place, code, sentence)

    def flaw(self, place: Place, flaw: Flaw) -> None:
        """Add what the type of a cell finds wrong with it."""
        self._add(flaw.severity, place.at(*flaw.steps), flaw.code, flaw.sentence)

    def _add(self, severity: Severity, place: Place, code: str, sentence: str) -> None:
        found = Finding(severity, place.file, place.json_path, code, sentence)
        self._found.setdefault(found)

    def all(self) -> tuple[Finding, ...]:
        """Every finding: errors first, each kind in the order it was made."""
        return tuple(sorted(self._found, key=lambda finding: finding.severity))


def strictly(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings under `--strict`: an edge end that names nothing is an error there."""
    return _as_errors(findings, DANGLING)


def hosted_here(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings where this host runs the cells: a handler that it cannot import, an extra and a
    folder that it lacks are errors there."""
    return _as_errors(findings, NOT_IMPORTABLE, EXTRA_MISSING, FOLDER_MISSING)


def exit_status(findings: Iterable[Finding], *, strict: bool) -> Literal[0, 1, 2]:
    """What `validate` exits with: 2 for errors, 1 for warnings under `--strict`, else 0."""
    judged = strictly(findings) if strict else tuple(findings)
    if any(finding.severity == "error" for finding in judged):
        return 2
    return 1 if strict and judged else 0


def _as_errors(findings: Iterable[Finding], *codes: str) -> tuple[Finding, ...]:
    return tuple(
        replace(finding, severity="error") if finding.code in codes else finding
        for finding in findings
    )


def _spell(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if _PLAIN_KEY.fullmatch(step):
        return f".{step}"
    return "['" + step.replace("\\", "\\\\").replace("'", "\\'") + "']"
