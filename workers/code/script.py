"""Scripts: a Python text that reads one JSON document and writes one object, or a list of them.

stdin holds `envelope` (`header.context`, `header.hop`, `target`, `trace_id`, `ttl` and the ids that
are set), `body` and `params`. What it writes has the slots of a body and, if it likes, a `header`,
which becomes the hop (meclaw, code cell).
"""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, Self

from pydantic import JsonValue

from colony.body import Body
from colony.envelope import Emission, Envelope
from colony.errors import BodyError
from colony.host import Host
from workers.code import zygote
from workers.code.outcome import BROKEN, Failure, Outcome, timed_out
from workers.code.redaction import without_secrets
from workers.code.transcript import MAX_BYTES, transcript

_OPTIONAL = ("reply_to", "parent_message_id", "correlation_id")


class ScriptProgram:
    """A script of which each run is a fresh process, killed with all it started at the timeout."""

    def __init__(
        self,
        script: zygote.Script,
        params: Mapping[str, JsonValue],
        *,
        timeout_ms: int,
        shared: zygote.Zygote,
    ) -> None:
        self._script = script
        self._params = without_secrets(dict(params))
        self._timeout_ms = timeout_ms
        self._zygote = shared

    @classmethod
    async def start(
        cls, script: zygote.Script, params: Mapping[str, JsonValue], *, timeout_ms: int
    ) -> Self:
        """The script, ready to be run."""
        return cls(script, params, timeout_ms=timeout_ms, shared=await zygote.borrow())

    async def run(self, envelope: Envelope, host: Host) -> Outcome:
        """What the script writes for `envelope`."""
        try:
            document = stdin_document(envelope, self._params)
        except ValueError as error:
            return Failure("invalid_input", f"the envelope cannot be given to the script: {error}")
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                finished = await self._zygote.run(self._script, document)
        except TimeoutError:
            return timed_out(self._timeout_ms, "it was killed")
        except OSError as error:
            return Failure("io_error", f"the script could not be run: {error}")
        if finished.exit_code != 0:
            return Failure(BROKEN, transcript(finished), {"exit_code": finished.exit_code})
        if finished.stderr:
            told = finished.stderr[:MAX_BYTES].decode(errors="replace")
            host.log.warning("script_wrote_to_stderr", stderr=told)
        added: dict[str, JsonValue] = {
            "exit_code": 0,
            "duration_ms": round((time.perf_counter() - begun) * 1000),
            "had_stderr": bool(finished.stderr),
            "confinement": finished.confinement,
        }
        return read_stdout(finished.stdout, added)

    def close(self) -> None:
        """The processes of this script are gone, if nobody shares them."""
        zygote.give_back(self._zygote)


def stdin_document(envelope: Envelope, params: JsonValue) -> bytes:
    """What a script reads on stdin; raises ValueError for text that has no bytes."""
    ids = {name: getattr(envelope, name) for name in _OPTIONAL}
    document = {
        "envelope": {
            "header": {"context": envelope.context, "hop": envelope.hop},
            "target": envelope.target,
            "trace_id": envelope.trace_id,
            "ttl": envelope.ttl,
            **{name: value for name, value in ids.items() if value is not None},
        },
        "body": envelope.body.to_json(),
        "params": params,
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


def read_stdout(stdout: bytes, added: dict[str, JsonValue]) -> Outcome:
    """The emissions that a script wrote, `added` put into the hop of each."""
    try:
        written = json.loads(stdout, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return Failure("invalid_json", f"stdout is not JSON: {error}")
    found: list[Emission] = []
    for element in written if isinstance(written, list) else [written]:
        if not isinstance(element, dict):
            kind = type(element).__name__
            return Failure("invalid_json", f"stdout has {kind} where an object is needed")
        header = element.pop("header", {})
        if not isinstance(header, dict):
            return Failure("invalid_json", "header is not an object")
        try:
            found.append(Emission(hop={**header, **added}, body=Body.parse(element)))
        except BodyError as error:
            return Failure(error.code, str(error))
    return found


def locate(files: Mapping[str, str], path: str, directory: Path) -> zygote.Script | None:
    """The script that lies at `path` among the files of a cell, or None where there is none."""
    name = Path(path).as_posix()
    if name not in files:
        return None
    return zygote.Script(files[name], directory, directory / name)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
