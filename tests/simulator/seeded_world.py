"""The seeded world: what clients say to a colony, and when, is picked by chance as well."""

from tests.simulator.seeded import Act, Choice, Seeded
from tests.simulator.world import World


class SeededWorld(Seeded, World):
    """A colony and its clients, moved one step at a time by a seed."""

    def is_said(self) -> bool:
        """Whether every message was sent."""
        return not self.unsent

    def clients_begin(self) -> list[Choice]:
        """A message may be sent."""
        # Those of a session are to be under way together.
        return [(4 if self.chances.sessions else 1, self._send)] if self.unsent else []

    def clients_repeat(self) -> list[Choice]:
        """A message may be sent again."""
        return [(self.chances.weight(0.25), self._repeat)]

    def rarities(self) -> list[tuple[int, Act, float]]:
        """What happens a few times at most: how often it still may, what, and its weight."""
        return [
            (self._ends, self._end, 0.06),
            (self._burials, self._bury, 0.1),
            (self._losses, self._lose_record, 0.04),
            (self._expulsions, self._expel, 0.1),
            (self._replays, self._replay, 0.1),
            (self._restarts, self._restart, 0.03),
        ]

    async def _send(self) -> None:
        await self.admit(self.unsent.pop())

    async def _repeat(self) -> None:
        message = self.random.choice(self.messages)
        if message in self.unsent or message.trace_id in self.ledger.gone:
            return
        if message.guard and message.told and not self.ledger.cut and self.random.random() < 0.3:
            client = self.random.choice(self.clients)
            self.start(client, "misuse", client.misuse(message))
            await self.conductor.stillness()
        else:
            await self.admit(message)

    async def _end(self) -> None:
        self._ends -= 1
        message = self.random.choice(self.messages)
        client = self.random.choice(self.clients)
        cause = self.random.choice(("cancelled", "failed"))
        self.start(client, f"end {cause}", client.end(message.trace_id, cause))
        await self.conductor.stillness()

    async def _replay(self) -> None:
        letters = await self.stage.link.command("XRANGE", self.keys.dead(), "-", "+")
        if letters:
            self._replays -= 1
            letter = self.random.choice(letters)[0].decode()
            client = self.random.choice(self.clients)
            self.events.append((f"a client replays {letter}", None))
            self.start(client, "replay", client.replay(letter))
            await self.conductor.stillness()

    async def _lose_record(self) -> None:
        message = self.random.choice(self.messages)
        key = self.keys.trace(message.trace_id)
        if message.guard is None or not message.told:
            return
        if (await self.stage.link.command("HGET", key, "live")) in (None, b"0"):
            return
        self._losses -= 1
        self.events.append(("its record is gone", message.trace_id))
        self.ledger.gone.add(message.trace_id)
        await self.stage.link.command("DEL", key)
