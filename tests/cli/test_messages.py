"""Messages from the command line: sent, traced, cancelled, buried."""

import json
import time
from pathlib import Path

import httpx
import pytest
from redis import Redis

from colony.cli.answers import Speech
from colony.keys import Keys
from colony.live import LiveEvent
from colony.testing.claims import block_until


def test_sending_prints_the_trace_and_the_trace_its_hops(up) -> None:
    trace_id = up("send", "/greet", "you").stdout.strip()

    followed = up("trace", trace_id, "--follow").stdout
    shown = up("trace", trace_id).stdout
    assert shown.splitlines()[0].startswith(f"{trace_id} completed, after")
    for told in (followed, shown):
        assert "@external → /greet  ttl 63" in told
        assert "/greet → /out  ttl 62  route=done  [hop.route == 'done']  +" in told


def test_bodies_are_shown_below_their_hops(up) -> None:
    trace_id = up("send", "/greet", "you " * 99, "--wait", "10").stderr.split()[1]

    for told in (up("trace", trace_id, "--bodies"), up("trace", trace_id, "--follow", "--bodies")):
        lines = told.stdout.splitlines()
        [at] = [n for n, line in enumerate(lines) if "@external → /greet" in line]
        assert lines[at + 1].strip().startswith("user text: you you")
        assert lines[at + 1].endswith("…")
    assert "user text" not in up("trace", trace_id).stdout


def test_following_as_json_ends_with_how_the_trace_ended(up) -> None:
    trace_id = up("send", "/greet", "you", "--wait", "10").stderr.split()[1]

    lines = up("trace", trace_id, "--follow", "--format", "json").stdout.splitlines()
    *hops, end = map(json.loads, lines)
    assert [hop["to_path"] for hop in hops] == ["/greet", "/out"]
    assert end["record"]["cause"] == "completed"


@pytest.mark.parametrize("output", ["text", "json"])
def test_following_prints_a_text_as_it_comes(colony, run, tree, output: str) -> None:
    colony("apply", str(tree))
    trace_id = colony("send", "/greet", "you").stdout.strip()
    form = ("--format", "json") if output == "json" else ()

    with (
        Redis.from_url(colony.env["COLONY_REDIS_URL"]) as client,
        run("trace", trace_id, "--follow", *form, env=colony.env) as following,
    ):
        block_until(lambda: tell(client, trace_id, 0, "hel"), "somebody listens")
        tell(client, trace_id, 3, "lo")
        colony("cancel", trace_id)
        client.hset(Keys().trace(trace_id), "live", 0)

        if output == "text":
            assert following.line() == "hello\n"
            assert following.line().startswith(trace_id)
        else:
            told = [json.loads(following.line()) for _ in range(3)]
            assert [line["delta"]["text"] for line in told[:2]] == ["hel", "lo"]
            assert told[2]["record"]["cause"] == "cancelled"


def test_a_message_is_followed_from_before_it_is_sent(colony, run, tree) -> None:
    colony("apply", str(tree))
    sending = run("send", "/greet", "you", "--follow", env=colony.env)

    with Redis.from_url(colony.env["COLONY_REDIS_URL"]) as client, sending:
        assert sending.popen.stderr
        trace_id = sending.popen.stderr.readline().split()[1]
        assert tell(client, trace_id, 0, "hel") == 1
        tell(client, trace_id, 3, "lo")
        colony("cancel", trace_id)
        client.hset(Keys().trace(trace_id), "live", 0)

        assert sending.line() == "hello\n"
        assert sending.popen.wait(60) == 1
        assert "did not complete: cancelled" in sending.popen.stderr.read()


def test_following_what_was_sent_prints_what_no_cell_told(up) -> None:
    shown = up("send", "/greet", "you", "--follow")
    assert shown.stdout == "hello you\n"

    *_, last = up("send", "/greet", "you", "--follow", "--format", "json").stdout.splitlines()
    assert json.loads(last)["cause"] == "completed"


def test_following_what_was_sent_ends_where_the_wait_does(up) -> None:
    told = up("send", "/slow", "you", "--follow", "--wait", "0.1", status=1)

    assert "did not complete: not after 0.1 s" in told.stderr
    up("cancel", told.stdout.strip())


def test_a_text_is_marked_where_some_of_it_was_missed(capsys: pytest.CaptureFixture[str]) -> None:
    speech = Speech()
    for name, offset, text in (("m", 3, "lo "), ("m", 6, "you"), ("m", 12, "."), ("n", 0, "so")):
        facts = {"message_id": name, "offset": offset, "text": text}
        speech.go_on(LiveEvent("t", "/llm", "text", facts))
    speech.end()

    assert capsys.readouterr().out == "…lo you….\nso\n"
    assert speech.has_said("so")
    assert not speech.has_said("lo you.")


def test_what_came_of_a_trace_is_printed_in_full_later(up) -> None:
    trace_id = up("send", "/greet", "you " * 99, "--wait", "10").stderr.split()[1]

    assert up("trace", trace_id, "--outputs").stdout == "hello " + "you " * 99 + "\n"
    [output] = up.json("trace", trace_id, "--outputs")
    assert output["path"] == "/out"
    assert "neither" in up("trace", trace_id, "--outputs", "--follow", status=2).stderr


def tell(client: Redis, trace_id: str, offset: int, text: str) -> int:
    event = LiveEvent(trace_id, "/llm", "text", {"offset": offset, "text": text, "message_id": "m"})
    return client.publish(Keys().live(), json.dumps(event.to_json()))


def test_waiting_prints_what_came_of_it(up) -> None:
    shown = up("send", "/greet", "you", "--wait", "10")
    assert shown.stdout == "hello you\n"
    [_, trace_id] = shown.stderr.split()
    assert up("trace", trace_id, "--follow").stdout.splitlines()[-1].startswith(trace_id)

    told = up.json("send", "greet", "you", "--wait", "10")
    assert (told["state"], told["cause"]) == ("ended", "completed")
    assert told["outputs"][0]["path"] == "/out"


def test_a_wait_that_runs_out_ends_with_1_and_the_trace_can_be_cancelled(up) -> None:
    told = up("send", "/slow", "you", "--wait", "0.1", status=1)
    trace_id = told.stdout.strip()
    assert told.stderr.splitlines() == [
        f"trace {trace_id}",
        f"trace {trace_id} did not complete: not after 0.1 s",
    ]

    assert up("cancel", trace_id).stdout == f"{trace_id} is cancelled\n"
    assert up.json("cancel", trace_id) == {"trace_id": trace_id, "cause": "cancelled"}
    assert up.json("trace", trace_id)["record"]["cause"] == "cancelled"


def test_headers_and_a_whole_body_are_sent(up, tmp_path: Path) -> None:
    body = {"messages": [{"origin": "user", "type": "text", "text": "file"}]}
    (tmp_path / "body.json").write_text(json.dumps(body))
    sent = up(
        "send", "/greet", "--json", str(tmp_path / "body.json"), "--ttl", "5", "--hop", "kind=a=b",
        "--context", "chat:=7", "--wait", "10", "--format", "json",
    )  # fmt: skip

    first = up.json("trace", json.loads(sent.stdout)["trace_id"])["hops"][0]
    assert first["ttl"] == 4
    assert first["headers"] == {"context": {"chat": 7}, "hop": {"kind": "a=b"}}
    assert up("send", "/greet", "--json", "-", "--wait", "9", input=json.dumps(body)).stdout == (
        "hello file\n"
    )


def test_a_session_is_a_header_beside_the_others(up) -> None:
    told = up.json("send", "/greet", "you", "--context", "a=b", "--session", "me", "--wait", "10")

    first = up.json("trace", told["trace_id"])["hops"][0]
    assert first["headers"]["context"] == {"a": "b", "session_id": "me"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--context", "session_id:=7"), "only as a text, not as 7"),
        (("--context", "session_id="), "only as a text, not as ''"),
        (("--context", "session_id:=7", "--session", "7"), "only as a text, not as 7"),
        (
            ("--context", "session_id=y", "--session", "x"),
            "--session x and --context session_id=y disagree",
        ),
    ],
)
def test_a_conversation_that_would_be_none_is_refused(colony, arguments, complaint: str) -> None:
    assert complaint in colony("send", "/greet", "you", *arguments, status=2).stderr


def test_a_conversation_may_be_named_twice(up) -> None:
    arguments = ("--context", "session_id=me", "--session", "me", "--wait", "10")
    told = up.json("send", "/greet", "you", *arguments)

    assert up.json("trace", told["trace_id"])["record"]["session"] == "me"


def test_an_answer_that_is_an_error_ends_with_1(up) -> None:
    for following in ("--wait=10", "--follow"):
        told = up("send", "/out", "no", "--hop", "error_code=iteration_limit", following, status=1)

        assert told.stderr.splitlines()[-1] == "no answer: iteration_limit"
        assert told.stdout == "no\n"


def test_what_cannot_be_sent_is_refused_in_one_line(up, tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text("{}")

    told = up("send", "/greet", "--json", str(tmp_path / "body.json"), status=2).stderr
    assert told.startswith("colony: invalid_ubf_body: ")
    assert len(told.splitlines()) == 1
    wrong = (
        "--ttl=0", "--hop=x", "--context=x:={", "--context=x:=NaN", "--hop=x:=1e999", "--wait=-1",
        "--wait=nan", "--timeout=nan", "--timeout=inf", "--timeout=0", "--session=",
    )  # fmt: skip
    for option in wrong:
        assert "Invalid value" in up("send", "/greet", "you", option, status=2).stderr
    assert "the target is empty" in up("send", "", "you", status=2).stderr
    assert "TEXT or --json" in up("send", "/greet", status=2).stderr


def test_a_dead_letter_is_listed_shown_replayed_and_dropped(up) -> None:
    told = up("send", "/nobody", "you", "--wait", "10", status=1)
    assert "did not complete: failed: unresolved_path" in told.stderr

    [row] = up.json("dead-letters", "list", "--code", "unresolved_path")
    assert row["id"] in up("dead-letters", "list").stdout
    assert "error_code: unresolved_path" in up("dead-letters", "show", row["id"]).stdout
    [first] = up.json("dead-letters", "replay", row["id"])
    assert up.json("dead-letters", "replay", row["id"]) == [first]
    assert first["trace_id"] != row["trace_id"]
    up("dead-letters", "drop", row["id"])
    assert "dead_letter_not_found" in up("dead-letters", "show", row["id"], status=2).stderr


def test_dropping_all_only_tells_unless_it_is_confirmed(up) -> None:
    up("send", "/nobody", "you", "--wait", "10", status=1)

    assert "would be dropped" in up("dead-letters", "drop", "--all").stdout
    assert up.json("dead-letters", "list") != []
    assert up.json("dead-letters", "drop", "--all", "--yes")["dropped"] != []
    assert up("dead-letters", "list").stdout == "no dead letters\n"


@pytest.mark.parametrize("action", ["replay", "drop"])
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("1-1", "--all"),
        ("1-1", "--code", "x"),
        ("1-1", "--limit", "3"),
        ("--limit", "3"),
        ("--yes",),
    ],
)
def test_letters_are_named_or_described_but_not_both(up, action: str, arguments) -> None:
    told = up("dead-letters", action, *arguments, status=2).stderr

    assert "give either IDs, or filters, or --all" in told


def test_letters_of_a_kind_are_replayed_and_dropped_after_a_dry_run(up) -> None:
    up("dead-letters", "drop", "--all", "--yes")
    traces = [
        up("send", path, "you", "--wait", "10", status=1).stderr.split()[1]
        for path in ("/nobody", "/nothing", "/nobody")
    ]
    ids = {row["trace_id"]: row["id"] for row in up.json("dead-letters", "list")}
    kind = ("--code", "unresolved_path", "--to", "/nobody")

    for action in ("replay", "drop"):
        told = up("dead-letters", action, *kind).stdout.splitlines()
        assert [line.split() for line in told[:2]] == [
            ["letters", "code", "cell"],
            ["2", "unresolved_path", "/nobody"],
        ]
        assert told[2].startswith("2 letters would be ")
        assert told[2].endswith("; add --yes to do it")
    assert len(up.json("dead-letters", "list")) == 3

    done = up.json("dead-letters", "replay", *kind, "--limit", "1", "--yes")
    assert (done["dry_run"], done["count"], done["next"]) == (False, 1, ids[traces[0]])
    assert [row["id"] for row in done["replayed"]] == [ids[traces[0]]]
    again = ("dead-letters", "replay", *kind, "--until", "0min", "--trace", traces[2], "--yes")
    assert up(*again).stdout.splitlines()[-1] == "1 letter replayed"
    assert up(*again).stdout == "0 letters replayed\n"

    assert up.json("dead-letters", "drop", "--trace", traces[1], "--yes")["count"] == 1
    left = up.json("dead-letters", "list", "--since", "2h", "--from", "@external")
    assert ids[traces[1]] not in {row["id"] for row in left}
    assert {ids[traces[0]], ids[traces[2]]} <= {row["id"] for row in left}
    assert up.json("dead-letters", "list", "--since", "2999-01-01") == []
    assert "neither 90s" in up("dead-letters", "list", "--since", "soon", status=2).stderr


def test_the_interface_and_the_command_tell_the_same(up) -> None:
    told = httpx.get(f"{up.env['API']}/colony/registry").json()["registry"]

    cells = up.json("status")["cells"]
    assert [cell["path"] for cell in told] == [cell["path"] for cell in cells]
    assert httpx.get(f"{up.env['API']}/readyz").status_code == 200


def test_the_status_is_one_screen(up) -> None:
    told = up("status").stdout

    for part in ("version 1", "router-0", "worker-0", "/greet", "to be routed", "dead letters"):
        assert part in told
    assert len(told.splitlines()) < 30
    assert up("rounds").stdout == "no round is open\n"
    assert up.json("rounds") == []
    assert "round_not_found" in up("rounds", "nothing", status=2).stderr


def test_letters_that_are_there_are_acted_on_and_the_others_told(up) -> None:
    for _ in range(2):
        up("send", "/nobody", "you", "--wait", "10", status=1)
    newest, older = [row["id"] for row in up.json("dead-letters", "list", "--limit", "2")]
    missing = "1-4242424242"

    for action in ("replay", "drop"):
        told = up("dead-letters", action, newest, missing, older, status=2)
        assert missing not in told.stdout
        assert newest in told.stdout
        assert older in told.stdout
        assert told.stderr == f"colony: dead_letter_not_found: no dead letter {missing}\n"
    assert newest not in up("dead-letters", "list").stdout


def test_letters_are_listed_from_the_newest_page_by_page(up) -> None:
    up("dead-letters", "drop", "--all", "--yes")
    for _ in range(3):
        up("send", "/nobody", "you", "--wait", "10", status=1)
    ids = [row["id"] for row in up.json("dead-letters", "list")]
    assert ids == sorted(ids, reverse=True)

    told = up("dead-letters", "list", "--limit", "2").stdout
    assert told.endswith(f"2 of 3 letters, the newest first; --before {ids[1]} goes on\n")
    assert time.strftime("%Y-%m-%d ") in told
    [last] = up.json("dead-letters", "list", "--before", ids[1])
    assert last["id"] == ids[2]
    dropped = up("dead-letters", "drop", "--all", "--yes").stdout
    assert dropped.splitlines()[-1] == "3 letters dropped"


def test_traces_are_listed_from_the_newest(up) -> None:
    ids = [up("send", "/greet", "you", "--wait", "10").stderr.split()[1] for _ in range(2)]

    listed = [trace["trace_id"] for trace in up.json("traces", "--limit", "2")]
    assert listed == ids[::-1]
    assert f"{ids[1]}  {time.strftime('%Y-')}" in up("traces").stdout
    assert ids[0] not in up("traces", "--state", "open").stdout
    assert up("traces", "--state", "quiet").stdout == "no traces\n"
    assert ids[0] in up("traces", "--state", "ended", "--limit", "9").stdout


def test_what_nobody_takes_up_is_listed_as_quiet(colony, tree: Path) -> None:
    colony("apply", str(tree))
    trace_id = colony("send", "/greet", "you").stdout.strip()
    assert [t["trace_id"] for t in colony.json("traces", "--state", "open")] == [trace_id]

    with Redis.from_url(colony.env["COLONY_REDIS_URL"]) as client:
        client.hset(Keys().trace(trace_id), mapping={"state": "quiet", "live": 0})
        client.xadd(Keys().quiet(), {"trace": trace_id})

    assert [t["trace_id"] for t in colony.json("traces", "--state", "quiet")] == [trace_id]
    assert colony.json("traces", "--state", "open") == []
    [told] = colony.json("traces")
    assert (told["trace_id"], told["state"]) == (trace_id, "quiet")


def test_above_the_backlog_sending_ends_with_4_in_one_line(colony, tree: Path) -> None:
    (tree / "colony.json").write_text('{"ingress_backlog_max": 1}')
    colony("apply", str(tree))
    colony("send", "/greet", "you")

    told = colony("send", "/greet", "you", status=4)

    assert told.stdout == ""
    assert told.stderr == ("colony: backlogged: the backlog is 1, at most 1: try again in 1 s\n")
    assert len(colony.json("traces")) == 1
