"""The command itself: its help, how it fails, how it prints."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
import redis
from click.testing import CliRunner

from colony.body import Body, Entry
from colony.cli import main
from colony.cli.failures import told
from colony.cli.group import COMMANDS
from colony.cli.screen import age
from colony.codec import encode_body, encode_head, pack
from colony.embedded.server import URL_FILE
from colony.envelope import Head
from colony.keys import Keys
from colony.testing.redis_server import RedisServer


def test_help_imports_no_command_and_no_library() -> None:
    program = (
        "import sys\n"
        "from colony.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = {'redis', 'pydantic', 'starlette', 'celpy', 'structlog', 'asyncio'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself_as_the_list_does(name: str) -> None:
    with click.Context(main) as ctx:
        command = main.get_command(ctx, name)
    assert command is not None
    summary = COMMANDS[name][2].removesuffix(".")
    shown = CliRunner().invoke(main, [name, "--help"])

    assert shown.exit_code == 0
    assert summary.split()[0].removesuffix(",").removesuffix(":") in (command.help or "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",), ("rounds",), ("send", "/x", "y"), ("trace", "x"), ("cancel", "x"),
        ("dead-letters", "list"),
    ],
)  # fmt: skip
def test_without_a_server_every_question_ends_with_3(colony, arguments: tuple[str, ...]) -> None:
    colony.env.pop("COLONY_REDIS_URL")
    assert colony(*arguments, status=3).stderr.startswith("colony: server_missing: no server runs")

    colony.env["COLONY_REDIS_URL"] = "redis://127.0.0.1:1"
    complaint = colony(*arguments, status=3).stderr
    assert complaint.startswith("colony: server_unavailable: ")
    assert len(complaint.splitlines()) == 1


@pytest.mark.parametrize("arguments", [("status",), ("send", "/x", "y")])
def test_the_address_of_a_killed_server_leads_to_up(
    colony, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    colony.env.pop("COLONY_REDIS_URL")
    colony.env["COLONY_DATA"] = str(tmp_path)
    (tmp_path / URL_FILE).write_text("unix:///nowhere/redis.sock")

    complaint = colony(*arguments, status=3).stderr

    assert complaint.startswith("colony: server_unavailable: Redis is unavailable: ")
    assert complaint.endswith("does not answer; start it again with `colony up`\n")


def test_a_server_that_evicts_is_refused(colony, redis_binary: Path) -> None:
    with RedisServer.start(redis_binary) as server:
        import redis

        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        colony.env["COLONY_REDIS_URL"] = server.url

        told = "server_unfit: maxmemory-policy is allkeys-lru"
        assert told in colony("send", "/x", "y", status=3).stderr
        assert told in colony("status").stdout
        assert colony.json("status")["problems"][0].startswith(told)
        assert colony("traces").stdout
        assert colony("rounds").stdout == "no round is open\n"
        assert colony("dead-letters", "list").stdout == "no dead letters\n"
        assert "trace_not_found" in colony("trace", "x", status=2).stderr
        assert told in colony("dead-letters", "replay", "--all", status=3).stderr


def test_a_letter_without_an_envelope_is_shown_without_one(colony, redis_url: str) -> None:
    detail = "1 envelope is nowhere; the last hop of its trace went from /planner to /reader"
    facts = pack({"detail": detail, "sender_path": "", "attempts": 1})
    fields = {"trace": "t", "code": "envelope_lost", "facts": facts, "head": pack(None), "body": ""}
    with redis.Redis.from_url(redis_url) as client:
        letter_id = client.xadd(Keys("colony").dead(), fields).decode()

    shown = colony("dead-letters", "show", letter_id).stdout

    assert "message: none, there is no envelope" in shown
    assert "attempts" not in shown
    assert colony.json("dead-letters", "show", letter_id)["message"] is None
    assert colony("dead-letters", "list").stdout.splitlines()[1].endswith(detail)


def test_a_letter_names_the_trace_it_was_replayed_into(colony, redis_url: str) -> None:
    head = Head(id="t", trace_id="t", sender="/a", target="/b", ttl=3)
    body = encode_body(Body.of(Entry.say("user", "hello")))
    fields = {"trace": "t", "code": "no_route", "facts": pack({}), "head": encode_head(head)}
    with redis.Redis.from_url(redis_url) as client:
        letter_id = client.xadd(Keys("colony").dead(), {**fields, "body": body}).decode()
    assert colony.json("dead-letters", "list")[0]["replayed_into"] is None

    [replayed] = colony.json("dead-letters", "replay", letter_id)

    assert colony.json("dead-letters", "list")[0]["replayed_into"] == replayed["trace_id"]
    assert replayed["trace_id"] in colony("dead-letters", "list").stdout
    assert (
        f"replayed_into: {replayed['trace_id']}" in colony("dead-letters", "show", letter_id).stdout
    )


def test_what_is_not_there_ends_with_2(colony) -> None:
    assert "trace_not_found" in colony("trace", "x", status=2).stderr
    assert "trace_not_found" in colony("cancel", "x", status=2).stderr
    assert "dead_letter_not_found" in colony("dead-letters", "drop", "1-1", status=2).stderr
    assert "topology_missing" in colony("send", "/x", "y", status=2).stderr
    assert "No such command" in colony("sned", status=2).stderr


def test_settings_that_are_wrong_end_with_2(colony, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("nmae = 'x'\n")

    assert "config_invalid: nmae" in colony("status", "--config", str(tmp_path / "c.toml"),
                                            status=2).stderr  # fmt: skip
    assert "config_invalid: name" in colony("status", "--name", "No Good", status=2).stderr


def test_an_empty_colony_says_so(colony) -> None:
    assert "no tree was applied to the colony 'colony'" in colony("status").stdout
    assert colony.json("status")["topology"]["version"] == 0
    # What was never found broken is not spoken of.
    assert "repairs" not in colony("status").stdout
    assert set(colony.json("status")["repairs"].values()) == {0}


def test_the_status_tells_what_was_repaired(colony) -> None:
    with redis.Redis.from_url(colony.env["COLONY_REDIS_URL"]) as client:
        client.hset(Keys("colony").repairs(), mapping={"entries_lost": 3, "searched": 3})

    assert "repairs  entries_lost 3\n" in colony("status").stdout


def test_a_mistake_of_ours_is_one_line_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit) as ended, told():
        raise ZeroDivisionError("division by zero")

    assert ended.value.exit_code == 70
    assert "colony: internal_error: ZeroDivisionError: division by zero" in capsys.readouterr().err


def test_an_interrupt_ends_with_130() -> None:
    with pytest.raises(click.exceptions.Exit) as ended, told():
        raise KeyboardInterrupt

    assert ended.value.exit_code == 130


def test_no_color_is_respected(colony) -> None:
    def shown(**env: str) -> str:
        return CliRunner().invoke(main, ["status"], env={**colony.env, **env}, color=True).output

    assert "\x1b[" in shown()
    assert "\x1b[" not in shown(NO_COLOR="1")


@pytest.mark.parametrize(
    ("ms", "told"),
    [(0, "0 ms"), (999, "999 ms"), (1_500, "1.5 s"), (119_000, "119.0 s"), (180_000, "3 min"),
     (8 * 3_600_000, "8 h"), (10 * 86_400_000, "10 d")],
)  # fmt: skip
def test_an_age_is_told_in_the_unit_that_fits(ms: int, told: str) -> None:
    assert age(ms) == told


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "colony", "--version"]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.stdout.startswith("colony ")


def test_places_that_cannot_be_written_end_with_2(colony, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    colony("new", str(tmp_path / "tree"))
    colony.env.pop("COLONY_REDIS_URL")
    inside = str(tmp_path / "file" / "data")

    up = ("up", str(tmp_path / "tree"), "--data", inside)
    for arguments in (up, ("status", "--data", inside), ("new", inside)):
        assert "colony: config_invalid: " in colony(*arguments, status=2).stderr
    colony.env["XDG_STATE_HOME"] = inside
    assert "COLONY_DATA" in colony("up", str(tmp_path / "tree"), status=2).stderr


def test_a_new_tree_is_named_as_a_shell_takes_it(colony, tmp_path: Path) -> None:
    told = colony("new", str(tmp_path / "has space")).stdout

    assert f"colony up '{tmp_path}/has space'" in told
