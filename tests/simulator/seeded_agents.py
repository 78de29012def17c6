"""The seeded world of agents: chance picks what their users do, and when."""

from collections.abc import Sequence

from tests.simulator.agent_book import RunLog
from tests.simulator.agent_tree import SESSIONS, Plan
from tests.simulator.agent_world import AgentWorld
from tests.simulator.agents import Prompt, Steer
from tests.simulator.chances import Chances
from tests.simulator.conductor import Tampering
from tests.simulator.seeded import Act, Choice, Seeded
from tests.simulator.stage import Stage


class SeededAgents(Seeded, AgentWorld):
    """A colony with an agent, moved one step at a time by a seed."""

    def __init__(self, stage: Stage, seed: int, *, chances: Chances, tampering: Tampering) -> None:
        super().__init__(stage, seed, chances=chances, tampering=tampering)
        self._steers = max(chances.steers, self.random.choice((0, 2, 4)))
        self._strangers = max(chances.strangers, self.random.choice((0, 1, 2)))
        self._retries = self.random.choice((0, 1, 3))

    async def glance(self) -> None:
        """Look whether all is well meanwhile."""
        await self.judge().look()

    def is_said(self) -> bool:
        """Whether every run was begun, as far as it could be."""
        return not self.unsent

    def clients_begin(self) -> list[Choice]:
        """A run may be begun, an ask answered."""
        choices: list[Choice] = []
        if self.unsent:
            # Where one is under way the next is refused, which is to happen, but not all the time.
            busy = self.ledger.books[self.unsent[-1].session].live is not None
            choices.append((0.15 if busy else 1.5, self._begin))
        if self._steers and any(one.what == "finish_run" for one in self.conductor.parked):
            # What is said in the last moment is seldom, and what it is all about.
            choices.append((1.0, self._steer))
        if self._retries and self._to_repeat():
            choices.append((0.5, self._retry))
        if self._pending():
            choices.append((1.0, self._answer))
            choices.append((0.4, self.look_at_deadlines))
        return choices

    def clients_repeat(self) -> list[Choice]:
        """What was said may be said again."""
        often = self.chances.weight
        choices: list[Choice] = [(often(0.2), self._begin_again), (often(0.05), self._forget_guard)]
        if self._asked():
            choices.append((often(0.2), self._answer_again))
        if self.steers:
            choices.append((often(0.1), self._steer_again))
        return choices

    def rarities(self) -> list[tuple[int, Act, float]]:
        """What happens a few times at most: how often it still may, what, and its weight."""
        return [
            *super().rarities(),
            (self._ends, self._end, 0.06),
            (self._steers, self._steer, 0.15),
            (self._strangers, self._intrude, 0.1),
        ]

    def _to_repeat(self) -> list[str]:
        return [b.session for b in self.books() if b.newest and b.newest.is_to_repeat]

    def _pending(self) -> list[tuple[RunLog, str]]:
        live = [book.live for book in self.books() if book.live]
        return [(run, ask) for run in live for ask in sorted(run.pending)]

    def _asked(self) -> list[tuple[RunLog, str]]:
        return [(run, ask) for run in self.ledger.runs.values() for ask in run.asks]

    def _runs(self) -> Sequence[RunLog]:
        return [*self.ledger.runs.values()]

    async def _begin(self) -> None:
        await self.begin(self.unsent.pop())

    async def _retry(self) -> None:
        self._retries -= 1
        session, number = self.random.choice(self._to_repeat()), len(self.prompts)
        plan = Plan.by(self.random)
        prompt = Prompt(session, "retry", plan, f"retry {self.prompts[0].guard} {number}")
        self.prompts.append(prompt)
        await self.begin(prompt)

    async def _begin_again(self) -> None:
        prompt = self.random.choice(self.prompts)
        if prompt in self.unsent:
            return
        if prompt.kind == "prompt" and prompt.told and not self.ledger.cut:
            client = self.client()
            if self.random.random() < 0.3:
                self.start(client, "misuse", client.misuse(prompt))
                await self.conductor.stillness()
                return
        await self.begin(prompt)

    async def _forget_guard(self) -> None:
        """A guard has been remembered for its time."""
        prompt = self.random.choice(self.prompts)
        prompt.unguarded = True
        self.events.append(("its guard is forgotten", prompt.run_id))
        guard = self.keys.guard(f"{prompt.session}:{prompt.guard}")
        await self.stage.link.command("DEL", guard)

    async def _answer(self) -> None:
        run, ask = self.random.choice(self._pending())
        await self.answer(run, ask)

    async def _answer_again(self) -> None:
        run, ask = self.random.choice(self._asked())
        await self.answer(run, ask)

    async def _steer(self) -> None:
        runs = self._runs()
        if not runs:
            return
        live = [book.live for book in self.books() if book.live]
        run = self.random.choice(live if live and self.random.random() < 0.8 else runs)
        self._steers -= 1
        meant = run.id if self.random.random() < 0.6 else ""
        steer = Steer(self.session_of(run.id), meant, f"steer {len(self.steers)}")
        self.steers.append(steer)
        await self.steer(steer)

    async def _steer_again(self) -> None:
        await self.steer(self.random.choice(self.steers))

    async def _end(self) -> None:
        runs = self._runs()
        if not runs:
            return
        self._ends -= 1
        run, client = self.random.choice(runs[-3:]), self.client()
        self.events.append(("a client ends it", run.id))
        if self.random.random() < 0.7:
            doing = client.cancel(run.id, self.session_of(run.id))
        else:
            doing = client.time_out(run.id)
        self.start(client, "end", doing)
        await self.conductor.stillness()

    async def _intrude(self) -> None:
        """A client takes a run for one of another session, or a session for one that is there."""
        runs = self._runs()
        if not runs:
            return
        self._strangers -= 1
        client, run = self.client(), self.random.choice(runs[-2:])
        (other,) = {*SESSIONS} - {self.session_of(run.id)}
        what = self.random.randrange(3)
        if what == 0:
            self.start(client, "begin nowhere", client.begin_nowhere())
        elif what == 1:
            self.events.append((f"a client ends it in {other}", run.id))
            self.start(client, "end", client.cancel(run.id, other))
        elif run.asks:
            ask = self.random.choice(sorted(run.pending or run.asks))
            await self.answer(run, ask, session=other)
        await self.conductor.stillness()
