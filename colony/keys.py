"""Keys: the only place where a Redis key is spelled.

Every key of a colony starts with `colony:{NAME:P}:`. The braces are the cluster hash tag, so that
all keys of a partition share a slot and one script can touch any of them.
"""

import re
from dataclasses import dataclass

from colony.errors import ConfigError

GROUP = "colony"
# What was idle so long is taken up by the next who looks, however long a claim is.
LONG_IDLE_MS = 24 * 60 * 60 * 1000

_NAME = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True)
class Keys:
    """The keys of one partition of the colony called `name`."""

    name: str = "colony"
    partition: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                detail=f"{self.name!r} cannot name a colony: 1 to 40 of a-z, 0-9 and -"
            )

    def _key(self, *parts: str) -> str:
        return ":".join((f"colony:{{{self.name}:{self.partition}}}", *parts))

    def router(self) -> str:
        """Stream of emissions and births, waiting to be routed."""
        return self._key("router")

    def cell(self, path: str) -> str:
        """Stream of envelopes addressed to the cell at `path`."""
        return self._key("cell", path)

    def quiet(self) -> str:
        """Stream of traces with no live envelope."""
        return self._key("quiet")

    def dead(self) -> str:
        """Stream of dead letters."""
        return self._key("dead")

    def replay(self, letter_id: str) -> str:
        """String: first answer to a replay of a dead letter."""
        return self._key("dead", letter_id, "replay")

    def cells(self) -> str:
        """Set: paths of all cells that were ever published, those that are gone included."""
        return self._key("cells")

    def topology(self) -> str:
        """Hash: version, digest and document of the published topology."""
        return self._key("topology")

    def announced(self) -> str:
        """Hash: tools that cells announced, by path, and the number of the newest announcement."""
        return self._key("announced")

    def repairs(self) -> str:
        """Hash: counts of what was found broken, and how many losses were looked into."""
        return repairs_beside(self.router())

    def audit(self) -> str:
        """String: there as long as no other search for lost envelopes is to begin."""
        return self._key("repairs", "audit")

    def slots(self, role: str) -> str:
        """Hash: slot of `role` to its lease."""
        return self._key("slots", role)

    def guard(self, source: str) -> str:
        """String: what a birth with this guard answered."""
        return self._key("guard", source)

    def open_traces(self) -> str:
        """Sorted set: traces that have not ended, by the millisecond of their birth."""
        return self._key("traces", "open")

    def ended_traces(self) -> str:
        """Sorted set: traces that have ended and are kept, by the millisecond of their end."""
        return self._key("traces", "ended")

    def live(self) -> str:
        """Channel: what cells tell whoever follows a trace now. Nothing is kept of it."""
        return self._key("live")

    def deadlines(self) -> str:
        """Sorted set: traces by the millisecond after which they are ended."""
        return self._key("traces", "deadlines")

    def trace(self, trace_id: str) -> str:
        """Hash: record of a trace."""
        return self._key("trace", trace_id)

    def log(self, trace_id: str) -> str:
        """Stream: hop records of a trace."""
        return self._key("trace", trace_id, "log")

    def outputs(self, trace_id: str) -> str:
        """List: messages kept as outputs of a trace."""
        return self._key("trace", trace_id, "outputs")

    def receipts(self, trace_id: str) -> str:
        """Hash: receipts of the store operations of a trace."""
        return self._key("trace", trace_id, "receipts")

    def journal(self, trace_id: str) -> str:
        """Hash: what handlers of a trace recorded, by envelope and name."""
        return self._key("trace", trace_id, "journal")

    def requests(self, trace_id: str) -> str:
        """Hash: what models were sent for a trace, each as it differs, and how often each was."""
        return self._key("trace", trace_id, "requests")

    def attempts(self, trace_id: str) -> str:
        """Hash: handles begun of redelivered envelopes of a trace."""
        return self._key("trace", trace_id, "attempts")

    def belongings(self, trace_id: str) -> str:
        """Set: further keys that are kept as long as the trace: its blobs, its cells' state."""
        return self._key("trace", trace_id, "belongings")

    def order(self, session_digest: str) -> str:
        """Sorted set: traces of a session that have not ended, by their place in it."""
        return self._key("session", session_digest, "order")

    def parked(self) -> str:
        """Hash: envelopes that wait until it is the turn of their trace, by trace."""
        return self._key("sessions", "parked")

    def waiting(self) -> str:
        """Sorted set: sessions that have parked envelopes, by how many of their traces wait."""
        return self._key("sessions", "waiting")

    def agent_sessions(self, owner_digest: str) -> str:
        """Sorted set: sessions of agents by the millisecond of their newest change.

        Those of one owner, by the digest of its name; with an empty one all of them.
        """
        return self._key("agents", "sessions", *((owner_digest,) if owner_digest else ()))

    def agent_session(self, session_id: str) -> str:
        """Hash: record of a session of an agent."""
        return self._key("agents", "session", session_id)

    def session_events(self, session_id: str) -> str:
        """Stream: durable events of the runs of a session."""
        return self._key("agents", "session", session_id, "events")

    def session_live(self, session_id: str) -> str:
        """Channel: every event of a session, told as it happens. Nothing is kept of it."""
        return self._key("agents", "session", session_id, "live")

    def history(self, session_id: str) -> str:
        """List: what was said in a session, as its models are to remember it."""
        return self._key("agents", "session", session_id, "history")

    def steers(self, session_id: str) -> str:
        """List: what a person said to a run under way that no turn has taken up."""
        return self._key("agents", "session", session_id, "steers")

    def ask_deadlines(self) -> str:
        """Sorted set: pending asks, as `session run ask`, by the millisecond of their deadline."""
        return self._key("agents", "asks")

    def replicated(self) -> str:
        """String: the newest write of whoever asks whether replicas have what came before it."""
        return self._key("replicated")

    def run(self, run_id: str) -> str:
        """Hash: record of a run."""
        return self._key("trace", run_id, "run")

    def asks(self, run_id: str) -> str:
        """Hash: asks of a run, their decisions, and the envelopes that wait for them."""
        return self._key("trace", run_id, "asks")

    def blob(self, blob_id: str) -> str:
        """String: a body too large for a stream entry."""
        return self._key("blob", blob_id)

    def shelved(self, trace_id: str, session: str, text_id: str) -> str:
        """String: a result of a trace that is too long for a message, whole.

        `session` is the digest of the session that may read it later, or empty.
        """
        return self._key("trace", trace_id, "shelf", session or "-", "blob", text_id)

    def state(self, path: str, scope: str, scope_id: str) -> str:
        """Hash: durable state of the cell at `path`, by leaf path."""
        return self._key("state", path, scope, scope_id)

    def budget(self, name: str) -> str:
        """Hash: calls under way to an endpoint, what was spent in the last minute, and a pause."""
        return self._key("budget", name)

    def marks(self, path: str) -> str:
        """Hash: how far the cell at `path` has come as a source, by name of the mark."""
        return self._key("source", path, "marks")

    def lease(self, path: str) -> str:
        """String: token of the process that holds the cell at `path` as a source."""
        return self._key("source", path, "lease")

    def store(self, path: str) -> str:
        """Hash: definitions of the tables of the store at `path`, by name."""
        return self._key("store", path)

    def store_cells(self, path: str, table: str) -> str:
        """Hash: values of a table, by row and column; and the number of its newest row."""
        return self._key("store", path, table, "cells")

    def store_index(self, path: str, table: str) -> str:
        """Sorted set, lexical: rows of a table in order, and rows by column and value."""
        return self._key("store", path, table, "index")

    def store_unique(self, path: str, table: str) -> str:
        """Hash: rows of a table by unique key."""
        return self._key("store", path, table, "unique")


def repairs_beside(stream: str) -> str:
    """The counts of what was found broken in the partition of a stream."""
    return stream[: stream.index("}:") + 2] + "repairs"
