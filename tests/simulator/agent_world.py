"""The world of agents: sessions whose runs are begun, answered, steered and ended by chance."""

from collections.abc import Mapping, Sequence
from typing import Final

from colony.agent.asks import Decision, Verdict
from colony.agent.record import RunKind
from colony.workshop import Hosted
from tests.simulator.agent_book import RunLog, SessionBook
from tests.simulator.agent_judge import AgentJudge
from tests.simulator.agent_ledger import AgentLedger
from tests.simulator.agent_tree import SESSIONS, Plan
from tests.simulator.agents import AgentClient, Answer, Deadlines, Prompt, Steer
from tests.simulator.chances import Chances
from tests.simulator.colony import Colony
from tests.simulator.conductor import Tampering
from tests.simulator.ledger import Ledger
from tests.simulator.stage import Stage

# Few tokens, so that an ask is answered under the same one again.
TOKENS: Final = 3
VERDICTS: Final[tuple[Verdict, ...]] = ("allow_once", "allow_always", "deny")


class AgentWorld(Colony):
    """A colony with an agent, and whoever uses it."""

    ledger: AgentLedger

    def __init__(
        self,
        stage: Stage,
        seed: int,
        *,
        chances: Chances,
        tampering: Tampering,
        prompts: Sequence[Prompt] = (),
    ) -> None:
        super().__init__(stage, seed, chances=chances, tampering=tampering)
        self.clients = [AgentClient(next(self.links), self.means) for _ in range(2)]
        self.deadlines = [Deadlines(w.name, w.link, self.means) for w in self.wardens]
        self.prompts = [*prompts] or self._prompts(seed)
        self.unsent = [*self.prompts]
        self.steers: list[Steer] = []

    def make_ledger(self) -> Ledger:
        """Where it is noted what happens."""
        return AgentLedger(self.stage.link, self.keys)

    def crews(self, hosted: Mapping[str, Hosted]) -> Mapping[str, Mapping[str, Hosted] | None]:
        """The cells that each process hosts, by its name; None for a router."""
        return {"router-0": None, "router-1": None, "worker-0": hosted, "worker-1": hosted,
                "worker-2": hosted}  # fmt: skip

    def judge(self) -> AgentJudge:
        """Whoever says what is wrong with it."""
        cells = sorted(self.means.topology.cells)
        return AgentJudge(self.ledger, self.prompts, self.deadlines, cells)

    # What actors do

    async def begin(self, prompt: Prompt) -> None:
        """Have some client begin a run."""
        client = self.client()
        self.events.append((f"a client begins a {prompt.kind} in {prompt.session}", prompt.run_id))
        self.start(client, f"begin {prompt.kind}", client.begin(prompt))
        await self.conductor.stillness()

    async def answer(self, run: RunLog, ask_id: str, *, session: str = "") -> None:
        """Have some client answer an ask, as whoever has its token does."""
        client, token = self.client(), f"{ask_id} {self.random.randrange(TOKENS)}"
        verdict = VERDICTS[int(ask_id[1], 16) % len(VERDICTS)]
        answer = Answer(
            session or self.session_of(run.id),
            run.id,
            ask_id,
            token,
            Decision(verdict=verdict, reason=token),
            rule=f"bash({int(ask_id[2], 16) % 2})" if verdict == "allow_always" else "",
        )
        self.events.append((f"a client answers {ask_id[:8]} in {answer.session}", run.id))
        self.start(client, "answer", client.answer(answer))
        await self.conductor.stillness()

    async def steer(self, steer: Steer) -> None:
        """Have some client say something to a run under way."""
        client = self.client()
        self.events.append((f"a client says {steer.text}", steer.run_id or None))
        self.start(client, "steer", client.steer(steer))
        await self.conductor.stillness()

    async def look_at_deadlines(self) -> None:
        """Have some keeper deny what is overdue."""
        keeper = self.random.choice(self.deadlines)
        self.start(keeper, "look at deadlines", keeper.look())
        await self.conductor.stillness()

    async def tend(self) -> None:
        """Answer what waits for an answer, where nothing moves by itself any more."""
        await super().tend()
        for book in self.books():
            for ask_id in sorted(book.live.pending if book.live else ()):
                assert book.live is not None
                await self.answer(book.live, ask_id)

    async def restart(self, cut: int) -> None:
        """The server is killed, loses the end of what it wrote, and comes back."""
        await super().restart(cut)
        for client in self.clients:
            client.heard.clear()
        for session in SESSIONS:
            await self.ledger.follow(session)

    # Sight

    def books(self) -> list[SessionBook]:
        """The logs of all sessions."""
        return [*self.ledger.books.values()]

    def session_of(self, run_id: str) -> str:
        """The session of a run that has begun."""
        return next(book.session for book in self.books() if run_id in book.runs)

    def judge_jobs(self) -> None:
        """Note what went wrong in jobs; what was refused is left to be asked for again."""
        super().judge_jobs()
        for client in self.clients:
            for what, run_id in client.problems:
                self.ledger.complain(what, run_id)
            client.problems.clear()
            for prompt in client.refused:
                # Where there is nothing to repeat there may never be.
                if prompt.kind != "retry" and prompt not in self.unsent:
                    self.unsent.insert(0, prompt)
            client.refused.clear()

    def client(self) -> AgentClient:
        """Any client."""
        return self.random.choice(self.clients)

    def _prompts(self, seed: int) -> list[Prompt]:
        kinds: tuple[RunKind, ...] = ("prompt", "prompt", "prompt", "retry", "compact")
        return [
            Prompt(
                self.random.choice((SESSIONS[0], *SESSIONS)),
                self.random.choice(kinds),
                Plan.by(self.random),
                f"{seed}:{number}",
                long=self.random.random() < 0.15,
            )
            for number in range(self.random.randint(3, 6))
        ]
