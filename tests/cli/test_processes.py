"""Commands that run: `up` and the roles, from their start to their end."""

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
import pytest
import redis

from colony.keys import GROUP, Keys
from colony.testing.claims import block_until
from colony.testing.model_server import ModelServer


@pytest.fixture
def env(redis_url: str, tmp_path: Path) -> dict[str, str]:
    return {"COLONY_REDIS_URL": redis_url, "XDG_STATE_HOME": str(tmp_path)}


def process_of(role: str, colony) -> list[int]:
    processes = colony.json("status")["processes"]
    return [process["pid"] for process in processes if process["role"] == role]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_up_keeps_its_workers_running_and_drains_when_it_ends(
    run, env: dict[str, str], colony, tree: Path
) -> None:
    arguments = ("up", str(tree), "--api", "127.0.0.1:0", "--workers", "2", "--format", "json")
    with run(*arguments, env=env) as process:
        told = json.loads(process.line())
        assert told["problems"] == []
        block_until(lambda: len(process_of("worker", colony)) == 2)
        assert httpx.get(f"{told['api']}/healthz").status_code == 200
        [killed] = set(process_of("worker", colony)) - {process.popen.pid}
        os.kill(killed, signal.SIGKILL)
        # The lease of the one that was killed runs for a while.
        block_until(lambda: len(process_of("worker", colony)) == 3)
        workers = set(process_of("worker", colony)) - {process.popen.pid}

        status, complaint = process.end()

    assert status == 0, complaint
    assert "Traceback" not in complaint
    assert process_of("worker", colony) == [killed]
    assert process_of("router", colony) == []
    block_until(lambda: all(gone(pid) for pid in workers))


def test_up_takes_its_server_and_its_workers_along_by_kill_9(run, tree: Path, short: Path) -> None:
    env = {"COLONY_DATA": str(short / "data")}
    arguments = ("up", str(tree), "--api", "127.0.0.1:0", "--workers", "2", "--format", "json")
    with run(*arguments, env=env) as process:
        process.line()
        children = _descendants(process.popen.pid)
        assert len(children) >= 3
        process.popen.kill()
        process.popen.wait()

        block_until(lambda: all(gone(pid) for pid in children))


def test_up_keeps_what_it_was_sent_for_the_next_time(run, colony, tree: Path, short: Path) -> None:
    env = colony.env | {"COLONY_DATA": str(short / "data")}
    del env["COLONY_REDIS_URL"]
    colony.env.clear()
    colony.env.update(env)
    arguments = ("up", str(tree), "--api", "127.0.0.1:0", "--format", "json")
    with run(*arguments, env=env) as process:
        process.line()
        trace_id = colony("send", "/greet", "you", "--wait", "10", "--format", "json").stdout
        assert process.end(signal.SIGINT)[0] == 0
    with run(*arguments, env=env) as process:
        process.line()
        shown = colony.json("trace", json.loads(trace_id)["trace_id"])
        assert shown["record"]["cause"] == "completed"


def test_a_second_signal_does_not_wait_for_what_is_in_hand(
    run, env: dict[str, str], colony, tree: Path
) -> None:
    with run("up", str(tree), "--api", "127.0.0.1:0", "--format", "json", env=env) as process:
        process.line()
        colony("send", "/slow", "you")
        block_until(lambda: colony.json("status")["cells"][2]["waiting"] == 1)
        process.popen.send_signal(signal.SIGINT)
        assert process.popen.stderr
        while "stopping" not in process.popen.stderr.readline():
            pass
        began = time.monotonic()
        status, _ = process.end(signal.SIGINT)

    assert status == 130
    assert time.monotonic() - began < 10


def test_up_says_what_does_not_run(run, env: dict[str, str], tree: Path) -> None:
    path = tree / "main" / "slow" / "config.json"
    config = json.loads(path.read_text())
    config["params"]["key"] = "${SET_NOWHERE}"
    path.write_text(json.dumps(config))

    with run("up", str(tree), "--api", "127.0.0.1:0", "--format", "json", env=env) as process:
        [problem] = json.loads(process.line())["problems"]
        assert problem.startswith("nobody hosts /slow: ")
        assert "SET_NOWHERE" in problem


def test_the_roles_run_apart_and_follow_a_tree_that_is_applied_later(
    run, env: dict[str, str], colony, tree: Path
) -> None:
    env = env | {"PYTHONPATH": str(tree)}
    with (
        run("router", env=env),
        run("worker", "--cells", "/greet", env=env),
        run("worker", "--cells", "/out", "--cells", "/slow", env=env),
        run("api", "--listen", "127.0.0.1:0", "--log-format", "json", env=env) as api,
    ):
        assert api.popen.stderr
        address = json.loads(api.popen.stderr.readline())["address"]
        block_until(lambda: len(colony.json("status")["processes"]) == 3)
        assert httpx.get(f"{address}/readyz").json()["code"] == "not_ready"
        colony("apply", str(tree))

        message = {"messages": [{"origin": "user", "type": "text", "text": "you"}]}
        answered = httpx.post(
            f"{address}/messages?wait=20", json={"target": "/greet", "body": message}, timeout=30
        )
        assert answered.json()["outputs"][0]["body"]["messages"][0]["text"] == "hello you"


def test_a_worker_ends_though_a_handler_never_does(
    run, env: dict[str, str], colony, tree: Path
) -> None:
    """It is wedged in a thread, which nobody can stop; its delivery is handed back."""
    wedged = "import time\n\ndef greet(envelope, params):\n    time.sleep(600)\n\nlinger = greet\n"
    (tree / "cli_handlers.py").write_text(wedged)
    colony("apply", str(tree))
    env = env | {"PYTHONPATH": str(tree), "COLONY_DRAIN_S": "0.1"}
    server = redis.Redis.from_url(env["COLONY_REDIS_URL"])
    stream = Keys().cell("/greet")

    def held() -> int:
        return int(server.xpending(stream, GROUP)["pending"])

    with server, run("router", env=env), run("worker", env=env) as worker:
        colony("send", "/greet", "you")
        block_until(lambda: held() == 1)

        status, complaint = worker.end()

        (delivery,) = server.xpending_range(stream, GROUP, "-", "+", 9)
    assert (status, delivery["times_delivered"]) == (0, 0)
    assert "stopped" in complaint


def test_roles_say_where_they_serve_and_that_they_have_stopped(
    run, env: dict[str, str], colony, tree: Path
) -> None:
    colony("apply", str(tree))
    log = {"COLONY_LOG_FORMAT": "json"}
    for role, cells, more in (("router", 3, ()), ("worker", 1, ("--cells", "/out"))):
        with run(role, *more, env=env | log) as process:
            assert process.popen.stderr
            told = json.loads(process.popen.stderr.readline())
            status, rest = process.end()

        assert (told["event"], told["role"], told["slot"]) == ("serving", role, 0)
        assert (told["colony"], told["version"], told["cells"]) == ("colony", 1, cells)
        assert told["server"] == env["COLONY_REDIS_URL"]
        assert status == 0
        assert json.loads(rest.splitlines()[-1])["event"] == "stopped"


def test_a_worker_whose_cells_are_none_of_the_tree_says_so(
    run, env: dict[str, str], colony, tree: Path
) -> None:
    colony("apply", str(tree))
    with run("worker", "--cells", "/reader", env=env) as process:
        assert process.popen.stderr
        assert "no_cell_matches" in process.popen.stderr.readline()


def test_an_address_others_reach_is_refused_without_a_token(colony, tree: Path) -> None:
    for command in (("up", str(tree), "--api"), ("api", "--listen")):
        told = colony(*command, "0.0.0.0:0", status=2).stderr
        assert told.startswith("colony: config_invalid: 0.0.0.0:0 can be reached from other hosts")


def test_an_agent_started_with_new_calls_its_tool(run, env: dict[str, str], colony,
                                                  tmp_path: Path) -> None:  # fmt: skip
    colony("new", str(tmp_path / "mine"))
    arguments = ("up", str(tmp_path / "mine"), "--api", "127.0.0.1:0", "--format", "json")
    with run(*arguments, env=env) as process:
        assert json.loads(process.line())["problems"] == []
        told = colony.json("send", "/prep", "How far is a marathon?", "--wait", "20")
        letters = colony.json("dead-letters", "list")
        log = json.dumps(colony.json("trace", told["trace_id"]))

    said = told["outputs"][0]["body"]["messages"][0]["text"].splitlines()
    assert said[1:3] == ["26.2 miles are 42.16 km", "150 pounds are 68.10 kg"]
    assert letters == []
    assert "26.2 miles are 42.16 km" in log
    assert "150 pounds are 68.10 kg" in log


def test_the_demo_answers_with_quotes_and_cleans_up(run, tmp_path: Path) -> None:
    with run("demo", env={"TMPDIR": str(tmp_path)}) as process:
        output, complaint = process.popen.communicate(timeout=60)

    assert process.popen.returncode == 0, complaint
    assert complaint == ""
    assert "[source: file:///dalen-sun-valve.md]" in output
    assert "@external → /prep" in output
    assert "rounds of tool calls" in output
    assert "`colony new notes`" in output.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_the_demo_reads_another_corpus(run, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "otters.md").write_text("# Otters\n\nOtters hold hands while they sleep.\n")
    arguments = ("demo", "What do otters hold while they sleep?", "--corpus", str(corpus))
    with run(*arguments, "--format", "json", env={}) as process:
        told = json.loads(process.popen.communicate(timeout=60)[0])

    assert "“Otters hold hands while they sleep.” [source: file:///otters.md]" in told["answer"]
    assert told["rounds"] >= 1


def test_the_demo_asks_a_real_model_where_one_is_named(run) -> None:
    call = {"id": "c1", "name": "web_search", "arguments": '{"query": "sun valve"}'}
    script = [{"tool_calls": [call]}, {"text": "A sun valve saves gas."}]
    with ModelServer(script) as model:
        env = {"COLONY_BASE_URL": model.base_url, "COLONY_MODEL": "m", "OPENAI_API_KEY": "k"}
        with run("demo", "What is a sun valve?", "--format", "json", env=env) as process:
            told = json.loads(process.popen.communicate(timeout=60)[0])

    assert told["answer"] == "A sun valve saves gas."
    assert [request.body["model"] for request in model.requests] == ["m", "m"]
    assert "Dal" in str(model.requests[1].messages[-1]["content"])


def test_the_demo_tells_why_a_real_model_did_not_answer(run) -> None:
    env = {"COLONY_BASE_URL": "http://me:secret@127.0.0.1:1/v1", "COLONY_MODEL": "m"}
    with run("demo", "What is a sun valve?", env=env) as process:
        output, complaint = process.popen.communicate(timeout=60)

    assert process.popen.returncode == 1
    assert output.splitlines()[0] == "model: m at http://127.0.0.1:1/v1"
    assert complaint.startswith("no answer: provider_error: Connection error")
    assert "secret" not in output + complaint


def test_the_demo_refuses_an_empty_question_and_an_empty_corpus(colony, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "picture.png").write_bytes(b"")

    assert "the question is empty" in colony("demo", " ", status=2).stderr
    told = colony("demo", "Why?", "--corpus", str(tmp_path / "corpus"), status=2).stderr
    assert "config_invalid: no documents in" in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_is_interrupted_cleanly(run, number: signal.Signals) -> None:
    # Not the folder of the test: its path is too long for a socket.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with run("demo", env={"TMPDIR": name}) as process:
            process.line()
            block_until(lambda: list(folder.glob("colony-demo-*/redis.sock")) != [])
            status, complaint = process.end(number)

        assert (status, complaint) == (130, "interrupted\n")
        assert list(folder.iterdir()) == []


def _descendants(pid: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    parents = {int(line.split()[0]): int(line.split()[1]) for line in listed.splitlines()}
    found, ahead = [], [pid]
    while ahead:
        parent = ahead.pop()
        children = [child for child, its in parents.items() if its == parent]
        found += children
        ahead += children
    return found
