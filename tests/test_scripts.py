"""Every script: its header tells the truth, and it cannot fail after its first write."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgpack import packb
from redis.exceptions import ResponseError

from colony.keys import GROUP, Keys
from colony.link import Link
from colony.lua.reference import render
from colony.lua.registry import Call, Script, bind, scripts

KEYS = Keys("test")
PAGE = Path(__file__).parents[1] / "docs" / "scripts.md"

# What opens something new is refused whole where memory is short; all else drains.
OPENING = {
    "begin_run",
    "birth",
    "birth_marked",
    "fork_session",
    "make_session",
    "replay",
    "publish_topology",
}
WRITES = (
    "XADD XDEL XACK XCLAIM XTRIM HSET HSETNX HDEL HINCRBY ZADD ZREM ZREMRANGEBYSCORE RPUSH LPUSH "
    "SADD SREM SET DEL PEXPIRE PERSIST EXPIRE INCR"
).split()
LONG = {
    "begin_run": "the state of the session decides in the same step",
    "end_run": "what a run owes at its end is written in one step",
    "file_asks": "settles, writes what changes in the run and parks in one step",
    "finish_run": "settles, and ends the run or goes on with it in one step",
    "commit": "checks and settles many deliveries in one step",
    "settle": "inserts, records and claims the guard in one step",
    "store_delete": "the grammar of `where` is part of it",
    "store_update": "the grammar of `where` is part of it",
    "store_upsert": "insert and update change in one step",
    "take_allowance": "whatever a call may have to wait for is seen in one step",
}
EVERY = pytest.mark.parametrize("script", scripts().values(), ids=[*scripts()])


def code(script: Script) -> str:
    """The text without its comments."""
    lines = script.source.decode().splitlines()
    return "\n".join(line for line in lines if not re.match(r"\s*--|#!", line))


def section(script: Script, name: str) -> list[str]:
    header = script.source.decode().partition(f"-- {name}\n")[2]
    lines = header.splitlines()
    end = next(n for n, line in enumerate(lines) if not line.startswith("--   "))
    return [line.removeprefix("--   ") for line in lines[:end]]


def commands(script: Script) -> set[str]:
    return set(re.findall(r"redis\.call\('(\w+)'", code(script)))


# The header


@EVERY
def test_the_title_is_the_file_name(script: Script) -> None:
    first, title, *_ = script.source.decode().splitlines()

    assert first.startswith("#!lua")
    assert title.startswith(f"-- {script.name}: ")
    assert title.endswith(".")


@EVERY
@pytest.mark.parametrize("kind", ["KEYS", "ARGV"])
def test_keys_and_arguments_are_exactly_those_used(script: Script, kind: str) -> None:
    declared = script.keys if kind == "KEYS" else script.arguments
    text = code(script)
    fixed = [name for name in declared if name not in script.variadic]
    numbers = {int(n) for n in re.findall(rf"\b{kind}\[(\d+)\]", text)}
    computed = re.findall(rf"\b{kind}\[(?!\d+\])", text)

    assert {n for n in numbers if n <= len(fixed)} == set(range(1, len(fixed) + 1))
    assert all(n <= len(declared) for n in numbers)
    assert bool(computed) == (len(fixed) < len(declared))


@EVERY
def test_whatever_is_given_a_name_is_used(script: Script) -> None:
    text = code(script)

    for names in re.findall(r"^\s*local ([\w, ]+) =", text, re.MULTILINE):
        for name in names.split(", "):
            assert name == "_" or len(re.findall(rf"\b{name}\b", text)) > 1, name


@EVERY
def test_returns_lists_exactly_the_tokens_returned(script: Script) -> None:
    answers = re.findall(r"(?:return|answer\(|\band|\bor|=) ?\{ ?([^{},()]*)", code(script))
    tokens = {
        token for answer in answers for token in re.findall(r"(?<!== )(?<!~= )'(\w+)'", answer)
    }

    assert sorted(tokens) == sorted(script.returns)
    assert len(set(script.returns)) == len(script.returns)


@EVERY
def test_repeats_says_safe_or_why_not(script: Script) -> None:
    said = " ".join(section(script, "REPEATS"))

    assert re.match(r"safe: \w.{8,}|[a-z].{20,}", said)


@EVERY
def test_only_what_opens_something_is_refused_where_memory_is_short(script: Script) -> None:
    shebang = script.source.decode().splitlines()[0]

    if commands(script) & {*WRITES}:
        assert shebang == ("#!lua" if script.name in OPENING else "#!lua flags=allow-oom")
    else:
        assert shebang == "#!lua flags=no-writes"


def test_the_page_of_scripts_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "run: python -m colony.lua.reference > docs/scripts.md"


# The code


@EVERY
def test_no_command_walks_the_keyspace_and_no_error_is_swallowed(script: Script) -> None:
    assert not commands(script) & {"KEYS", "SCAN", "HSCAN", "SSCAN", "ZSCAN", "RANDOMKEY"}
    assert "pcall" not in code(script)
    assert not re.search(r"(?<!cmsgpack\.)unpack\(", code(script))


@EVERY
def test_no_key_is_built(script: Script) -> None:
    calls = re.findall(
        r"redis\.call\('(\w+)'(?:, ('(?:GROUPS|CONSUMERS|DELCONSUMER)'))?(?:, ([^,)]+))?",
        code(script),
    )

    for command, _, key in calls:
        assert re.fullmatch(r"[\w.]+|KEYS\[[^\]]+\]?", key) or command == "TIME", (command, key)


@EVERY
def test_no_answer_of_redis_is_taken_for_a_truth_value(script: Script) -> None:
    # 0 is true in Lua.
    assert not re.search(r"\bif (not )?redis\.call\([^()]*\) (then|and|or)", code(script))


@EVERY
def test_the_time_is_the_servers(script: Script) -> None:
    assert not {"now", "time", "at", "now_ms"} & {*script.arguments}


@EVERY
def test_a_script_is_short_or_there_is_a_reason(script: Script) -> None:
    lines = [line for line in code(script).splitlines() if line.strip()]

    assert (len(lines) > 60) == (script.name in LONG)


# What cannot fail after its first write


async def _trace(link: Link, **fields: Any) -> str:
    flat: list[Any] = []
    for name, value in {"state": "open", "live": 1, "revivals": 0, **fields}.items():
        flat += [name, value]
    await link.command("HSET", KEYS.trace("t"), *flat)
    return KEYS.trace("t")


async def _pending(link: Link, source: str) -> str:
    await link.command("XGROUP", "CREATE", source, GROUP, "0", "MKSTREAM")
    entry = await link.command("XADD", source, "*", "head", "h", "body", "b")
    await link.command("XREADGROUP", "GROUP", GROUP, "worker-0", "STREAMS", source, ">")
    return str(entry.decode())


async def _adopt(link: Link) -> Call:
    source = KEYS.cell("/a")
    await _pending(link, source)
    await link.command("XGROUP", "DELCONSUMER", source, GROUP, "worker-0")
    return bind(
        "adopt",
        source=source,
        repairs=KEYS.repairs(),
        group=GROUP,
        consumer="nobody",
        start="-",
        count=10,
        idle_ms=1000,
    )


async def _attempt(link: Link) -> Call:
    trace = await _trace(link)
    attempts = KEYS.attempts("t")
    await link.command("HSET", attempts, "e", "1 before")
    return bind("attempt", trace=trace, attempts=attempts, envelope="e", token="now")


async def _announce(link: Link) -> Call:
    await link.command("HSET", KEYS.announced(), "version", 3, "/a", "[]")
    return bind("announce", announced=KEYS.announced(), path="/a", tools="[1]")


async def _birth(link: Link) -> Call:
    await link.command("SET", KEYS.blob("b"), "content", "PX", 100_000)
    return bind(
        "birth",
        guard=KEYS.guard("g"),
        trace=KEYS.trace("t"),
        open=KEYS.open_traces(),
        deadlines=KEYS.deadlines(),
        stream=KEYS.router(),
        belongings=KEYS.belongings("t"),
        order=KEYS.order("s"),
        blobs=[KEYS.blob("b")],
        trace_id="t",
        digest="d",
        keep_ms=1000,
        head="head",
        body="body",
        entry="/a",
        session="s",
        timeout_ms=1000,
    )


async def _birth_marked(link: Link) -> Call:
    await link.command("SET", KEYS.blob("b"), "content", "PX", 100_000)
    await link.command("HSET", KEYS.marks("/a"), "mark:m", 4, "births:m", 3)
    return bind(
        "birth_marked",
        marks=KEYS.marks("/a"),
        trace=KEYS.trace("t"),
        open=KEYS.open_traces(),
        stream=KEYS.router(),
        belongings=KEYS.belongings("t"),
        order=KEYS.order("s"),
        blobs=[KEYS.blob("b")],
        name="m",
        mark=5,
        after=4,
        trace_id="t",
        head="head",
        body="body",
        entry="/a",
        session="s",
    )


async def _bury(link: Link) -> Call:
    return bind(
        "bury",
        source=KEYS.cell("/a"),
        dead=KEYS.dead(),
        repairs=KEYS.repairs(),
        group=GROUP,
        entry=await _pending(link, KEYS.cell("/a")),
        code="c",
        target="/a",
        facts="f",
        head="head",
        body="body",
    )


async def _commit(link: Link) -> Call:
    await link.command("SET", KEYS.blob("b"), "content", "PX", 100_000)
    trace = await _trace(link)
    entry = await _pending(link, KEYS.cell("/a"))
    published, records, letters = [1, "head", "body"], [1, "record"], [1, *"cdefgh"]
    return bind(
        "commit",
        quiet=KEYS.quiet(),
        dead=KEYS.dead(),
        repairs=KEYS.repairs(),
        keys=[
            KEYS.cell("/a"),
            trace,
            KEYS.log("t"),
            KEYS.outputs("t"),
            KEYS.belongings("t"),
            KEYS.router(),
            KEYS.blob("b"),
        ],
        group=GROUP,
        steps=1,
        parts=[entry, "t", "head", *published, *records, *letters, 1, "kept", 1, ""],
    )


async def _commit_last(link: Link) -> Call:
    call = bind(
        "commit",
        quiet=KEYS.quiet(),
        dead=KEYS.dead(),
        repairs=KEYS.repairs(),
        keys=[
            KEYS.cell("/a"),
            await _trace(link),
            KEYS.log("t"),
            KEYS.outputs("t"),
            KEYS.belongings("t"),
        ],
        group=GROUP,
        steps=1,
        parts=[await _pending(link, KEYS.cell("/a")), "t", "head", 0, 0, 0, 0, 0, ""],
    )
    return call


RUN_KEYS = {
    "run": KEYS.run("t"),
    "session": KEYS.agent_session("s"),
    "events": KEYS.session_events("s"),
    "history": KEYS.history("s"),
    "steers": KEYS.steers("s"),
}


def _changes(**more: Any) -> bytes:
    """What changes in a run, one of everything."""
    changes = {
        "channel": KEYS.session_live("s"),
        "turn": "0",
        "once": [],
        "fields": [["run", "phase", "tools"], ["session", "title", "t"]],
        "counts": [["run", "turns", 1], ["session", "input_tokens", 3]],
        "rows": ["{}"],
        "steers": 1,
        "events": [["turn.start", "0", "{}", 1], ["tool.progress", "0", "{}", 0]],
        **more,
    }
    packed: bytes = packb(changes)
    return packed


async def _run(link: Link) -> None:
    await link.command("HSET", KEYS.run("t"), "seq", 1, "turns", 1, "keep_ms", 100_000)
    await link.command("HSET", KEYS.agent_session("s"), "state", "running")
    await link.command("XADD", KEYS.session_events("s"), "*", "run", "t")
    await link.command("RPUSH", KEYS.history("s"), "{}")


async def _commit_of_a_run(link: Link) -> Call:
    await _run(link)
    await link.command("RPUSH", KEYS.steers("s"), "a", "b")
    return bind(
        "commit",
        quiet=KEYS.quiet(),
        dead=KEYS.dead(),
        repairs=KEYS.repairs(),
        keys=[
            KEYS.cell("/a"),
            await _trace(link),
            KEYS.log("t"),
            KEYS.outputs("t"),
            KEYS.belongings("t"),
            KEYS.router(),
            *RUN_KEYS.values(),
        ],
        group=GROUP,
        steps=1,
        parts=[
            *(await _pending(link, KEYS.cell("/a")), "t", "head", 1, "head", "body"),
            *(0, 0, 0, 0, _changes()),
        ],
    )


async def _file_asks(link: Link) -> Call:
    await _run(link)
    return bind(
        "file_asks",
        source=KEYS.cell("/a"),
        trace=await _trace(link),
        quiet=KEYS.quiet(),
        repairs=KEYS.repairs(),
        **RUN_KEYS,
        asks=KEYS.asks("t"),
        deadlines=KEYS.ask_deadlines(),
        group=GROUP,
        entry=await _pending(link, KEYS.cell("/a")),
        trace_id="t",
        changes=_changes(),
        parked="e",
        envelope=packb([KEYS.cell("/a"), "head", "body"]),
        asked=packb([["ask", "{}", 5, "s t ask"]]),
    )


async def _file_asks_of_an_ended_run(link: Link) -> Call:
    call = await _file_asks(link)
    await _trace(link, state="ended", cause="cancelled")
    return call


async def _finish_run(link: Link) -> Call:
    await _run(link)
    return bind(
        "finish_run",
        source=KEYS.cell("/a"),
        trace=await _trace(link),
        open=KEYS.open_traces(),
        ended=KEYS.ended_traces(),
        deadlines=KEYS.deadlines(),
        quiet=KEYS.quiet(),
        repairs=KEYS.repairs(),
        router=KEYS.router(),
        **RUN_KEYS,
        group=GROUP,
        entry=await _pending(link, KEYS.cell("/a")),
        trace_id="t",
        changes=_changes(steers=0),
        state="completed",
        result=(
            '{"stop": "end_turn", "error": "", "retry_disposition": "unknown", '
            '"stream_progress": "complete"}'
        ),
        outputs=packb([["head", "body"]]),
        session_id="s",
        asks=KEYS.asks("t"),
        pending=KEYS.ask_deadlines(),
    )


SESSION_KEYS = {
    "session": KEYS.agent_session("s"),
    "events": KEYS.session_events("s"),
    "history": KEYS.history("s"),
    "steers": KEYS.steers("s"),
}
LISTS = {"sessions": KEYS.agent_sessions(""), "owned": KEYS.agent_sessions("o")}


async def _begin_run(link: Link) -> Call:
    await _run(link)
    await link.command("HSET", KEYS.agent_session("s"), "state", "idle")
    await link.command("SET", KEYS.blob("b"), "content", "PX", 100_000)
    return bind(
        "begin_run",
        guard=KEYS.guard("g"),
        trace=KEYS.trace("n"),
        open=KEYS.open_traces(),
        deadlines=KEYS.deadlines(),
        stream=KEYS.router(),
        belongings=KEYS.belongings("n"),
        run=KEYS.run("n"),
        **SESSION_KEYS,
        **LISTS,
        blobs=[KEYS.blob("b")],
        trace_id="n",
        digest="d",
        keep_ms=100_000,
        head="head",
        body="body",
        entry="/a",
        timeout_ms=5,
        session_id="s",
        kind="prompt",
        fields=packb([["agent", "/a"]]),
        init="{}",
        again=packb({"precommit": "{}", "visible": "{}"}),
        channel=KEYS.session_live("s"),
        log_ms=5,
        listed="s o",
    )


async def _end_run(link: Link) -> Call:
    await _run(link)
    await link.command("HSET", KEYS.run("t"), "open_calls", '[["c", "tool"]]')
    await link.command("RPUSH", KEYS.steers("s"), "wait")
    await link.command(
        "HSET", KEYS.asks("t"), "a1", '{"group": "e"}', "group:e:open", 1, "group:e:parked", "x"
    )
    await link.command("ZADD", KEYS.ask_deadlines(), 5, "s t a1")
    return bind(
        "end_run",
        trace=await _trace(link, agent_session="s"),
        open=KEYS.open_traces(),
        ended=KEYS.ended_traces(),
        deadlines=KEYS.deadlines(),
        quiet=KEYS.quiet(),
        run=KEYS.run("t"),
        **SESSION_KEYS,
        asks=KEYS.asks("t"),
        pending=KEYS.ask_deadlines(),
        run_id="t",
        session_id="s",
        cause="cancelled",
        reason="requested",
        disposition="unknown",
        interrupted="interrupted",
        channel=KEYS.session_live("s"),
        only="",
    )


async def _resolve_ask(link: Link) -> Call:
    await _run(link)
    parked = packb([KEYS.cell("/a"), "head", "body"])
    await link.command(
        "HSET",
        KEYS.asks("t"),
        *("a1", '{"group": "e"}', "group:e:open", 1, "group:e:parked", parked),
    )
    await link.command("ZADD", KEYS.ask_deadlines(), 5, "s t a1")
    return bind(
        "resolve_ask",
        trace=await _trace(link, agent_session="s"),
        run=KEYS.run("t"),
        session=KEYS.agent_session("s"),
        events=KEYS.session_events("s"),
        asks=KEYS.asks("t"),
        pending=KEYS.ask_deadlines(),
        stream=KEYS.cell("/a"),
        run_id="t",
        session_id="s",
        ask_id="a1",
        token="token",
        decision='{"verdict": "allow_once"}',
        kind="approval",
        payload="{}",
        rule="bash(ls)",
        channel=KEYS.session_live("s"),
    )


async def _make_session(link: Link) -> Call:
    return bind(
        "make_session",
        session=KEYS.agent_session("s"),
        history=KEYS.history("s"),
        **LISTS,
        fields=packb([["agent", "/a"]]),
        rows=packb(["{}"]),
        listed="s o",
        keep_ms=100_000,
    )


async def _fork_session(link: Link) -> Call:
    await _run(link)
    return bind(
        "fork_session",
        origin=KEYS.agent_session("s"),
        said=KEYS.history("s"),
        session=KEYS.agent_session("f"),
        history=KEYS.history("f"),
        **LISTS,
        fields=packb([["agent", "/a"]]),
        rows=1,
        listed="f o",
        keep_ms=100_000,
    )


async def _show_run(link: Link) -> Call:
    await _run(link)
    return bind(
        "show_run",
        trace=await _trace(link),
        journal=KEYS.journal("t"),
        run=KEYS.run("t"),
        field="e:visible",
    )


async def _steer_run(link: Link) -> Call:
    await _run(link)
    return bind(
        "steer_run",
        session=KEYS.agent_session("s"),
        steers=KEYS.steers("s"),
        run_id="",
        text="wait",
        token="token",
    )


async def _delete_session(link: Link) -> Call:
    await _run(link)
    await link.command("HSET", KEYS.agent_session("s"), "state", "idle")
    await link.command("ZADD", KEYS.agent_sessions(""), 1, "s o")
    return bind("delete_session", **SESSION_KEYS, **LISTS, listed="s o")


async def _finish_run_that_is_steered(link: Link) -> Call:
    call = await _finish_run(link)
    await link.command("RPUSH", KEYS.steers("s"), "wait")
    return call


async def _commit_of_a_deleted_entry(link: Link) -> Call:
    call = await _commit_last(link)
    await link.command("XDEL", KEYS.cell("/a"), call.arguments[2])
    return call


async def _correct(link: Link) -> Call:
    return bind(
        "correct",
        trace=await _trace(link, live=2, steps=3),
        quiet=KEYS.quiet(),
        dead=KEYS.dead(),
        repairs=KEYS.repairs(),
        trace_id="t",
        steps=3,
        live=2,
        found=0,
        code="c",
        facts="f",
        head="head",
        empty="empty",
    )


async def _dismiss(link: Link) -> Call:
    entry = await _pending(link, KEYS.quiet())
    return bind("dismiss", quiet=KEYS.quiet(), group=GROUP, entries=[entry])


async def _end_quiet(link: Link) -> Call:
    return bind(
        "end_quiet",
        trace=await _trace(link, state="quiet", live=0, outputs=1, dead=0, session="s"),
        open=KEYS.open_traces(),
        ended=KEYS.ended_traces(),
        deadlines=KEYS.deadlines(),
        **_turn("s"),
        trace_id="t",
    )


async def _end_quiet_with_an_heir(link: Link) -> Call:
    await _wait(link, "t", "heir")
    return await _end_quiet(link)


async def _end_trace(link: Link) -> Call:
    return bind(
        "end_trace",
        trace=await _trace(link, state="quiet", live=0),
        open=KEYS.open_traces(),
        ended=KEYS.ended_traces(),
        deadlines=KEYS.deadlines(),
        quiet=KEYS.quiet(),
        **_turn(""),
        trace_id="t",
        cause="failed",
        reason="why",
    )


async def _end_trace_with_an_heir(link: Link) -> Call:
    await _wait(link, "t", "heir")
    return ended_by_hand(await _trace(link, session="s", live=2))


async def _end_trace_that_waits(link: Link) -> Call:
    await _wait(link, "first", "t")
    return ended_by_hand(await _trace(link, session="s"))


async def _end_trace_that_is_gone(link: Link) -> Call:
    await _wait(link, "t", "heir")
    return ended_by_hand(KEYS.trace("t"))


def ended_by_hand(trace: str) -> Call:
    return bind(
        "end_trace",
        trace=trace,
        open=KEYS.open_traces(),
        ended=KEYS.ended_traces(),
        deadlines=KEYS.deadlines(),
        quiet=KEYS.quiet(),
        **_turn("s"),
        trace_id="t",
        cause="cancelled",
        reason="why",
    )


def _turn(session: str) -> dict[str, str]:
    """The keys and the argument of an end by which it passes the turn on."""
    return {
        "order": KEYS.order(session),
        "parked": KEYS.parked(),
        "waiting": KEYS.waiting(),
        "router": KEYS.router(),
        "session": session,
    }


async def _wait(link: Link, first: str, *others: str) -> None:
    """Traces of the session `s`, of which all but the first have an envelope parked."""
    for place, trace in enumerate((first, *others), start=1):
        await link.command("ZADD", KEYS.order("s"), place, trace)
    for trace in others:
        await link.command("HSET", KEYS.parked(), trace, packb([["head", "body"]]))
        await link.command("ZINCRBY", KEYS.waiting(), 1, "s")


async def _forget_consumers(link: Link) -> Call:
    source = KEYS.cell("/a")
    await link.command("XGROUP", "CREATE", source, GROUP, "0", "MKSTREAM")
    await link.command("XGROUP", "CREATECONSUMER", source, GROUP, "worker-7")
    return bind(
        "forget_consumers",
        source=source,
        repairs=KEYS.repairs(),
        slots=[KEYS.slots("router"), KEYS.slots("worker")],
        group=GROUP,
        idle_ms=-1,
        roles=["router", "worker"],
    )


async def _hand_back(link: Link) -> Call:
    await link.command("HSET", KEYS.attempts("t"), "e", "2 token")
    return bind(
        "hand_back",
        source=KEYS.cell("/a"),
        attempts=KEYS.attempts("t"),
        repairs=KEYS.repairs(),
        group=GROUP,
        consumer="worker-0",
        entry=await _pending(link, KEYS.cell("/a")),
        idle_ms=1000,
        envelope="e",
        token="token",
    )


async def _hand_back_of_a_deleted_entry(link: Link) -> Call:
    call = await _hand_back(link)
    await link.command("XDEL", KEYS.cell("/a"), call.arguments[2])
    return call


async def _heads(link: Link) -> Call:
    source = KEYS.cell("/a")
    await _pending(link, source)
    return bind("heads", source=source, start="-", last="+", count=10)


async def _keep_blob(link: Link) -> Call:
    return bind("keep_blob", blob=KEYS.blob("b"), content="content", keep_ms=100_000, offset=0)


async def _keep_blob_again(link: Link) -> Call:
    await link.command("SET", KEYS.blob("b"), "content", "PX", 50_000)
    return bind("keep_blob", blob=KEYS.blob("b"), content="content", keep_ms=100_000, offset=0)


async def _keep_blob_next_piece(link: Link) -> Call:
    await link.command("SET", KEYS.blob("b"), "one", "PX", 50_000)
    return bind("keep_blob", blob=KEYS.blob("b"), content="two", keep_ms=100_000, offset=3)


async def _keep_blob_without_its_beginning(link: Link) -> Call:
    return bind("keep_blob", blob=KEYS.blob("b"), content="two", keep_ms=100_000, offset=3)


async def _lease_slot(link: Link) -> Call:
    return bind("lease_slot", slots=KEYS.slots("worker"), token="t", lease_ms=1000, about="{}")


async def _lease_source(link: Link) -> Call:
    return bind("lease_source", lease=KEYS.lease("/a"), token="t", lease_ms=1000)


async def _publish_topology(link: Link) -> Call:
    return bind("publish_topology", topology=KEYS.topology(), expected=0, digest="d", document="{}")


async def _raise_mark(link: Link) -> Call:
    return bind("raise_mark", marks=KEYS.marks("/a"), name="m", mark=5, after="")


async def _reclaim(link: Link) -> Call:
    source = KEYS.cell("/a")
    gone = await _pending(link, source)
    await link.command("XADD", source, "*", "head", "h", "body", "b")
    await link.command("XREADGROUP", "GROUP", GROUP, "worker-0", "STREAMS", source, ">")
    await link.command("XDEL", source, gone)
    return bind(
        "reclaim",
        source=source,
        repairs=KEYS.repairs(),
        group=GROUP,
        consumer="worker-1",
        idle_ms=0,
        cursor="0-0",
        count=10,
    )


async def _record(link: Link) -> Call:
    await link.command("HSET", KEYS.journal("t"), "other", "x")
    trace = await _trace(link)
    return bind("record", trace=trace, journal=KEYS.journal("t"), field="f", value="v")


async def _record_again(link: Link) -> Call:
    await link.command("HSET", KEYS.journal("t"), "f", "x")
    trace = await _trace(link)
    return bind("record", trace=trace, journal=KEYS.journal("t"), field="f", value="v")


async def _record_request(link: Link, before: str = "") -> Call:
    await link.command("HSET", KEYS.requests("t"), ">other", "x")
    return bind(
        "record_request",
        trace=await _trace(link),
        requests=KEYS.requests("t"),
        name="m:1",
        facts="facts",
        thread="/llm q",
        before=before,
    )


async def _record_request_behind(link: Link) -> Call:
    return await _record_request(link, "m:0")


async def _record_request_again(link: Link) -> Call:
    await link.run(await _record_request(link))
    return await _record_request(link)


async def _release_source(link: Link) -> Call:
    await link.command("SET", KEYS.lease("/a"), "t", "PX", 100_000)
    return bind("release_source", lease=KEYS.lease("/a"), token="t")


async def _release_slot(link: Link) -> Call:
    await link.command("HSET", KEYS.slots("worker"), 0, "t 9999999999999 {}")
    return bind("release_slot", slots=KEYS.slots("worker"), slot=0, token="t")


async def _renew(link: Link) -> Call:
    await link.command("HSET", KEYS.slots("worker"), 0, "t 9999999999999 {}")
    source = KEYS.cell("/a")
    entry = await _pending(link, source)
    await link.command("XCLAIM", source, GROUP, "worker-0", 0, entry, "IDLE", 5000, "JUSTID")
    return bind(
        "renew",
        slots=KEYS.slots("worker"),
        source=KEYS.cell("/a"),
        repairs=KEYS.repairs(),
        slot=0,
        token="t",
        group=GROUP,
        consumer="worker-0",
        entries=[entry],
    )


async def _renew_of_a_deleted_entry(link: Link) -> Call:
    call = await _renew(link)
    await link.command("XDEL", KEYS.cell("/a"), call.arguments[4])
    return call


async def _park(link: Link) -> Call:
    await _wait(link, "first", "t")
    await _trace(link, session="s", live=2)
    return await parking(link)


async def _park_without_a_place(link: Link) -> Call:
    await _trace(link)
    return await parking(link)


async def _park_of_a_deleted_entry(link: Link) -> Call:
    call = await _park(link)
    await link.command("XDEL", KEYS.router(), call.arguments[1])
    return call


async def parking(link: Link) -> Call:
    return bind(
        "park",
        source=KEYS.router(),
        trace=KEYS.trace("t"),
        order=KEYS.order("s"),
        parked=KEYS.parked(),
        waiting=KEYS.waiting(),
        repairs=KEYS.repairs(),
        group=GROUP,
        entry=await _pending(link, KEYS.router()),
        trace_id="t",
        session="s",
        head="head",
        body="body",
    )


async def _replay(link: Link) -> Call:
    return bind(
        "replay",
        first=KEYS.replay("1-1"),
        trace=KEYS.trace("gone"),
        fresh=KEYS.trace("fresh"),
        open=KEYS.open_traces(),
        stream=KEYS.router(),
        order=KEYS.order("s"),
        letter="1-1",
        trace_id="gone",
        fresh_id="fresh",
        entry="/a",
        head="head",
        fresh_head="fresh head",
        body="body",
        session="s",
        keep_ms=1000,
    )


async def _replay_into_living(link: Link) -> Call:
    trace = await _trace(link)
    call = await _replay(link)
    return Call(call.script, (call.keys[0], trace, *call.keys[2:]), call.arguments)


async def _retire(link: Link) -> Call:
    await link.command("HSET", KEYS.journal("t"), "f", "v")
    return bind(
        "retire",
        trace=await _trace(link, state="ended", live=0),
        keys=[KEYS.journal("t")],
        keep_ms=1000,
    )


async def _revive(link: Link) -> Call:
    return bind(
        "revive",
        trace=await _trace(link, state="quiet", live=0),
        stream=KEYS.router(),
        revival=1,
        told=0,
        head="head",
        body="body",
    )


async def _settle_allowance(link: Link) -> Call:
    await link.run(await _take_allowance(link))
    return bind(
        "settle_allowance",
        budget=KEYS.budget("b"),
        token="t",
        cost=70,
        outcome="limited",
        pause_ms="",
        failures=5,
        open_ms=30_000,
    )


async def _take_allowance(link: Link) -> Call:
    return bind(
        "take_allowance",
        budget=KEYS.budget("b"),
        token="t",
        lease_ms=1000,
        cost=100,
        requests=1,
        tokens=100,
        flights=1,
    )


async def _update_state(link: Link) -> Call:
    await link.command("HSET", KEYS.state("/a", "trace", "t"), "gone", "1", "kept", "2")
    return bind(
        "update_state",
        trace=await _trace(link),
        belongings=KEYS.belongings("t"),
        state=KEYS.state("/a", "trace", "t"),
        lasting=0,
        removed=1,
        leaves=["gone", "new", "3"],
    )


async def _write_off(link: Link) -> Call:
    entry = await _pending(link, KEYS.cell("/a"))
    await link.command("XDEL", KEYS.cell("/a"), entry)
    return bind(
        "write_off",
        source=KEYS.cell("/a"),
        repairs=KEYS.repairs(),
        group=GROUP,
        entries=[entry],
    )


Case = Callable[[Link], Awaitable[Call]]
CASES: dict[str, Case] = {
    name.removeprefix("_"): case
    for name, case in sorted(globals().items())
    if name.startswith("_") and getattr(case, "__annotations__", {}).get("return") is Call
}
EACH_CASE = pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.close()


@pytest.fixture
async def limited(link: Link, redis_url: str) -> AsyncIterator[Link]:
    """A connection of the user `limited`, who may do everything unless a test says otherwise."""
    await link.command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", "+@all")
    address = urlsplit(redis_url)
    limited = Link(address._replace(netloc=f"limited:any@{address.netloc}").geturl())
    await limited.open()
    yield limited
    await limited.close()
    await link.command("ACL", "DELUSER", "limited")


async def fresh(link: Link, case: Case) -> Call:
    await link.command("FLUSHALL")
    return await case(link)


async def dump(link: Link) -> dict[bytes, tuple[bytes, bool]]:
    """Every key with its value, and whether it expires."""
    return {
        key: (await link.command("DUMP", key), await link.command("PTTL", key) > 0)
        for key in await link.command("KEYS", "*")
    }


def test_every_script_but_those_of_the_store_has_a_case() -> None:
    covered = {name for name in scripts() if any(case.startswith(name) for case in CASES)}
    # One that looks into no key has none of the ways to fail that are tried here.
    others = {"settle", "permitted"}
    elsewhere = {name for name in scripts() if name.startswith("store_") or name in others}

    assert covered | elsewhere == {*scripts()}


@EACH_CASE
async def test_a_case_changes_something_and_answers_a_token_of_its_header(
    link: Link, case: Case
) -> None:
    call = await fresh(link, case)
    before = await dump(link)

    answer = await link.run(call)

    token = answer[0][0] if call.script.name == "commit" else answer[0]
    assert token.decode() in call.script.returns
    kept = (_keep_blob_again, _keep_blob_without_its_beginning)
    unchanged = case in (_heads, _record_again, _record_request_behind, *kept)
    assert (await dump(link) != before) != unchanged


@EACH_CASE
async def test_a_key_of_the_wrong_type_changes_nothing(link: Link, case: Case) -> None:
    call = await fresh(link, case)
    # Whatever belongs to a trace may expire, of any type.
    count = 1 if call.script.name == "retire" else len(call.keys)
    for position in range(count):
        call = await fresh(link, case)
        key = str(call.keys[position])
        text = ":blob:" in key or key.endswith((":replay", ":lease"))
        await link.command("DEL", key)
        await link.command(*(("RPUSH", key, "x") if text else ("SET", key, "x")))
        before = await dump(link)

        with pytest.raises(ResponseError):
            await link.run(call)

        assert await dump(link) == before, key


@EACH_CASE
async def test_a_missing_key_or_argument_changes_nothing(link: Link, case: Case) -> None:
    call = await fresh(link, case)
    before = await dump(link)
    arguments = call.arguments
    short = [
        Call(call.script, call.keys, arguments[:n] + arguments[n + 1 :])
        for n in range(len(arguments))
    ]
    fixed = len(call.script.keys) - len({*call.script.keys} & call.script.variadic)
    short += [Call(call.script, call.keys[:n], arguments) for n in range(fixed)]

    for wrong in short:
        with pytest.raises(ResponseError):
            await link.run(wrong)

        assert await dump(link) == before


@EACH_CASE
async def test_a_command_that_is_denied_changes_nothing(
    link: Link, limited: Link, case: Case
) -> None:
    call = await fresh(link, case)
    denied: list[str] = []
    for command in sorted(commands(call.script)):
        call = await fresh(link, case)
        await link.command("ACL", "SETUSER", "limited", "+@all", f"-{command.lower()}")
        before = await dump(link)
        try:
            await limited.run(call)
        except ResponseError:
            denied.append(command)
            assert await dump(link) == before, command

    # What only another branch needs may be denied unnoticed.
    assert "TYPE" in denied
    assert {*denied} & {*WRITES} or case in (_heads, _record_again)
