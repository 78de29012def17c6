"""The demo: one question to the research colony, on a server that is gone afterwards."""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from colony.access import Access
from colony.body import Body, Entry
from colony.embedded import EmbeddedServer
from colony.errors import ConfigError
from colony.keys import Keys
from colony.pace import Pace
from colony.records import HopRecord
from colony.redaction import without_login
from colony.roles import Router, Worker
from colony.serving import Service
from colony.topology.load import load
from colony.topology.model import TopologySpec
from colony.traces import Trace, error_of
from colony.trees import shipped

QUESTION: Final = (
    "How did the Fresnel lens change lighthouses, and what was the sun valve of Gustaf Dalén for?"
)
TREE: Final = "research-settle"
OPENAI: Final = "https://api.openai.com/v1"
ENTRY: Final = "/prep"
NAME: Final = "demo"
# What the searching cell of the tree reads.
DOCUMENTS: Final = frozenset({".html", ".htm", ".md", ".markdown", ".txt"})
PATIENCE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Answered:
    """A question with what came of it. `trace` has not ended where patience ran out.

    `rounds` counts how often the model went on with the results of its tools. `error` tells why the
    texts are no answer, where they are none.
    """

    question: str
    texts: tuple[str, ...]
    trace: Trace
    records: Sequence[HopRecord]
    rounds: int
    seconds: float
    model: str
    error: str | None

    def to_json(self) -> dict[str, JsonValue]:
        """The answer as a JSON object, without its hops."""
        return {
            "question": self.question,
            "answer": "\n\n".join(self.texts),
            "error": self.error,
            "model": self.model,
            "trace_id": self.trace.id,
            "cause": self.trace.cause,
            "rounds": self.rounds,
            "hops": len(self.records),
            "seconds": round(self.seconds, 3),
        }


def environment_of(variables: Mapping[str, str], corpus: Path | None) -> dict[str, str]:
    """The variables of the research tree: with a key or an address, a real model is asked.

    Raises ConfigError where `corpus` holds no documents.
    """
    found = dict(variables)
    if variables.get("OPENAI_API_KEY") or variables.get("COLONY_BASE_URL"):
        found.setdefault("COLONY_PROVIDER", "openai")
        found.setdefault("COLONY_MODEL", "gpt-4o-mini")
    if corpus is not None:
        if not any(path.suffix.lower() in DOCUMENTS for path in corpus.rglob("*")):
            kinds = ", ".join(sorted(DOCUMENTS))
            raise ConfigError(detail=f"no documents in {corpus}: none of its files is {kinds}")
        found["COLONY_CORPUS"] = str(corpus.resolve())
    return found


def model_of(environment: Mapping[str, str]) -> str:
    """The model that the research tree asks with these variables, and where it is."""
    provider = environment.get("COLONY_PROVIDER") or "extractive"
    if provider != "openai":
        return provider
    place = without_login(environment.get("COLONY_BASE_URL") or OPENAI)
    return f"{environment.get('COLONY_MODEL') or 'no model named'} at {place}"


def demonstrate(question: str, environment: Mapping[str, str]) -> Answered:
    """Start a server and the research colony, ask, and stop both."""
    root = shipped(TREE)
    spec = load(root, environment=environment).publishable()
    with _folder() as data:
        with EmbeddedServer.start(Path(data)) as server:
            asking = _ask(server.url, spec, root, question, environment)
            try:
                return asyncio.run(asking)
            finally:
                # An interrupt may come before it has begun, which is nothing to warn of.
                asking.close()


def _folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="colony-demo-")
    except OSError as error:
        raise ConfigError(detail=f"no temporary folder: {error.strerror}; set TMPDIR") from None


async def _ask(
    url: str, spec: TopologySpec, root: Path, question: str, environment: Mapping[str, str]
) -> Answered:
    keys, pace = Keys(NAME), Pace()
    roles: list[Service] = [
        Router(url, keys, pace),
        Worker(url, keys, pace, environment=environment, root=root),
    ]
    async with Access(url, NAME) as access:
        await access.publication.publish(spec)
        serving = [asyncio.create_task(role.serve()) for role in roles]
        try:
            return await _answer(access, question, model_of(environment))
        finally:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)


async def _answer(access: Access, question: str, model: str) -> Answered:
    begun = time.monotonic()
    body = Body.of(Entry.say("user", question))
    trace_id = (await access.admission.admit(ENTRY, body)).trace_id
    await access.endings.wait(trace_id, PATIENCE_S)
    seconds = time.monotonic() - begun
    records = await access.traces.log(trace_id)
    outputs = await access.traces.outputs(trace_id)
    return Answered(
        question=question,
        texts=tuple(_texts(outputs)),
        trace=await access.traces.get(trace_id),
        records=records,
        rounds=sum(record.head.hop.get("route") == "fire" for record in records),
        seconds=seconds,
        model=model,
        error=next(filter(None, map(error_of, outputs)), None),
    )


def _texts(outputs: Sequence[Mapping[str, JsonValue]]) -> list[str]:
    bodies = [Body.parse(output["body"]) for output in outputs]
    return [entry.text for body in bodies for entry in body.each("text") if entry.text]
