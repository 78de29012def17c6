"""Mutations: every guard there is, each switched off alone."""

from tests.simulator import byhand
from tests.simulator.chances import Chances
from tests.simulator.mutation import Edit, Mutation
from tests.simulator.order_mutations import order_mutations
from tests.simulator.tree import CLASSIC, FAN, SETTLE

DEADLY = Chances(burials=6)
RESTARTING = Chances(restarts=6)
LOSING = Chances(losses=1)
ENDING = Chances(ends=2)

STORE = ("store_insert", "store_update", "store_make", "settle")

_RECEIPT = "local receipt = redis.call('HGET', receipts, operation)\n"
_NO_RECEIPT = "local receipt = false\n"
_STALE = "    return { 'stale' }\n  end\n  if fenced then"

MUTATIONS = (
    Mutation(
        "commit settles an entry once",
        [Edit("commit", _STALE, "  end\n  if fenced then")],
    ),
    Mutation(
        "commit drops what comes after the end",
        [
            Edit(
                "commit",
                "record.state == 'ended' and (record.cause ~= 'completed'",
                "record.state == 'ended' and (false",
            )
        ],
        ENDING,
    ),
    Mutation(
        "commit publishes what a completed trace has under way",
        [Edit("commit", "record.cause ~= 'completed' or record.live == 0", "true")],
        by_hand=byhand.completed_while_two_are_under_way,
        targets=[FAN],
    ),
    Mutation(
        "commit counts down what it drops",
        [Edit("commit", "if record.state and record.live > 0 then", "if false then")],
        ENDING,
    ),
    Mutation(
        "commit makes no record of a trace that is gone",
        [
            Edit("commit", "local fenced = not record.state\n    or (", "local fenced = ("),
        ],
        LOSING,
    ),
    Mutation(
        "commit reports a trace at rest",
        [Edit("commit", "    redis.call('XADD', quiet, '*', 'trace', step.id)\n", "")],
    ),
    Mutation(
        "commit refuses to refer to a blob that is gone",
        [
            Edit(
                "commit",
                "if redis.call('EXISTS', blob.to) == 0 then return { 'blob_lost' } end",
                "",
            )
        ],
        Chances(fault=0.16),
        by_hand=byhand.blob_that_expires_before_its_commit,
        targets=[SETTLE],
    ),
    Mutation(
        "a delivery belongs to the server that handed it out",
        chances=RESTARTING,
        trusting=frozenset(("commit", "hand_back", "record", "attempt", *STORE)),
        by_hand=byhand.answer_of_a_server_that_forgot,
        targets=[CLASSIC],
    ),
    Mutation(
        "a report is dismissed by the server that was attended to",
        chances=RESTARTING,
        trusting=frozenset(("dismiss",)),
        by_hand=byhand.revival_that_the_server_forgot,
        targets=[SETTLE],
    ),
    Mutation(
        "store_insert leaves a receipt",
        [Edit("store_insert", _RECEIPT, _NO_RECEIPT)],
        Chances(fault=0.16),
    ),
    Mutation(
        "store_update leaves a receipt",
        [Edit("store_update", _RECEIPT, _NO_RECEIPT)],
        Chances(fault=0.16),
        by_hand=byhand.winner_that_dies,
        targets=[CLASSIC],
    ),
    Mutation(
        "settle leaves a receipt",
        [Edit("settle", _RECEIPT, _NO_RECEIPT)],
        Chances(fault=0.16),
        by_hand=byhand.winner_that_dies,
        targets=[SETTLE],
    ),
    Mutation(
        "settle claims a round once",
        [
            Edit(
                "settle",
                "local matches = redis.call('HGET', cells, id .. ':fired') == round.unfired",
                "local matches = true",
            )
        ],
    ),
    Mutation(
        "store_update changes only the rows that match",
        [
            Edit(
                "store_update",
                "if not value then return condition.or_null end",
                "if condition.column == 'fired' then return true end\n"
                "  if not value then return condition.or_null end",
            ),
            Edit(
                "store_update", "if size < least then", "if size < least and column ~= 'fired' then"
            ),
            Edit(
                "store_update",
                "local size = condition.ranges and 0 or math.huge",
                "local column, size = condition.column, condition.ranges and 0 or math.huge",
            ),
        ],
    ),
    Mutation(
        "revive looks whether the trace is at rest",
        [Edit("revive", "record[1] ~= 'quiet' or record[2] ~= '0' or ", "")],
        DEADLY,
        by_hand=byhand.revival_of_what_was_replayed,
        targets=[SETTLE],
    ),
    Mutation(
        "revive uses each number once",
        [Edit("revive", "tonumber(record[3]) ~= revival - 1", "false")],
        DEADLY,
        by_hand=byhand.revival_that_comes_late,
        targets=[SETTLE],
    ),
    Mutation(
        "end_quiet looks whether the trace is at rest",
        [Edit("end_quiet", "if record[1] ~= 'quiet' or record[2] ~= '0' then", "if false then")],
        DEADLY,
        by_hand=byhand.end_that_comes_late,
        targets=[FAN],
    ),
    Mutation(
        "birth knows its guard",
        [Edit("birth", "if before[1] then", "if false then")],
    ),
    Mutation(
        "birth knows its trace",
        [Edit("birth", "if redis.call('EXISTS', trace) == 1 then", "if false then")],
    ),
    Mutation(
        "replay knows its first answer",
        [Edit("replay", "if before then", "if false then")],
        DEADLY,
    ),
    Mutation(
        "replay opens an ended trace no more",
        [Edit("replay", "(record[1] == 'open' or record[1] == 'quiet')", "record[1]")],
        DEADLY,
        by_hand=byhand.replay_after_the_end,
        targets=[FAN],
    ),
    Mutation(
        "attempt knows its last token",
        [Edit("attempt", "if last ~= token then", "if true then")],
        Chances(fault=0.16),
    ),
    Mutation(
        "retire spares what lives",
        [
            Edit(
                "retire",
                "if record[1] ~= 'ended' or (tonumber(record[2]) or 0) > 0 then",
                "if false then",
            )
        ],
        DEADLY,
    ),
    Mutation(
        "end_trace lets the first end stand",
        [Edit("end_trace", "if record[1] == 'ended' then", "if false then")],
        ENDING,
    ),
    Mutation(
        "orphans are adopted",
        [
            Edit(
                "adopt",
                "if #redis.call('XPENDING', source, group, entry[1], entry[1], 1) == 0",
                "if false",
            )
        ],
        Chances(expulsions=4),
    ),
    Mutation("a worker asks before it handles", chances=ENDING, never_asks=True),
    Mutation(
        "the quiet lane fills what a round misses",
        chances=Chances(burials=6, replays=False),
        mends=False,
        by_hand=byhand.call_that_dies,
        targets=[SETTLE],
    ),
    *order_mutations(),
)
