"""The world: one colony with its clients and their messages, and what can be done with them."""

from collections.abc import Sequence
from uuid import UUID

from colony.envelope import derived_id
from tests.simulator.actors import Client, Message
from tests.simulator.chances import Chances
from tests.simulator.colony import Colony
from tests.simulator.conductor import Fate, Tampering
from tests.simulator.judge import Judge
from tests.simulator.stage import Stage
from tests.simulator.tree import ENTRIES, SESSION_ENTRIES


class World(Colony):
    """A colony to which messages are sent."""

    def __init__(
        self,
        stage: Stage,
        seed: int,
        *,
        chances: Chances,
        tampering: Tampering,
        targets: Sequence[str] = (),
    ) -> None:
        super().__init__(stage, seed, chances=chances, tampering=tampering)
        self.clients = [Client(next(self.links), self.means) for _ in range(2)]
        targets = targets or self._targets()
        self.messages = [self._message(seed, n, target) for n, target in enumerate(targets)]
        self.unsent = [*self.messages]

    def judge(self) -> Judge:
        """Whoever says what is wrong with it."""
        return Judge(self.ledger, self.messages, sorted(self.means.topology.cells))

    async def send_all(self) -> list[Message]:
        """Have every message admitted."""
        while self.unsent:
            await self.admit(self.unsent.pop())
            await self.conductor.release(self.conductor.parked[0], Fate.ANSWERED)
        return self.messages

    async def admit(self, message: Message) -> None:
        """Have a message sent by some client."""
        client = self.random.choice(self.clients)
        self.events.append((f"a client sends to {message.target}", message.trace_id))
        self.start(client, "send", client.send(message))
        await self.conductor.stillness()

    def judge_jobs(self) -> None:
        """Note what went wrong in jobs: none may fail, and no client be told nonsense."""
        super().judge_jobs()
        for client in self.clients:
            for what, trace_id in client.problems:
                self.ledger.complain(what, trace_id)
            client.problems.clear()

    def _message(self, seed: int, number: int, target: str) -> Message:
        guard = f"{seed}:{number}" if self.random.random() < 0.6 else None
        own = str(UUID(int=self.random.getrandbits(128)))
        text = "go" + self.random.choice(("", "!" * 1000))
        return Message(
            number=number,
            target=target,
            text=f"{number} {text}",
            turn=f"turn-{seed}-{number}",
            guard=guard,
            trace_id=derived_id("guard", guard) if guard else own,
            session=self.random.choice(self.chances.sessions) if self.chances.sessions else "",
        )

    def _targets(self) -> Sequence[str]:
        if self.chances.sessions:
            return self.random.choices(SESSION_ENTRIES, k=self.random.randint(2, 5))
        return self.random.choices(ENTRIES, k=self.random.randint(1, 3))
