"""Confinement: whatever a program does, its call ends in time and nothing of it is left.

Each misbehaviour is tried as a command, as a script and as an isolated handler, and both ways: as
the kernel of this machine allows it, and as it is done where there are no namespaces.
"""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.cell import Cell
from colony.confinement.folders import hold, remove_abandoned
from colony.confinement.supervision import SUBREAPER, strongest
from colony.envelope import Emission, Envelope
from colony.testing.claims import eventually
from colony.testing.host import RecordingHost
from tests.workers.processes import running_in
from workers.bash import Bash
from workers.code import Code
from workers.code.zygote import LIMITS, Finished, Script, Zygote

WAYS = [pytest.param(None, id="best"), pytest.param(SUBREAPER, id="subreaper")]
PATIENT_MS, HASTY_MS = 60_000, 1_500


@dataclass(frozen=True)
class Misbehaviour:
    """What a program does, and how its call ends as a command, and as a script or a handler."""

    text: str
    command: Mapping[str, object]
    script: str | None
    timeout_ms: int = PATIENT_MS


LATE = {"error_code": "timeout", "exit_code": -1}
WELL = {"exit_code": 0}
TABLE = {
    "fork_bomb": Misbehaviour(
        """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
        LATE,
        "script_timeout",
        HASTY_MS,
    ),
    "endless_print": Misbehaviour(
        "while True: print('x' * 65536)", LATE, "script_failed", HASTY_MS * 4
    ),
    "sleep": Misbehaviour("import time; time.sleep(1e9)", LATE, "script_timeout", HASTY_MS),
    "segfault": Misbehaviour(
        "import ctypes; ctypes.string_at(0)", {"exit_code": -1}, "script_failed"
    ),
    "two_gigabytes": Misbehaviour("bytearray(2 << 30)", {"exit_code": 1}, "script_failed"),
    "setsid_daemon": Misbehaviour(
        "import subprocess; subprocess.Popen(['sleep', '1e9'], start_new_session=True)", WELL, None
    ),
    "double_forked_daemon": Misbehaviour(
        """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        time.sleep(1e9)
    os._exit(0)
os.wait()
""",
        WELL,
        None,
    ),
    "daemon_holding_the_pipes": Misbehaviour(
        """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(1e9)
""",
        WELL,
        None,
    ),
    "closed_streams": Misbehaviour(
        "import os, time\nfor n in (0, 1, 2): os.close(n)\ntime.sleep(1e9)",
        LATE,
        "script_timeout",
        HASTY_MS,
    ),
}

misbehaving = pytest.mark.parametrize("what", [pytest.param(v, id=k) for k, v in TABLE.items()])
both_ways = pytest.mark.parametrize("way", WAYS)


def envelope(*entries: Entry) -> Envelope:
    return Envelope(id="m-1", trace_id="t-1", target="/cell", ttl=7, body=Body.of(*entries))


def command(text: str) -> Envelope:
    return envelope(Entry.call("c-1", {"command": text}))


def python(text: str) -> str:
    return f"exec {shlex.quote(sys.executable)} -c {shlex.quote(text)}"


@asynccontextmanager
async def started(cell: Cell, host: RecordingHost) -> AsyncIterator[Any]:
    await cell.start(host)
    try:
        yield cell
    finally:
        await cell.stop()


@asynccontextmanager
async def bash(way: str | None = None, **params: Any) -> AsyncIterator[Any]:
    host = RecordingHost.of("bash", params)
    async with started(Bash(Bash.Params.model_validate(params), way=way), host) as cell:

        async def call(text: str) -> Emission:
            (emission,) = await cell.handle(command(text), host)
            return emission

        yield call


def text_of(emission: Emission) -> str:
    return emission.body.entries[0].text or ""


# The table


@both_ways
@misbehaving
async def test_a_command_ends_in_time_and_leaves_nothing(
    what: Misbehaviour, way: str | None, tmp_path: Path
) -> None:
    params = {"directory": str(tmp_path), "external_timeout_ms": what.timeout_ms}
    async with bash(way, **params) as call:
        emission = await call(python(what.text))

        assert {name: emission.hop.get(name) for name in what.command} == what.command
        assert emission.hop["confinement"] == (way or emission.hop["confinement"])
        await eventually(lambda: not running_in(tmp_path))
        assert text_of(await call("echo fine")) == "fine"


@misbehaving
async def test_a_script_ends_in_time_and_leaves_nothing(what: Misbehaviour, tmp_path: Path) -> None:
    script = f"{what.text}\nprint('[]')"
    params = {"script_inline": script, "external_timeout_ms": what.timeout_ms}
    host = RecordingHost.of("code", params, directory=tmp_path)
    async with started(Code(Code.Params.model_validate(params)), host) as cell:
        for _ in range(2):
            emissions = await cell.handle(envelope(), host)

            assert [emission.hop["error_code"] for emission in emissions] == (
                [what.script] if what.script else []
            )
            await eventually(lambda: not running_in(tmp_path))


def misbehave(envelope: Envelope, params: Mapping[str, Any]) -> None:
    os.chdir(params["directory"])
    exec(params["text"], {})


@misbehaving
async def test_an_isolated_handler_ends_in_time_and_leaves_nothing(
    what: Misbehaviour, tmp_path: Path
) -> None:
    params = {
        "handler": f"{__name__}:misbehave",
        "external_timeout_ms": what.timeout_ms,
        "text": what.text,
        "directory": str(tmp_path),
    }
    host = RecordingHost.of("code", params, isolation="process")
    async with started(Code(Code.Params.model_validate(params)), host) as cell:
        for _ in range(2):
            emissions = await cell.handle(envelope(), host)

            assert [emission.hop["error_code"] for emission in emissions] == (
                [what.script] if what.script else []
            )
            await eventually(lambda: not running_in(tmp_path))


@misbehaving
async def test_a_zygote_without_namespaces_leaves_nothing(
    what: Misbehaviour, tmp_path: Path
) -> None:
    zygote = Zygote(way=SUBREAPER)
    try:
        try:
            async with asyncio.timeout(what.timeout_ms / 1000):
                finished = await zygote.run(Script(what.text, tmp_path), b"")
                found = "script_failed" if finished.exit_code else None
        except TimeoutError:
            found = "script_timeout"

        assert found == what.script
        await eventually(lambda: not running_in(tmp_path))
        assert await zygote.run(Script("print(1)", tmp_path), b"") == Finished(
            0, b"1\n", b"", SUBREAPER
        )
    finally:
        zygote.close()


async def test_a_script_may_have_threads_children_and_handlers_of_signals() -> None:
    script = """
import concurrent.futures, json, os, signal, subprocess, threading
threads = [threading.Thread(target=lambda: None) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
child = os.fork() or os._exit(3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
caught = []
signal.signal(signal.SIGTERM, lambda *_: caught.append("term"))
os.kill(os.getpid(), signal.SIGTERM)
with concurrent.futures.ProcessPoolExecutor(2) as pool:
    apart = list(pool.map(abs, [-1, -2]))
said = subprocess.run(["echo", "hi"], capture_output=True, text=True).stdout
print(json.dumps({"messages": [], "seen": [status, caught, apart, said]}))
"""
    host = RecordingHost.of("code", {"script_inline": script})
    async with started(Code(Code.Params.model_validate(host.spec.params)), host) as cell:
        (emission,) = await cell.handle(envelope(), host)

    assert emission.body.to_json()["seen"] == [3, ["term"], [1, 2], "hi\n"]


# Bounds


@both_ways
async def test_a_fork_bomb_stays_below_its_number_of_processes(
    way: str | None, tmp_path: Path
) -> None:
    limit = 40
    params = {"directory": str(tmp_path), "external_timeout_ms": 3_000, "max_processes": limit}
    async with bash(way, **params) as call:
        bomb = asyncio.create_task(call(python(TABLE["fork_bomb"].text)))
        seen = await most_running_in(tmp_path, bomb)

    assert limit / 2 < seen <= limit


async def test_a_fork_bomb_of_a_script_stays_below_its_number_of_processes(tmp_path: Path) -> None:
    params = {"script_inline": TABLE["fork_bomb"].text, "external_timeout_ms": 4_000}
    host = RecordingHost.of("code", params, directory=tmp_path)
    async with started(Code(Code.Params.model_validate(params)), host) as cell:
        seen = await most_running_in(tmp_path, asyncio.create_task(cell.handle(envelope(), host)))

    assert LIMITS.processes / 2 < seen <= LIMITS.processes


async def most_running_in(directory: Path, work: asyncio.Task[Any]) -> int:
    most = 0
    while not work.done():
        most = max(most, len(running_in(directory)))
        await asyncio.wait([work], timeout=0.02)
    return most


async def test_commands_do_not_share_their_number_of_processes(tmp_path: Path) -> None:
    params = {"directory": str(tmp_path), "external_timeout_ms": 3_000, "max_processes": 20}
    async with bash(**params) as call:
        bomb = asyncio.create_task(call(python(TABLE["fork_bomb"].text)))
        await eventually(lambda: len(running_in(tmp_path)) > 10)

        assert text_of(await call("echo a | cat | cat | cat")) == "a"
        await bomb


# What a command is given


@both_ways
async def test_a_command_sees_no_secret_of_its_worker(
    way: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLONY_REDIS_URL", "OPENAI_API_KEY", "DATABASE_URL"):
        monkeypatch.setenv(name, "s3cr3t")

    async with bash(way, env={"GIVEN": "on purpose"}) as call:
        emission = await call("env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'")

    assert "GIVEN=on purpose" in text_of(emission)
    assert "PATH=" in text_of(emission)
    assert "s3cr3t" not in text_of(emission)


@both_ways
async def test_a_command_gains_no_rights_and_none_over_its_worker(way: str | None) -> None:
    asked = f"grep NoNewPrivs /proc/self/status; kill -0 {os.getpid()} || echo refused"
    async with bash(way) as call:
        emission = await call(asked)

    rights, *rest = text_of(emission).splitlines()
    assert rights.split() == ["NoNewPrivs:", "1"]
    # What runs as the worker's own user may do so, as SECURITY.md says.
    if os.getuid() == 0 or emission.hop["confinement"] != SUBREAPER:
        assert rest[0] == "refused"


@pytest.mark.skipif(strongest() == SUBREAPER, reason="only namespaces hold what is shared")
async def test_memory_that_a_command_shares_goes_with_it() -> None:
    create = "import ctypes; print(ctypes.CDLL(None).shmget(0x636f6c79, 4096, 0o3600))"
    async with bash() as call:
        first, second = [text_of(await call(python(create))) for _ in range(2)]

    # It could be created a second time because the first is gone.
    assert int(first) >= 0
    assert int(second) >= 0


# Folders


def test_a_folder_is_removed_once_nobody_holds_it_and_it_is_not_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    held, left, new, other = (tmp_path / name for name in ("p-held", "p-left", "p-new", "other"))
    for folder in (held, left, new, other):
        folder.mkdir()
        (folder / "file").touch()
    for folder in (held, left, other):
        os.utime(folder, (0, 0))
    (tmp_path / "p-link").symlink_to(other)
    holding = hold(held)

    remove_abandoned("p-")
    first = sorted(path.name for path in tmp_path.iterdir())
    os.close(holding)
    remove_abandoned("p-")

    assert first == ["other", "p-held", "p-link", "p-new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "p-link", "p-new"]
    assert (other / "file").exists()


# Workers that die, and workers that are not root


OWNER = """
import asyncio, sys
from colony.body import Body, Entry
from colony.envelope import Envelope
from colony.testing.host import RecordingHost
from workers.bash import Bash

async def main():
    directory, way = sys.argv[1:]
    host = RecordingHost.of("bash", {})
    cell = Bash(Bash.Params(directory=directory), way=way or None)
    await cell.start(host)
    call = Entry.call("c", {"command": "setsid sleep 1e9 & sleep 1e9"})
    await cell.handle(Envelope(id="m", trace_id="t", target="/c", ttl=1, body=Body.of(call)), host)

asyncio.run(main())
"""


@both_ways
async def test_commands_die_with_a_worker_that_is_killed(way: str | None, tmp_path: Path) -> None:
    owner = subprocess.Popen(  # noqa: ASYNC220  waited for below
        [sys.executable, "-c", OWNER, str(tmp_path), way or ""],
        # A worker that is killed removes no folder any more.
        env={**with_our_path(), "TMPDIR": str(tmp_path)},
    )
    await eventually(lambda: len(running_in(tmp_path)) > 1)

    owner.kill()
    owner.wait()

    await eventually(lambda: not running_in(tmp_path))


@both_ways
async def test_cancelling_a_call_ends_its_command(way: str | None, tmp_path: Path) -> None:
    async with bash(way, directory=str(tmp_path)) as call:
        task = asyncio.create_task(call("setsid sleep 1e9 & sleep 1e9"))
        await eventually(lambda: len(running_in(tmp_path)) > 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await eventually(lambda: not running_in(tmp_path))


# As nobody, who may still read an interpreter that lies in the home of root.
NOBODY = """
import asyncio, json, os, sys
from pathlib import Path
from colony.body import Body, Entry
from colony.confinement import kernel
from colony.envelope import Envelope
from colony.testing.host import RecordingHost
from workers.bash import Bash
from workers.code.zygote import Script, Zygote

async def main():
    way = sys.argv[1] or None
    kernel.become(65534)
    host = RecordingHost.of("bash", {})
    cell = Bash(Bash.Params(max_processes=30), way=way)
    await cell.start(host)
    told = []
    for command in ("id -u; setsid sleep 1e9 &", "for i in $(seq 50); do sleep 5 & done"):
        call = Entry.call("c", {"command": command})
        given = Envelope(id="m", trace_id="t", target="/c", ttl=1, body=Body.of(call))
        (emission,) = await cell.handle(given, host)
        told.append([emission.hop["exit_code"], emission.body.entries[0].text])
    zygote = Zygote(way=way)
    text = "import os; os.fork() or os.setsid(); print(os.getuid())"
    finished = await zygote.run(Script(text, Path("/")), b"")
    told.append([finished.exit_code, finished.stdout.decode()])
    zygote.close()
    print(json.dumps([told, finished.confinement]))

asyncio.run(main())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="every other test is this one where we are not root")
@both_ways
def test_a_worker_that_is_not_root_confines_as_well(way: str | None) -> None:
    run = subprocess.run(
        [sys.executable, "-c", NOBODY, way or ""],
        env=with_our_path(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    (command, many, script), confinement = json.loads(run.stdout)
    assert command == [0, "65534"]
    assert "Cannot fork" in many[1]
    assert script[0] == 0
    assert set(script[1].split()) == {"65534"}
    assert confinement == (way or confinement)


def with_our_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
