"""Standing: how a session of an agent and its newest runs stand in Redis, read at one moment."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from colony.keys import Keys
from colony.link import Link
from colony.runs.reading import texts
from tests.simulator.agent_book import RunLog, SessionBook

_COUNT = ":open"


@dataclass(frozen=True)
class Standing:
    """A session, its newest run with its trace, its asks, and those that are listed as pending.

    Of each ask `asks` has the group, and whether it is answered.
    """

    session: Mapping[str, str]
    run: Mapping[str, str]
    trace: Mapping[str, str]
    asks: Mapping[str, tuple[str, bool]]
    groups: Mapping[str, int]
    listed: frozenset[tuple[str, str]]
    steers: Sequence[str]

    def undecided(self, group: str) -> int:
        """How many asks of a group are not answered."""
        return sum(of == group and not done for of, done in self.asks.values())

    def problems(self, book: SessionBook) -> Iterator[str]:
        """What of it does not agree with its log, or with itself."""
        newest = book.newest
        pending = newest.pending if newest and newest.result is None else set()
        if newest is None:
            if self.session.get("state") != "idle":
                yield f"it is {self.session.get('state')} before its first run"
            return
        if {ask for run, ask in self.listed if run == newest.id} != pending or any(
            run != newest.id for run, _ in self.listed
        ):
            yield f"{len(self.listed)} asks are listed, and {len(pending)} are pending"
        if self.session["run_id"] != newest.id:
            yield f"its run is {self.session['run_id']}"
        for name, record in (("session", self.session), ("run", self.run)):
            if int(record.get("pending") or 0) != len(pending):
                yield f"the {name} counts {record.get('pending')} pending asks of {len(pending)}"
        if int(self.run.get("seq") or 0) != newest.seq:
            yield f"its run is at {self.run.get('seq')}, and told {newest.seq} events"
        yield from self._of_states(newest, len(pending))
        yield from self._of_groups(newest)
        learned = json.loads(self.session.get("learned") or "[]")
        if len({*learned}) != len(learned):
            yield f"it has learned {learned}"

    def _of_states(self, newest: RunLog, pending: int) -> Iterator[str]:
        state, trace = self.session["state"], self.trace.get("state")
        if newest.result is None:
            if trace not in ("open", "quiet"):
                yield f"its run has no result, and is {trace}"
            if state != ("awaiting" if pending else "running"):
                yield f"it is {state} with {pending} asks pending"
            if "said_last" in self.session and self.session["said_last"] == newest.id:
                yield "it is told of an end that did not come"
            return
        ended = newest.result["state"]
        if trace != "ended" or self.trace["cause"] != ended:
            yield f"its run is {trace} {self.trace.get('cause')}, and its result says {ended}"
        if state != ("idle" if newest.owes else ended):
            yield f"it is {state}, and its result says {ended}"
        if self.steers:
            yield f"{len(self.steers)} steers are left behind its end"

    def _of_groups(self, newest: RunLog) -> Iterator[str]:
        if newest.result is not None:
            return
        for group, count in self.groups.items():
            if count != self.undecided(group):
                yield f"{count} asks are counted of {self.undecided(group)} that one waits for"


async def standing(link: Link, keys: Keys, book: SessionBook) -> Standing:
    """How a session stands."""
    newest = book.newest.id if book.newest else "none"
    hashes = [
        texts(await link.command("HGETALL", key))
        for key in (
            keys.agent_session(book.session),
            keys.run(newest),
            keys.trace(newest),
            keys.asks(newest),
        )
    ]
    session, run, trace, asks = hashes
    listed = await link.command("ZRANGE", keys.ask_deadlines(), 0, -1)
    members = [member.decode().split(" ") for member in listed]
    steers = await link.command("LRANGE", keys.steers(book.session), 0, -1)
    return Standing(
        session,
        run,
        trace,
        {
            name: (json.loads(facts)["group"], f"{name}:decision" in asks)
            for name, facts in asks.items()
            if ":" not in name
        },
        {
            name.removesuffix(_COUNT).partition(":")[2]: int(count)
            for name, count in asks.items()
            if name.endswith(_COUNT)
        },
        frozenset((run, ask) for of, run, ask in members if of == book.session),
        [steer.decode() for steer in steers],
    )
