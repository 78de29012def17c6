"""The topology: cells, hives and edges as they are published, and as a router reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, model_validator

from colony.body import Frozen
from colony.envelope import DEFAULT_TTL, digest
from colony.paths import parent, resolve
from colony.topology.expressions import Expression

QUIET = "/colony/quiet"

FieldType = Literal["string", "number", "boolean", "object", "array", "blob_uuid", "int"]
Isolation = Literal["inline", "process", "job"]
PositiveInt = Annotated[int, Field(ge=1)]
# Bounded by ten years, so that no server ever refuses it as an expiry.
Retention = Annotated[int, Field(ge=1, le=315_360_000_000)]


class ColonySettings(Frozen):
    """`colony.json`: settings that belong to the tree. Times in milliseconds, sizes in bytes."""

    schema_version: Literal[1] = 1
    message_default_ttl: int = Field(default=DEFAULT_TTL, ge=1)
    ttl_notice: bool = False
    message_timeout_default_ms: PositiveInt = 60_000
    blob_inline_max_bytes: PositiveInt = 65_536
    blob_max_recursion_depth: PositiveInt = 64
    max_deliveries: PositiveInt = 5
    quiet_revivals: int = Field(default=3, ge=0)
    unhosted_after_ms: PositiveInt = 60_000
    ingress_backlog_max: PositiveInt = 50_000
    trace_bodies: Literal["none", "excerpt", "full"] = "excerpt"
    trace_retention_ms: Retention = 86_400_000
    dead_letter_retention_ms: Retention = 2_592_000_000
    idempotency_retention_ms: Retention = 86_400_000
    session_retention_ms: Retention = 604_800_000
    durability: Literal["server", "replica"] = "server"
    # Read for the sake of trees written for meclaw; nothing here depends on them.
    mailbox_default_capacity: PositiveInt = 1000
    idle_timeout_default_ms: PositiveInt = 60_000
    restart_max_retries: int = 5
    strict_validation: bool = True
    log_default_level: str = "info"
    watchdog_threshold: PositiveInt = 5
    watchdog_period_ms: PositiveInt = 100
    watchdog_on_trip: Literal["exit", "log-only"] = "exit"


DEFAULTS: Final = ColonySettings()
"""The settings of a tree that says nothing."""


class CellSettings(Frozen):
    """The `cell` slot of a `config.json`. `message_timeout` is in milliseconds.

    `offers` names the cell that hands calls to tools, where no edge leads from here to it.
    """

    type: str
    id: str | None = None
    timeout: int = 0
    restart_limit: int = 5
    idle_timeout_ms: PositiveInt | None = None
    message_timeout: PositiveInt | None = None
    mailbox_size: PositiveInt | None = None
    isolation: Isolation | None = None
    offers: str | None = None
    provenance: JsonValue = None
    surface: JsonValue = None


class FieldSpec(Frozen):
    """What a contract says of one key."""

    type: FieldType
    values: tuple[JsonValue, ...] | None = None
    required: bool = True
    description: JsonValue = None


class Consumes(Frozen):
    """What a cell needs in an envelope before it is handled."""

    body: dict[str, FieldSpec] = Field(default_factory=dict)
    context: dict[str, FieldSpec] = Field(default_factory=dict)
    hop: dict[str, FieldSpec] = Field(default_factory=dict)
    topology: dict[str, JsonValue] = Field(default_factory=dict)


class Emits(Frozen):
    """What a cell promises of every emission."""

    body: dict[str, FieldSpec] = Field(default_factory=dict)
    hop: dict[str, FieldSpec] = Field(default_factory=dict)


class Ingress(Frozen):
    """The context keys an entry cell expects at birth."""

    context: tuple[Literal["turn_id", "session_id", "user_id", "chat_id", "locale"], ...] = ()


class ToolDeclaration(Frozen):
    """A cell as a tool a model may call. `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, JsonValue]
    read_only: bool = False
    timeout_ms: PositiveInt | None = None


class Contract(Frozen):
    """What a cell consumes, emits and declares; complete where it is present."""

    version: Annotated[str, Field(min_length=1)]
    settings: dict[str, JsonValue]
    consumes: Consumes
    emits: Emits = Emits()
    multi_send_capable: bool = False
    ingress: Ingress = Ingress()
    capabilities: tuple[str, ...] = ()
    write_surface: Literal["open", "internal"] | None = None
    transfer: JsonValue = None
    tool: ToolDeclaration | None = None


class ModifierSpec(Frozen):
    """What an edge changes on an envelope that takes it, as written; values are CEL.

    An envelope that takes an edge with `in_session_order` waits until its trace is the oldest of
    its session that has not ended.
    """

    set_context: dict[str, str] = Field(default_factory=dict)
    delete_context: tuple[str, ...] = ()
    set_hop: dict[str, str] = Field(default_factory=dict)
    delete_hop: tuple[str, ...] = ()
    restore_ttl: bool = False
    in_session_order: bool = False

    def canonical(self) -> dict[str, JsonValue]:
        """The modifier as a JSON object that is equal for equal modifiers."""
        return self.model_dump(exclude_defaults=True, mode="json")


class EdgeSpec(Frozen):
    """An edge as written in `params.graph.edges`: from, to, condition, modifier."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    condition: str | None = None
    modifier: ModifierSpec | None = None


class Graph(Frozen):
    """`params.graph` of a hive; each edge is held against EdgeSpec by itself."""

    edges: tuple[JsonValue, ...] = ()


class HiveParams(Frozen):
    """The `params` slot of a hive."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)

    graph: Graph = Graph()
    template: Annotated[str, Field(min_length=1)] | None = None
    handed: dict[str, JsonValue] = Field(default_factory=dict, alias="with")
    # Whether sessions are held with it: what comes to it begins a run.
    agent: bool = False
    # In a template: the JSON Schema of each value that it takes.
    accepts: dict[str, dict[str, JsonValue]] | None = None
    # Read for the sake of trees written for meclaw; nothing here depends on them.
    ports: JsonValue = None
    required_drains: JsonValue = None
    contract: JsonValue = None


class CellSpec(Frozen):
    """A cell at its path. `params` keep their `${NAME}` until a worker starts the cell.

    `files` are the files of the cell's directory that travel with the topology: scripts and seeds.
    """

    path: str
    cell: CellSettings
    params: dict[str, JsonValue] = Field(default_factory=dict)
    contract: Contract | None = None
    description: JsonValue = None
    files: dict[str, str] = Field(default_factory=dict)

    @property
    def offers(self) -> str | None:
        """The path of the cell whose tools it offers, where that is another one."""
        written = self.cell.offers
        return None if written is None else resolve(written, parent(self.path))


class TopologySpec(Frozen):
    """A whole tree, validated, as it is published: absolute paths, templates laid in."""

    settings: ColonySettings = ColonySettings()
    hives: tuple[str, ...] = ("/",)
    agents: tuple[str, ...] = ()
    cells: tuple[CellSpec, ...] = ()
    edges: tuple[EdgeSpec, ...] = ()

    def digest(self) -> str:
        """A digest that is equal for equal trees."""
        return digest(self.to_json())

    def to_json(self) -> dict[str, JsonValue]:
        """The tree as a JSON object that `model_validate_json` reads back."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    @model_validator(mode="after")
    def _paths_are_unique(self) -> Self:
        paths = [*self.hives, *(cell.path for cell in self.cells)]
        if len(set(paths)) < len(paths):
            raise ValueError("two nodes of the tree have the same path")
        return self


@dataclass(frozen=True)
class Modifier:
    """A modifier, compiled."""

    set_context: Mapping[str, Expression]
    delete_context: tuple[str, ...]
    set_hop: Mapping[str, Expression]
    delete_hop: tuple[str, ...]
    restore_ttl: bool
    in_session_order: bool


@dataclass(frozen=True)
class Edge:
    """An edge, compiled. Edges with the same `digest` are the same edge."""

    spec: EdgeSpec
    condition: Expression | None
    modifier: Modifier | None

    @classmethod
    def compile(cls, spec: EdgeSpec) -> Self:
        """The edge that `spec` describes; raises ExpressionError where an expression is broken."""
        condition = Expression.parse(spec.condition) if spec.condition is not None else None
        return cls(spec, condition, _compile_modifier(spec.modifier))

    @cached_property
    def digest(self) -> str:
        """Identity of the edge: from, to, condition text and canonical modifier."""
        # A modifier that changes nothing is none.
        modifier = (self.spec.modifier and self.spec.modifier.canonical()) or None
        return digest([self.spec.source, self.spec.target, self.spec.condition, modifier])


@dataclass(frozen=True)
class Topology:
    """Cells, hives and edges of one version, ready to be routed by."""

    spec: TopologySpec
    version: int
    digest: str
    cells: Mapping[str, CellSpec]
    hives: frozenset[str]
    edges: Mapping[str, tuple[Edge, ...]]

    @classmethod
    def compile(cls, spec: TopologySpec, version: int = 0) -> Self:
        """The topology that `spec` describes. Edges that are the same edge become one."""
        unique: dict[str, Edge] = {}
        for edge_spec in spec.edges:
            edge = Edge.compile(edge_spec)
            unique.setdefault(edge.digest, edge)
        edges: dict[str, tuple[Edge, ...]] = {}
        for edge in unique.values():
            edges[edge.spec.source] = (*edges.get(edge.spec.source, ()), edge)
        return cls(
            spec=spec,
            version=version,
            digest=spec.digest(),
            cells={cell.path: cell for cell in spec.cells},
            hives=frozenset(spec.hives),
            edges=edges,
        )

    @property
    def settings(self) -> ColonySettings:
        """The settings of the tree."""
        return self.spec.settings

    @cached_property
    def active(self) -> frozenset[str]:
        """The cells that some edge touches; the others take no envelopes."""
        touched = {path for spec in self.spec.edges for path in (spec.source, spec.target)}
        return frozenset(path for path in self.cells if path in touched)

    def edges_from(self, path: str) -> tuple[Edge, ...]:
        """The edges that leave `path`, in file order."""
        return self.edges.get(path, ())

    def message_timeout_ms(self, path: str) -> int:
        """How long the tree gives the cell at `path` for one envelope, in milliseconds.

        A worker that hosts it lifts this above what the cell gives its own work.
        """
        cell = self.cells.get(path)
        own = cell.cell.message_timeout if cell else None
        return own or self.settings.message_timeout_default_ms


def _compile_modifier(spec: ModifierSpec | None) -> Modifier | None:
    if spec is None:
        return None
    return Modifier(
        set_context={key: Expression.parse(text) for key, text in spec.set_context.items()},
        delete_context=spec.delete_context,
        set_hop={key: Expression.parse(text) for key, text in spec.set_hop.items()},
        delete_hop=spec.delete_hop,
        restore_ttl=spec.restore_ttl,
        in_session_order=spec.in_session_order,
    )


def parse_spec(data: bytes | str) -> TopologySpec:
    """The tree that was published as JSON `data`."""
    return TopologySpec.model_validate_json(data)
