"""Real MCP servers: those of the registries, as they are installed, and a small one of our own."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.testing.claims import block_until
from colony.testing.host import RecordingHost
from workers.mcp_tools import Mcp

PATIENCE_S = 60.0
SCRIPTS = Path(sys.executable).parent
TIME = (str(SCRIPTS / "mcp-server-time"),)
GIT = (str(SCRIPTS / "mcp-server-git"),)

# It gains a tool when it is asked to, answers with what does not fit, and is slow in silence.
GROWING = """
import asyncio
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("growing")
def second() -> str:
    return "second"

@server.tool()
async def grow(ctx: Context) -> str:
    server.add_tool(second)
    await ctx.notify_tools_changed()
    return "grown"

@server.tool()
def large(size: int) -> str:
    return "x" * size

@server.tool()
async def slow(path: str) -> str:
    open(path, "w").close()
    await asyncio.sleep(1000)
    return "late"

@server.tool(name="a.tool")
def odd() -> str:
    return "odd"

server.run("stdio")
"""


def children() -> set[int]:
    """The processes that this one started and that run."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def group(leader: int) -> set[int]:
    """The processes of a group that run."""
    found: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ProcessLookupError):
            state, _, number = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(number) == leader and state not in "ZX":
                found.add(int(process.name))
    return found


@dataclass
class Running:
    """A cell that runs, and what it asked of its host."""

    cell: Mcp
    host: RecordingHost
    before: set[int]
    told: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in self.host.announced}

    @property
    def events(self) -> list[object]:
        """What became of the connection, as it was logged."""
        told = [line["event"] for line in self.host.logged]
        return [event for event in told if event != "mcp_tool_left_out"]

    async def call(self, name: str, arguments: Any = None, **hop: Any) -> Emission:
        body = Body.of(Entry.call("call-1", arguments or {}))
        envelope = Envelope(
            id="e", trace_id="t", target="/cell", ttl=9, hop={"tool_name": name, **hop}, body=body
        )
        host = self.host.next_envelope()
        host.told = self.told
        [emission] = await self.cell.handle(envelope, host)
        [entry] = emission.body.entries
        assert (entry.type, entry.id) == ("tool_result", "call-1")
        assert "duration_ms" in emission.hop
        return emission

    def process(self) -> int:
        """The server that the cell started, the leader of its group."""
        (leader,) = children() - self.before
        return leader


def text(emission: Emission) -> str:
    return emission.body.entries[0].text or ""


@asynccontextmanager
async def running(**params: Any) -> AsyncIterator[Running]:
    host = RecordingHost.of("mcp", json.loads(json.dumps(params)))
    cell = Mcp(Mcp.Params.model_validate(host.spec.params))
    before = children()
    await cell.start(host)
    try:
        yield Running(cell, host, before)
    finally:
        await cell.stop()


class HttpServer:
    """A server that a test starts, kills and starts again on one port."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, "PORT": str(self.port), **(environment or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        block_until(self._listens, "the server listens")

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False
