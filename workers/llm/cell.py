"""The llm cell: what a message says becomes one request to a model, what it answers one emission.

An answer is recorded before it is emitted, so an envelope that is handled again costs no second
call. That a text began to show is recorded before it does, so it is never begun anew.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from colony.cell import TIMEOUT_MARGIN_MS, Cell
from colony.envelope import Emission, Envelope, derived_id
from colony.errors import ModelFailed
from colony.host import Budget, Host
from colony.redaction import REDACTED, without_login
from colony.topology.findings import EXTRA_MISSING, Flaw
from colony.topology.model import CellSpec, ToolDeclaration
from workers.llm import emissions
from workers.llm.asking.admission import Unlimited
from workers.llm.asking.attempts import Asked, Attempts, Policy
from workers.llm.asking.holding import HeldBack
from workers.llm.asking.listening import Followers, Nobody
from workers.llm.asking.recording import Record, Recording, unrecorded
from workers.llm.choice import budget_of, provider_of
from workers.llm.emissions import Told
from workers.llm.params import Params as LlmParams
from workers.llm.provider import Failure, Provider, Request
from workers.llm.questions import one_token, question_in
from workers.llm.servers.extras import NO_ANTHROPIC, missing_extra
from workers.llm.threads.pairing import repaired

# What the journal of an envelope says: that a text of an answer showed, and the answer.
VISIBLE = "visible"
JOURNAL = "answer"

CUT = Failure(
    "stream_cut",
    "the worker was lost after the answer had begun to show",
    disposition="retryable",
    progress="visible",
)
EMPTY = Failure("empty_answer", "the answer has neither a text nor a call", progress="complete")


class Llm(Cell):
    """Ask a model and emit what it adds to the thread."""

    default_message_timeout_ms: ClassVar[int] = 1_200_000
    emits: ClassVar[frozenset[str]] = emissions.HOP

    class Params(LlmParams):
        """Which model, where, and what it may be told."""

    params: LlmParams

    def __init__(self, params: LlmParams) -> None:
        super().__init__(params)
        self._provider: Provider | None = None
        self._budget: Budget = Unlimited()
        self._tools: Sequence[ToolDeclaration] = ()

    @classmethod
    def flaws(cls, spec: CellSpec) -> Iterator[Flaw]:
        """A provider whose library is not installed here."""
        if missing_extra(spec.params.get("provider")):
            yield Flaw(EXTRA_MISSING, NO_ANTHROPIC, ("params", "provider"), severity="warning")

    async def start(self, host: Host) -> None:
        """The provider is ready; nothing is sent yet. Raises TopologyError where its library is
        not installed."""
        self._provider = provider_of(self.params)
        self._budget = budget_of(self.params, host)
        self._tools = host.tools

    async def stop(self) -> None:
        """The provider holds nothing open."""
        if self._provider is not None:
            await self._provider.close()
            self._provider = None

    async def handle(self, envelope: Envelope, host: Host) -> Sequence[Emission]:
        """The new entries of the model, or the messages unchanged with what went wrong.

        A message without `messages` changes the system state and emits nothing.
        """
        recorded = await host.recall(JOURNAL)
        if recorded is None:
            told = await self._told(envelope, host)
            if told is None:
                return []
            if isinstance(told, Asked):
                return [self._failed(envelope, told, host)]
            # Where two hosts handled the envelope, both go on with the answer of the first.
            recorded = await host.record(JOURNAL, told.model_dump_json().encode())
        repairs = repaired(envelope.body.entries)[1]
        answer = Told.model_validate_json(recorded)
        return [emissions.said(answer, provider=self.params.provider, repairs={**repairs})]

    async def probe(self) -> str:
        """Ask for one token, outside of every budget."""
        assert self._provider is not None, "a cell is started before it is tried"
        place = without_login(self.params.base_url) or self.params.provider
        begun = time.perf_counter()
        reply = await self._provider.complete(one_token(self.params, self._tools), Nobody())
        if isinstance(reply, Failure):
            told = self._without_key(reply)
            raise ModelFailed(
                model=self.params.model or self.params.provider,
                place=place,
                reason=told.code,
                detail=told.detail,
            )
        return f"{reply.model} at {place} answers in {time.perf_counter() - begun:.1f} s"

    async def _told(self, envelope: Envelope, host: Host) -> Told | Asked | None:
        """What the model says to a message, what it failed with, or None where it is not asked."""
        if await self._showed(host):
            await self._attempts(host).abandon(envelope.id)
            return Asked(CUT, 0, {})
        question = await question_in(envelope, self.params, host)
        if question is None:
            return None
        if isinstance(question, Failure):
            return Asked(question, 0, {})
        started_at, begun = time.time_ns() // 1_000_000, time.perf_counter()
        asked = await self._ask(question, envelope, host)
        if isinstance(asked.reply, Failure):
            return asked
        if asked.reply.outcome == "empty":
            return replace(asked, reply=EMPTY)
        if asked.warnings:
            host.log.warning("answer_mended", **asked.warnings)
        return Told(
            answer=asked.reply,
            started_at=started_at,
            latency_ms=round((time.perf_counter() - begun) * 1000),
            attempts=asked.attempts,
            warnings={**asked.warnings},
        )

    async def _showed(self, host: Host) -> bool:
        # A model of this process says the same again, at the same places: nothing shows twice.
        return self.params.is_remote and await host.recall(VISIBLE) is not None

    async def _ask(self, question: Request, envelope: Envelope, host: Host) -> Asked:
        async def commit() -> None:
            if self.params.is_remote:
                await host.show(VISIBLE)

        followed = Followers(host, message_id=derived_id(envelope.id, 0))
        async with Recording(self._recorder(question, host)) as recording, followed as followers:
            return await self._attempts(host).ask(
                question,
                name=envelope.id,
                hearing=lambda: HeldBack(followers, commit, sent=recording.of_next_call()),
            )

    def _recorder(self, question: Request, host: Host) -> Record:
        if not self.params.record_requests:
            return unrecorded
        provider, model = self.params.provider, question.generation.model

        async def record(body: bytes, attempt: int) -> None:
            await host.record_request(
                body, provider=provider, model=model or provider, attempt=attempt
            )

        return record

    def _attempts(self, host: Host) -> Attempts:
        assert self._provider is not None, "a cell is started before it handles"

        def waiting(failure: Failure, wait_s: float) -> None:
            told = self._without_key(failure)
            host.log.info(
                "model_call_waits", code=told.code, detail=told.detail, wait_s=round(wait_s, 1)
            )

        policy = self._policy(host.spec)
        return Attempts(self._provider, self._budget, policy, waiting=waiting)

    def _policy(self, spec: CellSpec) -> Policy:
        written = spec.cell.message_timeout
        total_s = (self.message_timeout_ms(written, 0) - TIMEOUT_MARGIN_MS) / 1000
        whole_s = self.params.external_timeout_ms / 1000
        return Policy(
            attempts=self.params.attempts,
            # A stream may go on as long as it is not silent, and its provider sees to that.
            attempt_s=total_s if self.params.stream else whole_s,
            total_s=total_s,
            broken_s=whole_s,
        )

    def _failed(self, envelope: Envelope, asked: Asked, host: Host) -> Emission:
        assert isinstance(asked.reply, Failure), "only a failure failed"
        failure = self._without_key(asked.reply)
        host.log.warning("model_failed", **failure.to_json())
        return emissions.failed(
            failure,
            messages=envelope.body.messages or (),
            provider=self.params.provider,
            model=self.params.model,
            attempts=asked.attempts,
            warnings=asked.warnings,
        )

    def _without_key(self, failure: Failure) -> Failure:
        # Some servers repeat the key that they refuse.
        key = self.params.api_key.get_secret_value()
        return replace(failure, detail=failure.detail.replace(key, REDACTED)) if key else failure
