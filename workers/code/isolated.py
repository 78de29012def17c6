"""Isolated handlers: a handler in a forked process of its own, which can be killed.

The fork is a script of two lines in a zygote that has imported this module and the handler's. The
envelope reaches it as JSON on stdin; its emissions come back as JSON on what was stdout before the
handler, whose own prints go to stderr.
"""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import JsonValue, TypeAdapter, ValidationError

from colony.envelope import Emission, Envelope
from colony.host import Host
from workers.code import zygote
from workers.code.given import given
from workers.code.handler import emissions, load
from workers.code.outcome import BROKEN, Failure, Outcome, timed_out
from workers.code.transcript import transcript

Params = Mapping[str, JsonValue]

_EMISSIONS = TypeAdapter(list[Emission])


class IsolatedHandler:
    """A handler of which each call is a process, killed with all it started at the timeout."""

    def __init__(
        self, name: str, params: Params, *, timeout_ms: int, shared: zygote.Zygote
    ) -> None:
        text = f"from {__name__} import answer\nanswer({name!r})\n"
        self._script = zygote.Script(text, Path("/"))
        self._params = dict(params)
        self._timeout_ms = timeout_ms
        self._zygote = shared

    @classmethod
    async def start(cls, name: str, params: Params, *, timeout_ms: int) -> Self:
        """The handler, ready to be called."""
        shared = await zygote.borrow((__name__, name.partition(":")[0]))
        return cls(name, params, timeout_ms=timeout_ms, shared=shared)

    async def run(self, envelope: Envelope, host: Host) -> Outcome:
        """What the function gives for `envelope`."""
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                finished = await self._zygote.run(self._script, self._question(envelope))
        except TimeoutError:
            return timed_out(self._timeout_ms, "it was killed")
        except OSError as error:
            return Failure("io_error", f"the handler could not be run: {error}")
        if finished.exit_code != 0:
            return Failure(BROKEN, transcript(finished), {"exit_code": finished.exit_code})
        try:
            return _EMISSIONS.validate_json(finished.stdout)
        except ValidationError:
            # It exited, or processes that it forked answered as well.
            detail = f"the handler gave no answer, or several\n{transcript(finished)}"
            return Failure(BROKEN, detail, {"exit_code": 0})

    def close(self) -> None:
        """The processes of this handler are gone, if nobody shares them."""
        zygote.give_back(self._zygote)

    def _question(self, envelope: Envelope) -> bytes:
        return json.dumps({"envelope": _as_json(envelope), "params": self._params}).encode()


def answer(name: str) -> None:
    """Call the handler for the envelope on stdin and write its emissions to stdout."""
    question = json.load(sys.stdin)
    # What a handler or a program of it prints must not end up among its emissions.
    answers = os.dup(1)
    os.dup2(2, 1)
    envelope = Envelope.model_validate_json(json.dumps(question["envelope"]))
    found = [{"hop": e.hop, "body": e.body.to_json()} for e in _call(name, envelope, question)]
    with open(answers, "w", encoding="utf-8") as file:
        json.dump(found, file)


def _call(name: str, envelope: Envelope, question: dict[str, Params]) -> list[Emission]:
    async def call() -> object:
        function = load(name)
        result = function(envelope, given(function, question["params"]))
        return await result if inspect.isawaitable(result) else result

    return emissions(asyncio.run(call()))


def _as_json(envelope: Envelope) -> dict[str, JsonValue]:
    return {**envelope.model_dump(exclude={"body"}), "body": envelope.body.to_json()}
