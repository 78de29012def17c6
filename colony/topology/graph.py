"""Graphs: a topology as a picture, in Mermaid or in DOT."""

from collections.abc import Iterator, Mapping
from typing import Final

from colony.topology.model import EdgeSpec, ModifierSpec, TopologySpec

MAX_LABEL: Final = 60


def mermaid(spec: TopologySpec) -> str:
    """The topology as a Mermaid flowchart; hives are hexagons, edges carry their conditions."""
    names = _names(spec)
    lines = ["flowchart LR"]
    for path, kind in _nodes(spec):
        text = _mermaid_text(_title(path, kind))
        shape = f'{{{{"{text}"}}}}' if kind == "hive" else f'["{text}"]'
        lines.append(f"    {names[path]}{shape}")
    for edge in spec.edges:
        label = _mermaid_text(label_of(edge))
        arrow = f'-->|"{label}"|' if label else "-->"
        lines.append(f"    {names[edge.source]} {arrow} {names[edge.target]}")
    return "\n".join(lines) + "\n"


def dot(spec: TopologySpec) -> str:
    """The topology as a DOT digraph; hives are hexagons, edges carry their conditions."""
    lines = ["digraph colony {", "    rankdir=LR;", "    node [shape=box];"]
    for path, kind in _nodes(spec):
        shape = " shape=hexagon" if kind == "hive" else ""
        lines.append(f"    {_quoted(path)} [label={_quoted(_title(path, kind))}{shape}];")
    for edge in spec.edges:
        label = label_of(edge)
        attributes = f" [label={_quoted(label)}]" if label else ""
        lines.append(f"    {_quoted(edge.source)} -> {_quoted(edge.target)}{attributes};")
    return "\n".join([*lines, "}"]) + "\n"


def label_of(edge: EdgeSpec) -> str:
    """Condition and modifier of an edge in one short line, empty where it has neither."""
    parts = [] if edge.condition is None else [_short(edge.condition)]
    if edge.modifier is not None:
        parts.append(_short("; ".join(_changes(edge.modifier))))
    return " / ".join(part for part in parts if part)


def _changes(modifier: ModifierSpec) -> Iterator[str]:
    for key, text in modifier.set_context.items():
        yield f"{key} := {text}"
    for key, text in modifier.set_hop.items():
        yield f"hop.{key} := {text}"
    for key in modifier.delete_context:
        yield f"-{key}"
    for key in modifier.delete_hop:
        yield f"-hop.{key}"
    if modifier.restore_ttl:
        yield "restore ttl"
    if modifier.in_session_order:
        yield "in session order"


def _nodes(spec: TopologySpec) -> Iterator[tuple[str, str]]:
    """Every path an edge names or a cell lies at, with the type of what is there."""
    kinds = {cell.path: cell.cell.type for cell in spec.cells} | dict.fromkeys(spec.hives, "hive")
    ends = {end for edge in spec.edges for end in (edge.source, edge.target)}
    for path in sorted(ends | {cell.path for cell in spec.cells}):
        yield path, kinds.get(path, "?")


def _names(spec: TopologySpec) -> Mapping[str, str]:
    return {path: f"n{at}" for at, (path, _) in enumerate(_nodes(spec))}


def _title(path: str, kind: str) -> str:
    return path if kind == "hive" else f"{path} ({kind})"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_LABEL else line[: MAX_LABEL - 1] + "…"


def _mermaid_text(text: str) -> str:
    # Mermaid has no escapes inside quotes, only entities, which it marks with a hash.
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return text


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
