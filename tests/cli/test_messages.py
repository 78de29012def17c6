"""Messages from the command line: sent, traced, cancelled, buried."""

import json
from pathlib import Path

import httpx


def test_sending_prints_the_trace_and_the_trace_its_hops(up) -> None:
    trace_id = up("send", "/greet", "you").stdout.strip()

    followed = up("trace", trace_id, "--follow").stdout
    shown = up("trace", trace_id).stdout
    assert shown.splitlines()[0].startswith(f"{trace_id} completed, after")
    for told in (followed, shown):
        assert "@external → /greet  ttl 63" in told
        assert "/greet → /out  ttl 62  route=done  [hop.route == 'done']  +" in told


def test_waiting_prints_what_came_of_it(up) -> None:
    assert up("send", "/greet", "you", "--wait", "10").stdout == "hello you\n"

    told = up.json("send", "greet", "you", "--wait", "10")
    assert (told["state"], told["cause"]) == ("ended", "completed")
    assert told["outputs"][0]["path"] == "/out"


def test_a_wait_that_runs_out_ends_with_1_and_the_trace_can_be_cancelled(up) -> None:
    told = up("send", "/slow", "you", "--wait", "0.1", status=1)
    trace_id = told.stdout.strip()
    assert told.stderr == f"trace {trace_id} did not complete: not after 0.1 s\n"

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


def test_what_cannot_be_sent_is_refused_in_one_line(up, tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text("{}")

    told = up("send", "/greet", "--json", str(tmp_path / "body.json"), status=2).stderr
    assert told.startswith("colony: invalid_ubf_body: ")
    assert len(told.splitlines()) == 1
    for wrong in (("--ttl", "0"), ("--hop", "x"), ("--context", "x:={"), ("--wait", "-1")):
        assert "Invalid value" in up("send", "/greet", "you", *wrong, status=2).stderr
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
    assert up.json("dead-letters", "drop", "--all", "--yes")["dropped"] is True
    assert up("dead-letters", "list").stdout == "no dead letters\n"
    assert "either IDs or --all" in up("dead-letters", "drop", status=2).stderr


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
