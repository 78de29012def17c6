"""The judge of agents: what must hold of runs at any moment, and once all of them have ended."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from msgpack import unpackb

from colony.agent.history import HistoryRow
from colony.codec import blob_reference, decode_head
from colony.dead_letters import Buried, DeadLetters
from tests.simulator.agent_ledger import AgentLedger
from tests.simulator.agents import Deadlines, Prompt
from tests.simulator.judge import CODES, Judge
from tests.simulator.tree import REVIVALS

_PARKED = ":parked"


class AgentJudge(Judge):
    """Holds what is in Redis against what was asked of agents and what was answered."""

    def __init__(
        self,
        ledger: AgentLedger,
        prompts: Sequence[Prompt],
        deadlines: Sequence[Deadlines],
        cells: Iterable[str],
    ) -> None:
        super().__init__(ledger, (), cells)
        self._book = ledger
        self._prompts = prompts
        self._deadlines = deadlines

    async def look(self) -> None:
        """What holds at any moment: that of traces, and nothing of a run changes behind its end."""
        self.ledger.opened |= {*self._book.runs}
        await super().look()
        for session, book in self._book.books.items():
            await self._book.follow(session)
            await self._judge_lifetimes(session, live=book.live is not None)
        for run_id, record in self._book.frozen.items():
            if await self._book.record(run_id) != record:
                self._complain("its record changed behind its end", run_id)

    async def judge(self) -> None:
        """What holds at the end: every run has ended, with a result, and nothing is left of it."""
        await self.look()
        await self._judge_streams()
        letters = await DeadLetters(self.link, self.keys).list(limit=10_000)
        for trace in await self._records():
            log = await self._traces.log(trace.id)
            # However much of it is lost, a run goes on as long as it comes further.
            done = int((await self._book.record(trace.id)).get("tool_calls") or 0)
            revivals = REVIVALS + done
            self._judge_record(trace, log, trace.outputs, letters, revivals=revivals)
            self._judge_log(trace.id, log)
        self._judge_letters(letters)
        for run in self._book.runs.values():
            if run.result is None:
                self._complain("it has no result", run.id)
        for prompt in self._prompts:
            if prompt.told and not self.ledger.cut and prompt.run_id not in self._book.runs:
                self._complain("it was begun, and there is nothing of it", prompt.run_id)
        for session in self._book.books:
            await self._judge_history(session)
        self._judge_denials()

    def _judge_letters(self, letters: Sequence[Buried]) -> None:
        for letter in letters:
            if letter.code not in CODES:
                self._complain(f"a dead letter says {letter.code}", letter.trace_id)
            if blob_reference(letter.body_bytes) is not None:
                self._complain("what died had a body that was not there", letter.trace_id)

    async def _judge_lifetimes(self, session: str, *, live: bool) -> None:
        keys = self.keys
        for key in (keys.agent_session(session), keys.session_events(session),
                    keys.history(session)):  # fmt: skip
            left = await self.link.command("PTTL", key)
            if live and left >= 0:
                self._complain(f"a run of it lives, and {key} expires")
            if not live and left == -1:
                self._complain(f"no run of it lives, and {key} stays for ever")

    async def _judge_history(self, session: str) -> None:
        rows = await self.link.command("LRANGE", self.keys.history(session), 0, -1)
        said = Counter((row.run_id, row.turn) for row in map(HistoryRow.decode, rows))
        for (run_id, turn), count in said.items():
            if count > 1:
                self._complain(f"turn {turn} is remembered {count} times", run_id)

    def _judge_denials(self) -> None:
        denied = sum(keeper.denied for keeper in self._deadlines)
        expired = Counter(state for run in self._book.runs.values() for state in run.asks.values())
        if not self.ledger.cut and denied > expired["permission.expired"]:
            self._complain(f"{denied} asks were denied of {expired['permission.expired']}")

    async def _under_way(self) -> Counter[str]:
        return await super()._under_way() + await self._waiting()

    async def _waiting(self) -> Counter[str]:
        """How many envelopes of each run wait for answers."""
        waiting: Counter[str] = Counter()
        for run in self._book.runs.values():
            if run.result is not None:
                continue
            found = await self.link.command("HGETALL", self.keys.asks(run.id))
            asks = dict(zip(found[::2], found[1::2], strict=True))
            for name, value in asks.items():
                if not name.decode().endswith(_PARKED):
                    continue
                head = decode_head(unpackb(value, raw=True)[1])
                own = [ask for ask in asks if b":" not in ask and _is_of(asks[ask], head.id)]
                if any(ask + b":decision" not in asks for ask in own):
                    waiting[run.id] += 1
        return waiting

    async def _belongings(self, trace_id: str) -> list[str]:
        keys = self.keys
        own = [keys.run(trace_id), keys.asks(trace_id), keys.requests(trace_id)]
        return [*await super()._belongings(trace_id), *own]


def _is_of(facts: bytes, group: str) -> bool:
    return bool(json.loads(facts)["group"] == group)
