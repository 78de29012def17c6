"""Mutations of how runs end: by themselves, from outside, and where nothing moves any more."""

from collections.abc import Iterator

from tests.simulator import agent_byhand as byhand
from tests.simulator.agent_byhand import BRIEF, FAILING, SECOND
from tests.simulator.agent_mutation import DEADLY, ENDING, FAULTY, STALE, AgentMutation, of

_EXPIRES = "redis.call('PEXPIRE', kept, keep_ms)"


def end_mutations() -> Iterator[AgentMutation]:
    """Each guard of the ends of runs, switched off."""
    yield from _finish_run()
    yield from _end_run()
    yield from _ends_of_traces()


def _finish_run() -> Iterator[AgentMutation]:
    script = "finish_run"
    yield of(
        script,
        "settles an entry once",
        STALE,
        "end",
        FAULTY,
        seed=8,
    )
    yield of(
        script,
        "ends a run once",
        "if record[1] ~= 'open' then return",
        "if false then return",
        ENDING,
        seed=3,
    )
    yield of(
        script,
        "looks whether somebody has steered",
        "local steered = state == 'completed' and",
        "local steered = false and",
        scene=byhand.steered_at_its_end,
        prompts=[BRIEF],
    )
    yield of(
        script,
        "goes on only where it does not fail",
        "local steered = state == 'completed' and",
        "local steered =",
        scene=byhand.steered_at_its_end,
        prompts=[FAILING],
    )
    yield of(
        script,
        "goes on only where it has not ended",
        "local going_on = record[1] == 'open' and steered",
        "local going_on = steered",
        ENDING,
        scene=byhand.steered_after_one_that_was_cancelled,
        prompts=[BRIEF, SECOND],
    )
    yield of(
        script,
        "tells the session of its end only where it ends",
        "if not going_on or field[1] == 'run' then",
        "if true then",
        scene=byhand.steered_at_its_end,
        prompts=[BRIEF],
    )
    yield of(
        script,
        "reports a trace at rest",
        "if live == 0 then redis.call('XADD'",
        "if false then redis.call('XADD'",
    )
    yield of(
        script,
        "names what it drops",
        "result.dropped_steers = dropped\n",
        scene=byhand.steered_at_its_end,
        prompts=[FAILING],
    )
    yield of(
        script,
        "leaves no steer behind",
        "redis.call('DEL', run.steers)",
        scene=byhand.steered_at_its_end,
        prompts=[FAILING],
    )
    yield of(script, "lets the session go in time", _EXPIRES)


def _end_run() -> Iterator[AgentMutation]:
    script = "end_run"
    yield of(
        script,
        "knows the session of the run",
        " or record[5] ~= session_id then",
        " then",
        ENDING,
        seed=8,
    )
    yield of(
        script, "lets the first end stand", "if record[1] == 'ended' then", "if false then", ENDING
    )
    yield of(
        script,
        "looks whether the trace is at rest",
        "if ARGV[8] == 'quiet' and not idle then",
        "if false then",
        DEADLY,
        scene=byhand.replayed_before_it_fails,
        prompts=[BRIEF],
    )
    yield of(
        script,
        "counts down what was parked",
        "local live = number(record[3]) - open_groups",
        "local live = number(record[3])",
        ENDING,
        seed=1,
    )
    yield of(
        script,
        "retracts only what nobody has answered",
        " and not by_name[name .. ':decision'] then",
        " then",
        ENDING,
    )
    yield of(
        script,
        "takes asks off the list",
        "  redis.call('ZREM', pending, session_id .. ' ' .. id .. ' ' .. ask)\n",
        "",
        ENDING,
        seed=1,
    )
    yield of(
        script,
        "reports a trace of which all was parked",
        "if live == 0 then redis.call('XADD'",
        "if false then redis.call('XADD'",
        ENDING,
        seed=4,
    )
    yield of(
        script,
        "names what it drops",
        "result.dropped_steers = dropped\n",
        "",
        ENDING,
        seed=1,
    )
    yield of(
        script,
        "leaves no steer behind",
        "redis.call('DEL', steers)",
        "",
        ENDING,
        seed=1,
    )
    yield of(
        script,
        "counts no ask any more",
        "'state', cause, 'pending', 0, 'open_calls', ''",
        "'state', cause",
        ENDING,
        seed=1,
    )


def _ends_of_traces() -> Iterator[AgentMutation]:
    yield of(
        "end_quiet",
        "leaves runs to their own end",
        "if (record[7] or '') ~= '' then",
        "if false then",
        DEADLY,
        seed=2,
    )
    yield of(
        "end_trace",
        "leaves runs to their own end",
        "record[1] ~= 'ended' and (record[6] or '') ~= '' then",
        "false then",
        ENDING,
    )
