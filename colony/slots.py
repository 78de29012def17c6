"""Slots: the stable names of processes. A process leases the lowest free slot of its role."""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from colony.envelope import new_id
from colony.keys import GROUP, Keys
from colony.link import Link
from colony.lua.registry import bind

LEASE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a slot, by its own word. `until` is in milliseconds since the epoch."""

    role: str
    slot: int
    until: int
    about: Mapping[str, JsonValue]


class Slots:
    """The slots of one role, and the one that this process holds."""

    def __init__(self, link: Link, keys: Keys, role: str, *, lease_ms: int = LEASE_MS) -> None:
        self.link = link
        self.keys = keys
        self.role = role
        self.lease_ms = lease_ms
        self.token = new_id()
        self.slot: int | None = None

    @property
    def consumer(self) -> str:
        """The consumer name of this process: its role and slot."""
        return f"{self.role}-{self.slot}"

    async def lease(self, about: Mapping[str, JsonValue]) -> bool:
        """Lease the lowest free slot, or renew the one held; whether nobody held it in between."""
        told = {"host": socket.gethostname(), "pid": os.getpid(), **about}
        answer = await self.link.run(
            bind(
                "lease_slot",
                slots=self.keys.slots(self.role),
                token=self.token,
                lease_ms=self.lease_ms,
                about=json.dumps(told),
            )
        )
        self.slot = int(answer[1])
        return bool(answer[0] == b"renewed")

    async def release(self) -> None:
        """Give the slot back, so that the next process takes it at once."""
        if self.slot is not None:
            await self.link.run(
                bind(
                    "release_slot",
                    slots=self.keys.slots(self.role),
                    slot=self.slot,
                    token=self.token,
                )
            )

    async def renew(self, source: str, entries: list[str], *, server: str) -> set[str]:
        """Keep these deliveries from being reclaimed; returns those that are still held."""
        answer = await self.link.run(
            bind(
                "renew",
                slots=self.keys.slots(self.role),
                source=source,
                repairs=self.keys.repairs(),
                slot=-1 if self.slot is None else self.slot,
                token=self.token,
                group=GROUP,
                consumer=self.consumer,
                entries=entries,
            ),
            server=server,
        )
        return {entry.decode() for entry in answer[1]} if answer[0] == b"renewed" else set()


async def holders(link: Link, keys: Keys, role: str) -> list[Holder]:
    """The processes of a role whose lease has not run out, by slot."""
    leases = await link.command("HGETALL", keys.slots(role))
    seconds, micros = await link.command("TIME")
    now = int(seconds) * 1000 + int(micros) // 1000
    found = [_holder(role, n, lease) for n, lease in zip(leases[::2], leases[1::2], strict=True)]
    living = (holder for holder in found if holder is not None and holder.until > now)
    return sorted(living, key=lambda holder: holder.slot)


def _holder(role: str, slot: bytes, lease: bytes) -> Holder | None:
    """The holder that a lease tells of; None where somebody else wrote it."""
    try:
        _, until, about = lease.split(b" ", 2)
        told: dict[str, Any] = json.loads(about)
        return Holder(role, int(slot), int(until), told)
    except ValueError:
        return None
