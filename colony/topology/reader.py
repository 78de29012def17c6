"""Reader: how the files of a tree become a draft."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, JsonValue

from colony.errors import PathError, SubstitutionError
from colony.paths import ROOT, check_segment, resolve
from colony.topology import substitution
from colony.topology.cell_params import begins_traces, check_flaws, check_params, check_type
from colony.topology.documents import check, read_object
from colony.topology.draft import Draft, DraftCell, DraftEdge
from colony.topology.embedding import embedded_files
from colony.topology.findings import Findings, Place
from colony.topology.handed import Acceptance
from colony.topology.model import (
    CellSettings,
    CellSpec,
    ColonySettings,
    Contract,
    EdgeSpec,
    HiveParams,
)
from colony.topology.substitution import Substituted
from colony.topology.templates import CONFIG, OWN_PATH, Folder, find_template

HIVE = "hive"

_SLOTS = ("cell", "params", "contract", "description")
_Model = TypeVar("_Model", bound=BaseModel)
_Document = dict[str, JsonValue]


@dataclass
class Reader:
    """One reading of the tree at `root`: what it holds, and what was wrong on the way.

    `templates` are the folders templates are looked for in, in that order. `unset` gathers the
    variables without a value in what is published as it is: settings, edges, contracts.
    """

    root: Path
    variables: Mapping[str, str]
    templates: Sequence[Path]
    findings: Findings
    unset: set[str] = field(default_factory=set)
    hives: dict[str, Place] = field(default_factory=dict)
    agents: list[str] = field(default_factory=list)
    cells: dict[str, DraftCell] = field(default_factory=dict)
    edges: list[DraftEdge] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)

    def read(self) -> Draft | None:
        """The tree as it was read, or None where there is no root hive."""
        settings = self._settings()
        directory = self._root_hive()
        if directory is None:
            return None
        self._visit(Folder((directory,)), ROOT)
        return Draft(
            settings=settings,
            hives=self.hives,
            agents=tuple(self.agents),
            cells=self.cells,
            edges=tuple(self.edges),
            broken=frozenset(self.broken),
            doubtful=frozenset(self.doubtful | self.broken),
        )

    def _settings(self) -> ColonySettings:
        file = self.root / "colony.json"
        if not file.exists():
            return ColonySettings()
        place = self._place(file)
        written = read_object(file, place, self.findings)
        if written is None:
            return ColonySettings()
        # A number may come out of a variable, hence as text: not strict.
        found = self._published(ColonySettings, written, place, strict=False)
        return found or ColonySettings()

    def _root_hive(self) -> Path | None:
        place = Place(CONFIG)
        if not self.root.is_dir():
            self.findings.error(place, "root_missing", f"{self.root} is not a directory.")
            return None
        found = [
            folder.layers[0]
            for folder in Folder((self.root,)).folders().values()
            if folder.file(CONFIG)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(directory.name for directory in found)
            sentence = f"A tree has one root hive; here are several: {names}."
            self.findings.error(place, "root_ambiguous", sentence)
        else:
            sentence = "There is no root hive: a directory main/ with a config.json."
            self.findings.error(place, "root_missing", sentence)
        return None

    def _visit(self, folder: Folder, path: str) -> None:
        file = folder.file(CONFIG)
        assert file is not None
        place = self._place(file)
        document = self._document(file, folder, place)
        settings = None if document is None else self._cell_settings(document, place)
        if document is None or settings is None:
            self.broken.add(path)
        elif settings.type == HIVE:
            self._check_accepts_nothing(document, place)
            folder = self._hive(folder, path, document, place)
        else:
            self._cell(folder, path, document, settings, place)
        if path == ROOT and path in self.cells:
            self.findings.error(place.at("cell", "type"), "root_missing", "The root is a hive.")
        self._visit_below(folder, path)

    def _visit_below(self, folder: Folder, path: str) -> None:
        for name, below in folder.folders().items():
            place = self._place(below.layers[0])
            if below.file(CONFIG) is None:
                if below.holds_cells():
                    sentence = "The directory has no config.json, so the cells in it are left out."
                    self.findings.warning(place, "directory_unregistered", sentence)
                continue
            try:
                self._visit(below, resolve(check_segment(name), path))
            except PathError as error:
                self.findings.error(place, error.code, f"{error}.")

    def _document(self, file: Path, folder: Folder, place: Place) -> _Document | None:
        written = read_object(file, place, self.findings)
        if written is None:
            return None
        laid = substitution.lay_in(written, folder.handed)
        for steps, name in laid.unset:
            sentence = f"No hive hands over a value for ${{with.{name}}}."
            self.findings.error(place.at(*steps), "with_missing", sentence)
        document = laid.value
        assert isinstance(document, dict)
        for key in document.keys() - set(_SLOTS):
            sentence = f"There is no key {key!r} here; there are {', '.join(_SLOTS)}."
            self.findings.error(place.at(key), "unknown_key", sentence)
        return document

    def _cell_settings(self, document: _Document, place: Place) -> CellSettings | None:
        if "cell" not in document:
            self.findings.error(place.at("cell"), "missing_key", "The key 'cell' is missing.")
            return None
        return self._published(CellSettings, document["cell"], place.at("cell"))

    def _cell(
        self,
        folder: Folder,
        path: str,
        document: _Document,
        settings: CellSettings,
        place: Place,
    ) -> None:
        params = document.get("params", {})
        if not isinstance(params, dict):
            sentence = "The params of a cell are a JSON object."
            self.findings.error(place.at("params"), "invalid_value", sentence)
            params = {}
        resolved = substitution.resolve(params, self.variables)
        self._report(resolved, place.at("params"), "The worker that hosts the cell needs it.")
        kind = check_type(settings.type, place, self.findings)
        fit = kind is not None and check_params(kind, resolved, place, self.findings)
        places = partial(self._place_in, folder)
        files = embedded_files(folder, params, places, self.findings)
        spec = CellSpec(
            path=path,
            cell=settings,
            params=params,
            contract=self._contract(document, path, place.at("contract")),
            description=document.get("description"),
            files=files,
        )
        self.cells[path] = DraftCell(
            spec,
            place,
            begins_traces=kind is not None and begins_traces(kind),
            emits=frozenset() if kind is None else kind.emits,
        )
        if kind is not None and fit:
            filled = spec.model_copy(update={"params": resolved.value})
            check_flaws(kind, filled, places, self.findings)

    def _place_in(self, folder: Folder, name: str) -> Place:
        file = folder.file(name)
        assert file is not None, "the file of a cell lies in one of its folders"
        return self._place(file)

    def _contract(self, document: _Document, path: str, place: Place) -> Contract | None:
        if "contract" not in document:
            return None
        contract = self._published(Contract, document["contract"], place)
        if contract is None:
            self.doubtful.add(path)
        return contract

    def _hive(self, folder: Folder, path: str, document: _Document, place: Place) -> Folder:
        """Note the hive and its edges; the directory with the files of its template laid in."""
        self.hives.setdefault(path, place)
        written = document.get("params", {})
        params = check(HiveParams, written, place.at("params"), self.findings)
        if params is not None and params.agent and path not in self.agents:
            self.agents.append(path)
        if params is not None and params.template is not None:
            folder = self._lay_template(folder, path, params, place)
        elif params is not None and params.handed:
            sentence = "Values are handed over, and there is no template to take them."
            self.findings.error(place.at("params", "with"), "template_missing", sentence)
        for at, edge in enumerate(_edges_of(written)):
            self._edge(edge, path, place.at("params", "graph", "edges", at))
        return folder

    def _lay_template(self, folder: Folder, path: str, params: HiveParams, place: Place) -> Folder:
        name = params.template or ""
        directory = find_template(name, self.templates)
        where = place.at("params", "template")
        if directory is None:
            sentence = f"There is no template {name!r} in templates/ or among those that ship."
            self.findings.error(where, "template_missing", sentence)
            return folder
        if name in folder.laid:
            sentence = f"The template {name!r} contains itself."
            self.findings.error(where, "template_cycle", sentence)
            return folder
        asked = folder.lay(name, directory, {}).parameters() - {OWN_PATH}
        handing = place.at("params", "with")
        handed: Mapping[str, JsonValue] = params.handed
        declared = self._acceptance(name, directory / CONFIG, asked)
        if declared is not None:
            handed = declared.fill(handed, self.variables, handing, self.findings)
        else:
            self._check_asked(handed, asked, name, handing)
        laid = folder.lay(name, directory, {OWN_PATH: path, **handed})
        return self._template_hive(laid, path, directory / CONFIG)

    def _acceptance(self, name: str, file: Path, asked: frozenset[str]) -> Acceptance | None:
        """What a template says it accepts; None where it says nothing."""
        place = self._place(file).at("params", "accepts")
        document = read_object(file, self._place(file), self.findings)
        params = document.get("params") if document else None
        written = params.get("accepts") if isinstance(params, dict) else None
        if not isinstance(written, dict):
            return None
        schemas = {key: schema for key, schema in written.items() if isinstance(schema, dict)}
        self._check_asked(schemas, asked, name, place)
        return Acceptance.read(name, schemas, place, self.findings)

    def _check_asked(
        self, names: Iterable[str], asked: frozenset[str], template: str, place: Place
    ) -> None:
        for name in sorted({*names} - asked):
            sentence = f"Nothing in the template {template!r} asks for ${{with.{name}}}."
            self.findings.error(place.at(name), "unknown_key", sentence)

    def _check_accepts_nothing(self, document: _Document, place: Place) -> None:
        params = document.get("params")
        if isinstance(params, dict) and "accepts" in params:
            sentence = "Only the hive of a template says what it accepts."
            self.findings.error(place.at("params", "accepts"), "unknown_key", sentence)

    def _template_hive(self, folder: Folder, path: str, file: Path) -> Folder:
        """Note the edges the template brings; its own hive may build on a further template."""
        place = self._place(file)
        document = self._document(file, folder, place)
        settings = None if document is None else self._cell_settings(document, place)
        if document is None or settings is None:
            return folder
        if settings.type != HIVE:
            self.findings.error(place.at("cell", "type"), "template_missing", "It is no hive.")
            return folder
        return self._hive(folder, path, document, place)

    def _edge(self, written: JsonValue, base: str, place: Place) -> None:
        spec = self._published(EdgeSpec, written, place)
        if spec is not None:
            ends = {"source": resolve(spec.source, base), "target": resolve(spec.target, base)}
            self.edges.append(DraftEdge(spec.model_copy(update=ends), place))
        elif isinstance(written, dict):
            named = (written.get(key) for key in ("from", "to"))
            self.doubtful.update(resolve(end, base) for end in named if isinstance(end, str))

    def _published(
        self,
        model: type[_Model],
        written: JsonValue,
        place: Place,
        *,
        strict: bool | None = None,
    ) -> _Model | None:
        """`written` as a `model`, its variables replaced for good."""
        resolved = substitution.resolve(written, self.variables)
        self._report(resolved, place, "The tree cannot be published without it.")
        self.unset.update(name for _, name in resolved.unset)
        return check(
            model,
            resolved.value,
            place,
            self.findings,
            excused=resolved.failed,
            strict=strict,
        )

    def _report(self, resolved: Substituted, place: Place, consequence: str) -> None:
        for steps, name in resolved.unset:
            sentence = f"The variable {name} is not set. {consequence}"
            self.findings.warning(place.at(*steps), "variable_unset", sentence)
        for steps, reference in resolved.unsupported:
            error = SubstitutionError(reference=reference)
            self.findings.error(place.at(*steps), error.code, f"{error}.")

    def _place(self, file: Path) -> Place:
        inside = file.is_relative_to(self.root)
        return Place((file.relative_to(self.root) if inside else file).as_posix())


def _edges_of(params: JsonValue) -> list[JsonValue]:
    graph = params.get("graph") if isinstance(params, dict) else None
    edges = graph.get("edges") if isinstance(graph, dict) else None
    return edges if isinstance(edges, list) else []
