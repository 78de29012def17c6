"""Fault points: what is armed happens once, at its passage, and nothing else does."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from colony import faults
from colony.body import Body, Entry
from colony.errors import ConfigError, ServerUnavailable
from colony.keys import Keys
from colony.link import Link
from colony.traces import Traces


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.arm("")


@pytest.mark.parametrize(
    "text", ["nowhere=crash", "before_commit=explode", "before_commit", "after_read=drop@0"]
)
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no fault"):
        faults.arm(text)


async def test_a_fault_happens_once_at_its_passage() -> None:
    faults.arm("after_read=drop@2")

    await faults.reach("after_handle")
    await faults.reach("after_read")
    with pytest.raises(ServerUnavailable):
        await faults.reach("after_read")
    await faults.reach("after_read")
    assert not faults.armed


async def test_a_delay_waits() -> None:
    faults.arm("after_handle=delay:0.02")
    loop = asyncio.get_running_loop()
    started = loop.time()

    await faults.reach("after_handle")

    assert loop.time() - started >= 0.02


@pytest.mark.parametrize(
    ("point", "begun"), [("before_end_trace", False), ("after_end_trace", True)]
)
async def test_a_dropped_script_is_unsent_before_and_unanswered_after(
    redis_url: str, point: str, begun: bool
) -> None:
    link = Link(redis_url)
    traces = Traces(link, Keys("test"))
    birth = await traces.birth("/a", Body.of(Entry.say("user", "hello")), ttl=9)
    faults.arm(f"{point}=drop")

    with pytest.raises(ServerUnavailable):
        await traces.end(birth.trace_id, "cancelled", "test")

    assert (await traces.get(birth.trace_id)).ended is begun
    await link.close()


@pytest.mark.parametrize(("action", "status"), [("crash", -9), ("term", -15)])
def test_a_fatal_fault_ends_the_process_at_its_point(action: str, status: int) -> None:
    script = (
        "import asyncio; from colony import faults; faults.arm('after_read=%s');"
        "asyncio.run(faults.reach('after_handle')); print('passed', flush=True);"
        "asyncio.run(faults.reach('after_read')); print('survived', flush=True)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script % action],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=60,
    )

    assert (run.returncode, run.stdout) == (status, "passed\n")


def test_a_role_arms_what_its_environment_says_and_refuses_what_is_no_fault(
    tmp_path: Path,
) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "colony.cli", "router", "--redis", "unix:///nowhere.sock"],
        env={"COLONY_FAULTS": "nowhere=crash", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert run.returncode == 2
    assert "nowhere=crash" in run.stderr
