"""Mutations of what agents rest on: each guard of the scripts of runs, switched off alone."""

from collections.abc import Iterator

from tests.simulator import agent_byhand as byhand
from tests.simulator.agent_byhand import OWING, one
from tests.simulator.agent_end_mutations import end_mutations
from tests.simulator.agent_mutation import ENDING, FAULTY, STALE, AgentMutation, of
from tests.simulator.agent_tree import Plan


def agent_mutations() -> Iterator[AgentMutation]:
    """Each guard of the runs of agents, switched off."""
    yield from _begin_run()
    yield from _commit()
    yield from _file_asks()
    yield from _resolve_ask()
    yield from _said_and_shown()
    yield from end_mutations()


def _begin_run() -> Iterator[AgentMutation]:
    script = "begin_run"
    yield of(script, "knows its guard", "if before[1] then", "if false then")
    yield of(script, "knows its trace", "if redis.call('EXISTS', trace) == 1 then", "if false then")
    yield of(
        script,
        "knows its session",
        "if not state then",
        "if false then",
        seed=3,
    )
    yield of(script, "waits for a run under way", "if state == 'running' then", "if false then")
    yield of(script, "waits for a run that asks", "if state == 'awaiting' then", "if false then")
    yield of(
        script,
        "owes a retry first",
        "if kind ~= 'retry' and owed then",
        "if false then",
        scene=byhand.prompted_where_a_retry_is_owed,
        prompts=OWING,
    )
    yield of(
        script,
        "repeats only what may be repeated",
        "not (state == 'failed' and disposition == 'retryable' and shown)",
        "false",
        seed=3,
    )
    yield of(
        script,
        "refuses to refer to a blob that is gone",
        "if redis.call('EXISTS', KEYS[n]) == 0 then return { 'blob_lost' } end",
        scene=byhand.blob_that_expires_before_the_birth,
        prompts=[one(Plan(), long=True)],
    )
    yield of(
        script,
        "keeps the session while it runs",
        "redis.call('PERSIST', kept)",
    )


def _commit() -> Iterator[AgentMutation]:
    script = "commit"
    yield of(
        script,
        "settles an entry once",
        "    return { 'stale' }\n  end\n  if fenced then",
        "  end\n  if fenced then",
    )
    yield of(
        script,
        "changes nothing of a run that has ended",
        "if step.run and record.state ~= 'ended' then",
        "if step.run then",
        scene=byhand.aside_behind_the_end,
        prompts=[one(Plan(rounds=((0,),), asides=True))],
    )
    yield of(
        script,
        "drops what comes after the end",
        "record.state == 'ended' and (record.cause ~= 'completed'",
        "record.state == 'ended' and (false",
        ENDING,
    )


def _file_asks() -> Iterator[AgentMutation]:
    script = "file_asks"
    yield of(script, "settles an entry once", STALE, "end", FAULTY)
    yield of(
        script,
        "asks nothing after the end",
        "local once, open = changes.once, record[1] == 'open'",
        "local once, open = changes.once, true",
        ENDING,
        seed=13,
    )
    yield of(
        script,
        "counts down what it drops",
        "redis.call('HSET', trace, 'live', live, 'steps', tonumber(record[4] or 0) + 1)\n    if",
        "if",
        ENDING,
        seed=13,
    )
    yield of(
        script,
        "reports a trace of which it dropped the last",
        "if live == 0 then redis.call('XADD'",
        "if false then redis.call('XADD'",
        ENDING,
        seed=13,
    )


def _resolve_ask() -> Iterator[AgentMutation]:
    script = "resolve_ask"
    yield of(
        script,
        "knows its own answer",
        "if facts[2] and token ~= '' and facts[3] == token then",
        "if false then",
    )
    yield of(
        script,
        "takes nobody's answer for another's",
        "if facts[2] and token ~= '' and",
        "if facts[2] and",
        seed=7,
    )
    yield of(
        script,
        "answers nothing after the end",
        "record[1] ~= 'open' or ",
        "",
        ENDING,
        seed=1,
    )
    yield of(
        script,
        "knows the session of the run",
        " or record[2] ~= session_id then",
        " then",
        scene=byhand.answered_in_another_session,
        prompts=[one(Plan(rounds=((1,),)))],
    )
    yield of(
        script, "lets the first answer stand", "if not facts[1] or facts[2] then", "if false then"
    )
    yield of(
        script,
        "takes an ask off the list",
        "redis.call('ZREM', pending, session_id .. ' ' .. id .. ' ' .. ask)\n",
    )
    yield of(
        script,
        "learns a rule once",
        "if known == rule then rule = '' end",
        "",
        seed=0,
    )
    yield of(
        script,
        "waits for every answer of a group",
        "group .. ':open', -1) == 0 then",
        "group .. ':open', -1) >= 0 then",
    )
    yield of(script, "awaits while anything is asked", "if left == 0 then", "if true then")
    yield of(script, "goes on when all is answered", "if left == 0 then", "if false then")


def _said_and_shown() -> Iterator[AgentMutation]:
    yield of(
        "steer_run",
        "says nothing to what is not under way",
        "if not live or ",
        "if ",
        seed=5,
    )
    yield of(
        "steer_run",
        "says it to the run that is meant",
        " or (run_id ~= '' and found[2] ~= run_id) then",
        " then",
        seed=2,
    )
    yield of("steer_run", "keeps what is said once", "if before[1] == token then", "if false then")
    yield of(
        "steer_run",
        "remembers what others have said since",
        "if #kept > REMEMBERED then",
        "if #kept > 1 then",
    )
    yield of(
        "show_run",
        "shows nothing after the end",
        "if redis.call('HGET', trace, 'state') ~= 'open' then",
        "if false then",
        ENDING,
        scene=byhand.shown_behind_the_end,
        prompts=[one(Plan(rounds=((0,), (0,))))],
    )


AGENT_MUTATIONS = (*agent_mutations(),)
