"""The child: an MCP server as a process of our own, spoken to over its standard input and output.

It has a process group of its own, of which nothing is left when the connection ends.
"""

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from workers.mcp_tools.loss import MAX_MESSAGE_BYTES, Loss

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

# What a server gets of the worker's environment without being handed it.
INHERITED: Final = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER")

# A server that is told to end by the end of its input, then by a signal, then by force.
ENDS_S: Final = 2.0
TERMINATES_S: Final = 1.0

_LOOK_S: Final = 0.02
_LINGERS_S: Final = 0.2
_EXCERPT: Final = 500

Incoming = SessionMessage | Exception


@dataclass(frozen=True)
class Child:
    """How the server is started."""

    command: Sequence[str]
    environment: Mapping[str, str]
    directory: Path | None

    @asynccontextmanager
    async def connect(self, loss: Loss) -> AsyncIterator["TransportStreams"]:
        """A process that runs, and the messages from and to it. `loss` tells when it has ended.

        Raises OSError where it cannot be started.
        """
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**inherited, **self.environment},
            cwd=self.directory,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )
        heard, incoming = anyio.create_memory_object_stream[Incoming](0)
        silent = asyncio.Event()
        outgoing, said = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_listen, process, heard, loss)
                group.start_soon(_speak, process, said, heard, loss)
                group.start_soon(_overhear, process, loss, silent)
                group.start_soon(_watch, process, loss)
                try:
                    yield incoming, outgoing
                finally:
                    # However we leave, cancelled as well, nothing of the server stays.
                    with anyio.CancelScope(shield=True):
                        await _end(process)
                        with anyio.move_on_after(_LINGERS_S):
                            await silent.wait()
                    group.cancel_scope.cancel()
        finally:
            _kill(process.pid, signal.SIGKILL)
            for stream in (heard, incoming, outgoing, said):
                stream.close()
            # Who inherited the pipes and left the group would keep them open.
            transport = getattr(process, "_transport", None)
            if transport is not None:
                transport.close()


async def _listen(
    process: asyncio.subprocess.Process, heard: MemoryObjectSendStream[Incoming], loss: Loss
) -> None:
    assert process.stdout is not None
    async with heard:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            try:
                while line := await process.stdout.readline():
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        # Something that a program prints which should not: no reason to give it up.
                        loss.overheard(line)
                        continue
                    await heard.send(SessionMessage(message))
            except ValueError:
                loss.tell(f"the server sent a message of more than {MAX_MESSAGE_BYTES} bytes")
            # It usually has ended as well, and said why.
            await _gone(process, _LINGERS_S)
            loss.tell(_how_it_ended(process))


async def _watch(process: asyncio.subprocess.Process, loss: Loss) -> None:
    # Its output need not end with it: a child that it left behind holds that open.
    await _gone(process, math.inf)
    loss.tell(_how_it_ended(process))


def _how_it_ended(process: asyncio.subprocess.Process) -> str:
    status = process.returncode
    if status is None:
        return "the server closed its pipes"
    if status < 0:
        return f"signal {-status} ended the server"
    return f"the server ended with {status}"


async def _speak(
    process: asyncio.subprocess.Process,
    said: MemoryObjectReceiveStream[SessionMessage],
    heard: MemoryObjectSendStream[Incoming],
    loss: Loss,
) -> None:
    assert process.stdin is not None
    try:
        async with said:
            async for message in said:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
    except OSError:
        # It reads no more, most likely because it has ended: that is the reason, not what the SDK
        # makes of an answer that does not come.
        await _gone(process, _LINGERS_S)
        loss.tell(_how_it_ended(process))
        await heard.aclose()


async def _overhear(process: asyncio.subprocess.Process, loss: Loss, silent: asyncio.Event) -> None:
    assert process.stderr is not None
    while data := await process.stderr.read(1 << 16):
        loss.overheard(data[-_EXCERPT:])
    silent.set()


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    if not await _gone(process, ENDS_S):
        _kill(process.pid, signal.SIGTERM)
        await _gone(process, TERMINATES_S)
    # Its children as well, where it left some behind.
    _kill(process.pid, signal.SIGKILL)
    await _gone(process, TERMINATES_S)


async def _gone(process: asyncio.subprocess.Process, patience_s: float) -> bool:
    # `wait` also waits for the pipes, which a child of the server may hold open for ever.
    deadline = asyncio.get_running_loop().time() + patience_s
    while process.returncode is None:
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


def _kill(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
