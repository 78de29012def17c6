"""The cell type `mcp`: the tools of one server, each called under a name of its own."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, SecretStr, StringConstraints, model_validator

from colony.cell import Cell
from colony.envelope import Emission, Envelope
from colony.errors import (
    ConfigError,
    NotConnected,
    ServerUnavailable,
    ToolError,
    ToolTimeout,
    UnknownTool,
)
from colony.host import Host
from colony.results import KEPT_BYTES, head_of
from colony.topology.findings import EXTRA_MISSING, Flaw
from colony.topology.model import CellSpec, ToolDeclaration
from workers.documents import Folder
from workers.mcp_tools.naming import LONGEST_PREFIX, declarations, is_offered, prefix_of
from workers.named_folders import folder
from workers.tool_call import Answer, Arguments, KeepBytes, answer

if TYPE_CHECKING:
    from mcp_types import Tool

    from workers.mcp_tools.session import Server, Session

# How long a worker waits for the server when the cell starts; it is hosted either way.
START_S: Final = 5.0
RETRY_S: Final = 1.0

EXCERPT: Final = 500
MISSING: Final = "the extra is not installed here: pip install -e '.[mcp]' in a checkout"

Prefix = Annotated[str, StringConstraints(pattern=rf"^[A-Za-z0-9_-]{{0,{LONGEST_PREFIX}}}$")]


class AnyArguments(Arguments):
    """Whatever fits the schema that the server declares, which the worker has held it against."""

    model_config = ConfigDict(extra="allow")


class Mcp(Cell):
    """Call the tools of a server that speaks the Model Context Protocol.

    The server is a program that the worker starts, the `command`, or one that is there already, at
    `url`. What tools it has is learned from it and announced. Where it is not reached, the cell is
    hosted all the same, calls are answered with an error, and it is tried for again and again.
    """

    class Params(Cell.Params):
        """Exactly one of `command` and `url` is given; an empty one counts as absent."""

        command: tuple[str, ...] = ()
        env: dict[str, SecretStr] = Field(default_factory=dict)
        directory: str = ""
        url: str = ""
        headers: dict[str, SecretStr] = Field(default_factory=dict)
        token: SecretStr = SecretStr("")
        name: Prefix = ""
        allow: tuple[str, ...] | None = None
        deny: tuple[str, ...] = ()
        read_only_hints: Literal["ignore", "trust"] = "ignore"
        external_timeout_ms: int = Field(default=60_000, ge=1)
        max_concurrency: int = Field(default=8, ge=1)
        max_bytes: int = Field(default=262_144, ge=1)
        keep_bytes: KeepBytes = KEPT_BYTES

        @model_validator(mode="after")
        def _has_one_server(self) -> Self:
            if bool(self.command) == bool(self.url):
                raise ValueError("exactly one of command and url is needed")
            if self.url and not self.url.startswith(("http://", "https://")):
                raise ValueError("url is not one of http or https")
            if self.url and (self.env or self.directory):
                raise ValueError("env and directory belong to a command")
            if self.command and (self.headers or self.token.get_secret_value()):
                raise ValueError("headers and token belong to a url")
            if "__" in self.name:
                raise ValueError("name must not hold __, which ends it in the name of a tool")
            return self

    announces: ClassVar[bool] = True
    params: Params
    _session: "Session"
    _tools: Mapping[str, tuple[str, ToolDeclaration]]

    @classmethod
    def flaws(cls, spec: CellSpec) -> Iterator[Flaw]:
        """That the SDK is not installed, or an absolute `directory` is not there."""
        if not _installed():
            yield Flaw(EXTRA_MISSING, MISSING, ("cell", "type"), severity="warning")
        yield from folder(spec, "directory")

    async def start(self, host: Host) -> None:
        """The server is being reached, and waited for a moment.

        Raises ConfigError where the SDK is not installed or a folder is missing.
        """
        if not _installed():
            raise ConfigError(detail=MISSING)
        from workers.mcp_tools.session import Session

        self._tools = {}
        self._session = Session(
            self._server(host.directory),
            partial(self._learn, host),
            host.log,
            secrets=self._secrets,
        )
        await self._session.open(START_S)

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """Make the call of the tool that `hop.tool_name` names."""
        name = str(envelope.hop.get("tool_name", ""))
        return await answer(
            envelope,
            partial(self._in_time, name, envelope, host),
            host=host,
            operation=name or "mcp",
            arguments=AnyArguments,
            timeout_ms=None,
        )

    async def stop(self) -> None:
        """Close the connection; a server that was started is ended, and whatever it started."""
        await self._session.close()

    async def probe(self) -> str:
        """Wait for the server, and count its tools."""
        await self._session.ready()
        return f"connected, with {len(self._tools)} tools"

    async def _in_time(
        self, name: str, envelope: Envelope, host: Host, given: AnyArguments
    ) -> Answer:
        limit_ms, reached = self.params.external_timeout_ms, False
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._session.ready()
                reached = True
                return await self._call(name, envelope, host, given.model_extra or {})
        except TimeoutError:
            if not reached:
                raise NotConnected(detail=f"no connection within {limit_ms} ms") from None
            raise ToolTimeout(
                operation=name,
                timeout_ms=limit_ms,
                hop={"mcp_tool": self._own_name(name)},
                output="The server was told to cancel it; it may have been carried out or not.",
            ) from None

    async def _call(
        self, name: str, envelope: Envelope, host: Host, given: Mapping[str, JsonValue]
    ) -> Answer:
        from workers.mcp_tools.reading import text_of

        if name not in self._tools:
            raise UnknownTool(name=name)
        tool, limit = self._own_name(name), self.params.max_bytes
        [call] = envelope.body.each("tool_call")

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            said = (message or "")[:EXCERPT]
            facts: dict[str, JsonValue] = {"progress": progress, "total": total, "message": said}
            await host.tell("tool.progress", tool_name=name, tool_call_id=call.id, **facts)

        result = await self._session.call(tool, given, tell)
        text = text_of(result)
        if result.is_error:
            size = len(text.encode(errors="replace"))
            raise ToolError(detail=head_of(text, limit), hop={"mcp_tool": tool, "bytes": size})
        return Answer.capped(
            text, max_bytes=limit, keep_bytes=self.params.keep_bytes, mcp_tool=tool
        )

    @property
    def _secrets(self) -> list[str]:
        params = self.params
        given = [*params.env.values(), *params.headers.values(), params.token]
        return [value.get_secret_value() for value in given]

    def _own_name(self, name: str) -> str:
        """What the server calls the tool that is declared as `name`."""
        return self._tools[name][0] if name in self._tools else name

    async def _learn(self, host: Host, tools: Sequence["Tool"]) -> None:
        """Take up what the server offers, and announce it as soon as Redis answers."""
        params = self.params
        offered = [t for t in tools if is_offered(t.name, allow=params.allow, deny=params.deny)]
        self._tools = declarations(
            offered,
            params.name or prefix_of(host.spec.path),
            trust_hints=params.read_only_hints == "trust",
            log=host.log,
        )
        while True:
            try:
                return await host.announce([declared for _, declared in self._tools.values()])
            except ServerUnavailable:
                await asyncio.sleep(RETRY_S)

    def _server(self, directory: Path | None) -> "Server":
        from workers.mcp_tools.child import Child
        from workers.mcp_tools.endpoint import Endpoint

        params = self.params
        if params.command:
            cwd = Folder.at(params.directory, directory).root if params.directory else directory
            env = {name: value.get_secret_value() for name, value in params.env.items()}
            return Child(params.command, env, cwd)
        headers = {name: value.get_secret_value() for name, value in params.headers.items()}
        if token := params.token.get_secret_value():
            headers["Authorization"] = f"Bearer {token}"
        # Longer than any call, or a server that works in silence would be cut off.
        return Endpoint(params.url, headers, silence_s=params.external_timeout_ms / 1000 + 5)


def _installed() -> bool:
    return find_spec("mcp") is not None
