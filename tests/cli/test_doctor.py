"""`colony doctor`: what works, what is missing, and that it says so line by line."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from colony import doctor
from colony.doctor import Diagnosis, commands, examine
from colony.embedded import url_in
from colony.host import Host
from colony.link import Link
from colony.testing.model_server import ModelServer
from colony.testing.telegram_server import TelegramServer
from colony.topology.load import load
from workers.sink import Sink


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(redis_url)
    yield link
    await link.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await link.close()


def failed(found: list[dict[str, str]]) -> dict[str, str]:
    return {line["what"]: line["found"] for line in found if line["state"] == "failed"}


def write_cell(tree: Path, name: str, kind: str, **params: object) -> None:
    (tree / "main" / name).mkdir(exist_ok=True)
    config = {"cell": {"type": kind}, "params": params}
    (tree / "main" / name / "config.json").write_text(json.dumps(config))


def test_a_sound_tree_on_a_sound_server_ends_with_0(colony, tree: Path) -> None:
    found = colony.json("doctor", str(tree))

    assert failed(found) == {}
    lines = {line["what"]: line["found"] for line in found}
    assert lines["tree"] == "3 cells, nothing to find"
    assert lines["ACL"] == f"this user may do all {len(commands())} commands"
    assert "nothing yet" in lines["published"]
    assert lines["/greet (code)"] == "starts"


def test_it_prints_a_line_for_each_thing_and_a_sum(colony, tree: Path) -> None:
    printed = colony("doctor", str(tree)).stdout.splitlines()

    assert "ok      /out (sink): starts" in printed
    assert printed[-1].endswith(" ok")


@pytest.mark.parametrize(("count", "told"), [(1, " ok, 1 warning"), (2, " ok, 2 warnings")])
def test_the_sum_is_told_as_one_says_it(colony, tree: Path, count: int, told: str) -> None:
    for number in range(count):
        write_cell(tree, f"loose-{number}", "sink")

    assert colony("doctor", str(tree)).stdout.splitlines()[-1].endswith(told)


def test_what_is_published_and_who_runs_it_is_told(colony, tree: Path) -> None:
    colony("apply", str(tree))
    same = {line["what"]: line for line in colony.json("doctor", str(tree))}
    write_cell(tree, "more", "sink")
    other = {line["what"]: line for line in colony.json("doctor", str(tree))}

    assert same["published"]["state"] == "ok"
    assert "no worker is running" in same["running"]["found"]
    assert other["published"]["state"] == "warning"
    assert "another tree" in other["published"]["found"]


def test_a_cell_that_cannot_work_here_is_named_and_the_others_are_tried(colony, tree: Path) -> None:
    write_cell(tree, "files", "file", base_path="/nowhere/at/all")

    found = colony.json("doctor", str(tree), status=1)

    assert "not a folder on this host" in failed(found)["/files"]
    assert "/greet (code)" in {line["what"] for line in found}


def test_what_is_wrong_with_the_tree_is_told_first(colony, tree: Path) -> None:
    (tree / "main" / "greet" / "config.json").write_text('{"cell": {"type": "cod"}}')

    found = colony.json("doctor", str(tree), status=1)

    assert found[0]["state"] == "failed"
    assert found[0]["what"] == "main/greet/config.json $.cell.type"


async def test_a_server_that_evicts_is_told(link: Link, colony, tree: Path) -> None:
    await link.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    found = await asyncio.to_thread(colony.json, "doctor", str(tree), status=1)

    assert "would evict work" in failed(found)["server"]


async def test_commands_a_user_may_not_give_are_named(
    link: Link, colony, tree: Path, redis_url: str
) -> None:
    rules = ("reset", "on", ">secret", "~*", "&*", "+@all", "-xadd", "-xgroup|create")
    await link.command("ACL", "SETUSER", "narrow", *rules)
    address = urlsplit(redis_url)
    url = address._replace(netloc=f"narrow:secret@{address.netloc}").geturl()

    arguments = ("doctor", str(tree), "--redis", url)
    found = failed(await asyncio.to_thread(colony.json, *arguments, status=1))

    assert found["ACL"] == "this user may not: XADD, XGROUP CREATE"
    await link.command("ACL", "DELUSER", "narrow")


def test_a_server_that_is_away_is_told(colony, tree: Path) -> None:
    found = colony.json("doctor", str(tree), "--redis", "redis://127.0.0.1:1", status=1)

    assert "server_unavailable" in failed(found)["server"]


def test_without_a_server_it_brings_one_for_itself(colony, tree: Path, short: Path) -> None:
    without = type(colony)({"COLONY_DATA": str(short / "none")})

    found = without.json("doctor", str(tree))
    assert failed(found) == {}
    [told] = [line["found"] for line in found if "of its own" in line["found"]]
    assert "no server runs for the colony 'colony'" in told
    assert not {"published", "running", "jobs"} & {line["what"] for line in found}
    assert not (short / "none").exists()


async def test_no_process_gives_a_command_that_is_not_asked_about(up) -> None:
    await asyncio.to_thread(up, "send", "/greet", "you", "--wait", "10")
    link = Link(url_in(Path(up.env["COLONY_DATA"])) or "")
    stats = (await link.command("INFO", "commandstats")).decode().splitlines()
    await link.close()
    given = {line.partition(":")[0].removeprefix("cmdstat_").upper() for line in stats[1:]}

    # Of the connection itself, and of whoever runs the server.
    own = {"EVAL", "EVALSHA", "CLIENT|SETINFO", "HELLO", "AUTH", "SELECT", "CONFIG|SET", "SHUTDOWN"}
    assert {name.replace("|", " ") for name in given - own} <= commands()


def test_each_model_is_asked_for_one_token(colony, tree: Path) -> None:
    with ModelServer([{"text": "pong"}]) as server:
        params = {"provider": "openai", "model": "m", "base_url": server.base_url}
        write_cell(tree, "planner", "llm", **params)

        lines = {line["what"]: line["found"] for line in colony.json("doctor", str(tree))}

        [request] = server.requests
        assert request.body["max_tokens"] == 1
        assert lines["/planner (llm)"].startswith(f"m at {server.base_url} answers in")


def test_a_model_that_refuses_the_key_is_told_and_the_key_is_not(colony, tree: Path) -> None:
    refusal = {"error": {"message": "wrong key sk-secret", "type": "invalid_api_key"}}
    with ModelServer([{"status": 401, "body": refusal}]) as server:
        params = {"provider": "openai", "model": "m", "base_url": server.base_url}
        write_cell(tree, "planner", "llm", **params, api_key="sk-secret")

        found = failed(colony.json("doctor", str(tree), status=1))

    assert "answers auth: wrong key" in found["/planner (llm)"]
    assert "sk-secret" not in json.dumps(found)


def test_that_nobody_takes_jobs_is_told_where_a_cell_runs_as_one(colony, tree: Path) -> None:
    config = json.loads((tree / "main" / "greet" / "config.json").read_text())
    config["cell"]["isolation"] = "job"
    (tree / "main" / "greet" / "config.json").write_text(json.dumps(config))

    lines = {line["what"]: line for line in colony.json("doctor", str(tree))}
    colony("apply", str(tree))

    assert lines["jobs"]["state"] == "warning"
    assert "`colony jobs` is one" in lines["jobs"]["found"]
    assert "jobs  no process takes those of the queue colony-colony" in colony("status").stdout
    assert "`colony jobs` is one" in colony.json("status")["jobs"]


async def diagnoses(tree: Path, url: str) -> dict[str, Diagnosis]:
    loaded = load(tree, environment={})
    found = examine(loaded, url, "colony", root=tree, environment={}, rq_url=url)
    return {diagnosis.what: diagnosis async for diagnosis in found}


async def test_a_cell_that_never_starts_keeps_the_others_from_nothing(
    redis_url: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(self: Sink, host: Host) -> None:
        await asyncio.Event().wait()

    monkeypatch.syspath_prepend(str(tree))
    monkeypatch.setattr(doctor, "PROBE_S", 0.1)
    monkeypatch.setattr(Sink, "start", start)
    found = await diagnoses(tree, redis_url)

    assert found["/out"].state == "failed"
    assert "has not started" in found["/out"].found
    assert found["/greet (code)"].state == "ok"


async def test_nothing_is_written(
    link: Link, tree: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tree))
    with TelegramServer() as bot, ModelServer([{"text": "pong"}]) as model:
        place = {"platform": "telegram", "bot_token": bot.token, "base_url": bot.base_url}
        write_cell(tree, "bot", "proxy", **place)
        given = {"provider": "openai", "model": "m", "base_url": model.base_url}
        write_cell(tree, "planner", "llm", **given)
        write_cell(tree, "clock", "timer", schedules={"s": {"cron": "* * * * * *", "text": "x"}})
        write_cell(tree, "rows", "store", schema={"t": {"a": "text"}})
        mcp = [str(Path(sys.executable).parent / "mcp-server-time")]
        write_cell(tree, "time", "mcp", command=mcp)
        found = await diagnoses(tree, redis_url)

        assert [line for line in found.values() if line.state == "failed"] == []
        assert found["/time (mcp)"].found == "connected, with 2 tools"
        assert bot.polls == []
    assert await link.command("DBSIZE") == 0


def test_no_secret_of_a_cell_is_printed(colony, tree: Path) -> None:
    login = "http://user:hush-hush@127.0.0.1:1"
    write_cell(tree, "out-1", "proxy", platform="http", deliver_url=f"{login}/answers?key=hush")
    write_cell(tree, "out-2", "proxy", bot_token="1:hush-hush", base_url=login)
    write_cell(tree, "model", "llm", provider="openai", model="m", base_url=f"{login}/v1")
    write_cell(tree, "search", "web_search", endpoint=f"{login}/search", api_key="hush-hush")
    write_cell(tree, "far", "mcp", url=f"{login}/mcp", token="hush-hush")
    shell = ["/bin/sh", "-c", "echo my key is $KEY >&2; exit 4"]
    write_cell(tree, "near", "mcp", command=shell, env={"KEY": "hush-hush"})

    done = colony("doctor", str(tree), status=1)

    assert "/near (mcp)" in done.stdout
    assert "my key is [redacted]" in done.stdout
    assert "/model (llm): model_failed: m at http://127.0.0.1:1/v1 answers" in done.stdout
    assert "hush" not in done.output
