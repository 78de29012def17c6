"""Loading: how a directory tree becomes a topology, or the list of everything wrong with it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from colony.errors import TopologyError, TopologyTooLarge, VariableUnset
from colony.paths import ROOT, resolve
from colony.topology.draft import Draft, DraftCell
from colony.topology.embedding import oversized
from colony.topology.findings import Finding, Findings, Place
from colony.topology.lint import lint
from colony.topology.model import CellSettings, CellSpec, TopologySpec
from colony.topology.modules import check_shadowing, importable
from colony.topology.reader import Reader
from colony.topology.substitution import variables
from colony.topology.templates import CONFIG
from colony.topology.validate import compile_edges, validate
from colony.trees import shipped


@dataclass(frozen=True)
class Loaded:
    """What became of a tree: its topology, absent where a finding is an error.

    `refusal` is the error that keeps the tree from being published; a tree without a finding that
    is an error may still need a variable for an edge, a contract or a setting.
    """

    spec: TopologySpec | None
    findings: tuple[Finding, ...]
    refusal: TopologyError | None = None

    def publishable(self) -> TopologySpec:
        """The topology, fit to be published.

        Raises TopologyTooLarge where only its files are too large, TopologyError with every finding
        where it has other errors, VariableUnset where what is published needs a variable.
        """
        if self.refusal is not None or self.spec is None:
            raise self.refusal or TopologyError(detail="the tree could not be read")
        return self.spec


def load(
    root: Path,
    *,
    environment: Mapping[str, str],
    sinks: Sequence[str] = (),
    templates: Sequence[Path] = (shipped("templates"),),
) -> Loaded:
    """Read the tree at `root` and judge it; every finding is made at once.

    `sinks` are paths that edges name and the tree does not define: a sink is put there. `templates`
    are folders of templates beside those of the tree itself.
    """
    findings = Findings()
    reader = Reader(
        root=root,
        variables=_variables(root, environment, findings),
        templates=(root / "templates", *templates),
        findings=findings,
    )
    check_shadowing(root, findings)
    with importable(root):
        draft = reader.read()
    if draft is None:
        return Loaded(None, findings.all(), _refusal(findings.all(), [], reader.unset))
    draft = compile_edges(_with_sinks(draft, sinks, findings), findings)
    validate(draft, findings)
    lint(draft, findings)
    spec = draft.spec()
    too_large = list(oversized(spec))
    for path, error in too_large:
        cell = draft.cells.get(path)
        findings.error(cell.place if cell else Place(CONFIG), error.code, f"{error}.")
    refusal = _refusal(findings.all(), [error for _, error in too_large], reader.unset)
    failed = any(finding.severity == "error" for finding in findings.all())
    return Loaded(None if failed else spec, findings.all(), refusal)


def _variables(root: Path, environment: Mapping[str, str], findings: Findings) -> Mapping[str, str]:
    try:
        return variables(root, environment)
    except TopologyError as error:
        findings.error(Place(".env"), "unreadable_file", f"{error}.")
        return environment


def _with_sinks(draft: Draft, sinks: Sequence[str], findings: Findings) -> Draft:
    """The draft with a sink at each of `sinks`."""
    cells = dict(draft.cells)
    for written in sinks:
        path = resolve(written, ROOT)
        place = Place(f"--sink {written}")
        if draft.defines(path):
            findings.error(place, "sink_defined", f"The tree defines {path} itself.")
        else:
            cells[path] = DraftCell(CellSpec(path=path, cell=CellSettings(type="sink")), place)
    return replace(draft, cells=cells)


def _refusal(
    found: Sequence[Finding], too_large: Sequence[TopologyTooLarge], unset: Iterable[str]
) -> TopologyError | None:
    errors = [finding for finding in found if finding.severity == "error"]
    if errors and len(errors) == len(too_large):
        return too_large[0]
    if errors:
        return TopologyError(detail="; ".join(str(finding) for finding in errors))
    names = ", ".join(sorted(unset))
    return VariableUnset(names=names) if names else None
