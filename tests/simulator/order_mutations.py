"""Mutations of what keeps an order within sessions."""

from collections.abc import Iterator
from dataclasses import replace

from tests.simulator import byhand
from tests.simulator.byhand import Interleaving
from tests.simulator.chances import SESSIONS, Chances
from tests.simulator.mutation import Edit, Mutation
from tests.simulator.tree import LATE, TURN

MEETING = Chances(sessions=SESSIONS)

_PASSING_ON = (
    ("takes the place away", "redis.call('ZREM', order, id)\n", ""),
    ("passes the turn on", "local heir = first[1] == id and first[2] or first[1]", "local heir"),
    ("publishes what it takes", "in ipairs(released) do", "in ipairs({}) do"),
    ("publishes all that waits", "in ipairs(released) do", "in ipairs({ released[1] }) do"),
)
_SETTLED = "redis.call('XDEL', source, entry)\nif false then"


def order_mutations() -> Iterator[Mutation]:
    """Each guard of the order within sessions, switched off."""
    yield Mutation(
        "birth gives the last place",
        [Edit("birth", "(last[2] or 0) + 1", "1")],
        MEETING,
    )
    yield Mutation(
        "replay gives a trace that it opens a place",
        [Edit("replay", "  if session ~= '' then", "  if false then")],
        replace(MEETING, burials=6, ends=2),
        by_hand=byhand.replay_into_a_session,
        targets=[TURN],
    )
    yield Mutation(
        "park keeps the order",
        [Edit("park", "if redis.call('ZRANGE', order, 0, 0)[1] == id then", "if true then")],
        MEETING,
    )
    yield Mutation(
        "park lets go on what has ended",
        [Edit("park", "or record[1] == 'ended' or", "or")],
        replace(MEETING, ends=3),
        by_hand=byhand.cancelled_before_it_is_parked,
        targets=[TURN],
    )
    yield Mutation(
        "park makes no record of a trace that is gone",
        [Edit("park", "if not record[1] or record[1] == 'ended'", "if record[1] == 'ended'")],
        replace(MEETING, losses=1),
    )
    yield Mutation(
        "park leaves a trace in its session",
        [Edit("park", " or (own ~= '' and own ~= session) then", " then")],
        MEETING,
    )
    yield Mutation(
        "park gives a place once",
        [Edit("park", " and not redis.call('ZSCORE', order, id) then", " then")],
        MEETING,
    )
    yield Mutation(
        "park settles an entry once",
        [Edit("park", "if redis.call('XDEL', source, entry) == 0 then", _SETTLED)],
        replace(MEETING, fault=0.16),
    )
    yield Mutation(
        "park keeps all that waits",
        [Edit("park", "envelopes[#envelopes + 1] =", "envelopes[1] =")],
        MEETING,
    )
    yield Mutation(
        "park counts a trace that waits once",
        [Edit("park", "if not kept then\n", "if true then\n")],
        MEETING,
    )
    yield from _ends()


def _ends() -> Iterator[Mutation]:
    """What the end of a trace has to do for the next one of its session."""
    cancelled = byhand.cancelled_while_it_waits
    ending = replace(MEETING, ends=4)
    waiting = [TURN] * 3
    hands: tuple[tuple[str, Interleaving], ...] = (
        ("end_quiet", byhand.two_that_wait_for_one),
        ("end_trace", byhand.first_one_cancelled),
    )
    for script, by_hand in hands:
        for guard, passage, instead in _PASSING_ON:
            edits = [Edit(script, passage, instead)]
            yield Mutation(f"{script} {guard}", edits, ending, by_hand=by_hand, targets=waiting)
    yield Mutation(
        "end_quiet forgets what it has published",
        [Edit("end_quiet", "redis.call('HDEL', parked, heir) == 1", "1 == 1")],
        MEETING,
    )
    yield Mutation(
        "end_quiet forgets a session in which nobody waits",
        [Edit("end_quiet", "  redis.call('ZREM', waiting, session)\n", "")],
        MEETING,
    )
    yield Mutation(
        "end_quiet knows the session of the trace",
        [Edit("end_quiet", "if (record[6] or '') ~= session then", "if false then")],
        MEETING,
        by_hand=byhand.end_that_knows_no_session,
        targets=[LATE],
    )
    yield Mutation(
        "end_trace knows the session of the trace",
        [Edit("end_trace", "if record[1] and (record[4] or '') ~= session then", "if false then")],
        ending,
    )
    yield Mutation(
        "end_trace counts what it drops",
        [Edit("end_trace", "tonumber(record[3] or 0) - dropped", "tonumber(record[3] or 0)")],
        ending,
        by_hand=cancelled,
        targets=waiting,
    )
    yield Mutation(
        "end_trace drops what is parked",
        [Edit("end_trace", "'HDEL', parked, id, heir or id)", "'HDEL', parked, heir or id)")],
        ending,
        by_hand=cancelled,
        targets=waiting,
    )
    yield Mutation(
        "end_trace reports a trace of which all was parked",
        [
            Edit(
                "end_trace",
                "if live == 0 then redis.call('XADD'",
                "if false then redis.call('XADD'",
            )
        ],
        ending,
        by_hand=cancelled,
        targets=waiting,
    )
    yield Mutation(
        "a turn that is nobody's is passed on",
        chances=replace(MEETING, losses=3),
        never_looks=True,
        by_hand=byhand.record_lost_before_its_turn_is_over,
        targets=waiting,
    )
