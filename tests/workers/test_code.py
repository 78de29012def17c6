import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.errors import CellError, TopologyError
from colony.testing.claims import eventually
from colony.testing.host import RecordingHost
from colony.topology.model import Consumes, Contract, Emits, FieldSpec
from tests.workers.processes import children_running, running_in
from workers.code import Code

ECHO = """
import json, sys
doc = json.load(sys.stdin)
print(json.dumps({"header": {"route": "done"}, "messages": doc["body"]["messages"]}))
"""


ZYGOTE = "zygote_process.py"


def envelope(*entries: Entry, **fields: Any) -> Envelope:
    entries = entries or (Entry.say("user", "hello"),)
    given = {"id": "m-1", "trace_id": "t-1", "target": "/cell", "ttl": 7, **fields}
    return Envelope(body=Body.of(*entries), **given)


@asynccontextmanager
async def started(host: RecordingHost) -> AsyncIterator[Code]:
    cell = Code(Code.Params.model_validate(host.spec.params))
    await cell.start(host)
    try:
        yield cell
    finally:
        await cell.stop()


async def run(params: Mapping[str, Any], arriving: Envelope | None = None, **host: Any) -> Any:
    recording = RecordingHost.of("code", params, **host)
    async with started(recording) as cell:
        return await cell.handle(arriving or envelope(), recording)


async def run_script(text: str, arriving: Envelope | None = None, **host: Any) -> Any:
    return await run({"runner": "python3", "script_inline": text}, arriving, **host)


def text_of(emissions: Any) -> str:
    return emissions[0].body.entries[0].text


# Params


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"handler": "a:b", "script_inline": "pass"},
        {"script_inline": "pass", "script_path": "x.py"},
        {"handler": "a:b", "runner": "python3"},
        {"script_inline": "pass", "runner": "node"},
        {"script_inline": "pass", "external_timeout_ms": 0},
        {"script_inline": "pass", "max_concurrency": 0},
        {"handler": "no_colon"},
    ],
)
def test_params_that_name_no_single_program_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Code.Params.model_validate(params)


async def test_a_handler_that_cannot_be_imported_is_refused_at_start() -> None:
    with pytest.raises(TopologyError, match="nowhere"):
        await run({"handler": "nowhere.at_all:f"})


async def test_a_missing_script_file_is_refused_at_start() -> None:
    with pytest.raises(TopologyError, match=r"gone\.py"):
        await run({"script_path": "gone.py"})


# Scripts


async def test_script_reads_the_document_and_its_header_becomes_the_hop() -> None:
    (emission,) = await run_script(ECHO)

    assert emission.body.entries == (Entry.say("user", "hello"),)
    assert emission.hop["route"] == "done"
    assert emission.hop["exit_code"] == 0
    assert emission.hop["had_stderr"] is False
    assert isinstance(emission.hop["duration_ms"], int)


async def test_script_sees_exactly_the_documented_keys() -> None:
    script = """
import json, sys
doc = json.load(sys.stdin)
assert sys.stdin.read() == ""
print(json.dumps({"messages": [], "seen": doc}))
"""
    arriving = envelope(context={"turn_id": "t"}, hop={"route": "x"}, reply_to="/asker")
    params = {"runner": "python3", "script_inline": script, "limit": 3}

    (emission,) = await run(params, arriving)

    assert emission.body.to_json()["seen"] == {
        "envelope": {
            "header": {"context": {"turn_id": "t"}, "hop": {"route": "x"}},
            "target": "/cell",
            "trace_id": "t-1",
            "ttl": 7,
            "reply_to": "/asker",
        },
        "body": {"messages": [{"origin": "user", "type": "text", "text": "hello"}]},
        "params": {"runner": "python3", "limit": 3},
    }


async def test_script_sees_no_secret_at_any_depth() -> None:
    script = """
import json, os, sys
doc = json.load(sys.stdin)
print(json.dumps({"messages": [], "seen": [doc["params"], sorted(os.environ)]}))
"""
    params = {
        "script_inline": script,
        "api_key": "k",
        "search": {"url": "u", "bearer_token": "t", "list": [{"password": "p", "n": 1}]},
    }
    os.environ["SOME_SERVICE_TOKEN"] = "t"
    try:
        (emission,) = await run(params)
    finally:
        del os.environ["SOME_SERVICE_TOKEN"]

    seen, environment = emission.body.to_json()["seen"]
    assert seen == {"search": {"url": "u", "list": [{"n": 1}]}}
    assert "PATH" in environment
    assert "SOME_SERVICE_TOKEN" not in environment


async def test_each_run_is_a_fresh_interpreter_called_main() -> None:
    script = """
import builtins, json, sys
assert __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals()
assert "__file__" not in globals() and sys.argv == ["-c"]
print(json.dumps({"messages": [], "seen": hasattr(builtins, "left_behind")}))
builtins.left_behind = True
"""
    host = RecordingHost.of("code", {"script_inline": script})
    async with started(host) as cell:
        seen = [(await cell.handle(envelope(), host))[0].body.to_json()["seen"] for _ in range(2)]

    assert seen == [False, False]


async def test_script_has_no_descriptor_but_its_three_streams() -> None:
    script = """
import json, os
os.dup(0)
print(json.dumps({"messages": [], "open": sorted(map(int, os.listdir("/proc/self/fd")))}))
"""
    (emission,) = await run_script(script)

    # The third is the copy made by the script, the fourth the listing itself.
    assert emission.body.to_json()["open"] == [0, 1, 2, 3, 4]


async def test_script_file_runs_in_its_directory_and_imports_its_neighbour(tmp_path: Path) -> None:
    files = {
        "main.py": "import json, os, neighbour\n"
        'print(json.dumps({"messages": [], "seen": [os.getcwd(), __file__, neighbour.NAME]}))',
        "neighbour.py": "NAME = 'next door'",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    (emission,) = await run({"script_path": "./main.py"}, files=files, directory=tmp_path)

    seen = emission.body.to_json()["seen"]
    assert seen == [str(tmp_path), str(tmp_path / "main.py"), "next door"]


async def test_exit_1_is_script_failed_with_both_streams_between_sentinels() -> None:
    script = "import sys; print('so far'); print('went wrong', file=sys.stderr); sys.exit(1)"

    (emission,) = await run_script(script)

    assert emission.hop == {
        "finish_reason": "error",
        "error_code": "script_failed",
        "exit_code": 1,
    }
    text = emission.body.entries[0].text or ""
    assert "--- stdout ---\nso far\n" in text
    assert "--- stderr ---\nwent wrong\n" in text
    assert text.endswith("--- end ---")


@pytest.mark.parametrize(
    ("ending", "exit_code"),
    [
        ("raise SystemExit", 0),
        ("import sys; sys.exit(None)", 0),
        ("import sys; sys.exit(259)", 3),
        ("import sys; sys.exit('a reason')", 1),
        ("1 / 0", 1),
        ("import os; os._exit(4)", 4),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11),
        ("this is not python", 1),
        ("import atexit; atexit.register(print, 'x' * 9)", 0),
    ],
)
async def test_script_ends_as_under_python3(ending: str, exit_code: int) -> None:
    (emission,) = await run_script(f'print(\'{{"messages": []}}\', end="", flush=True)\n{ending}')

    if exit_code:
        assert emission.hop["exit_code"] == exit_code
    else:
        assert emission.hop.get("exit_code", 0) == 0


async def test_traceback_starts_in_the_script_itself() -> None:
    (emission,) = await run_script("def f():\n    1 / 0\nf()\n")

    assert 'Traceback (most recent call last):\n  File "<string>", line 3' in text_of([emission])
    assert "zygote" not in text_of([emission])


async def test_script_over_its_timeout_is_killed_with_what_it_started(tmp_path: Path) -> None:
    script = """
import subprocess, time
subprocess.Popen(["sleep", "60"])
open("begun", "w").close()
time.sleep(60)
"""
    params = {"script_inline": script, "external_timeout_ms": 1000}
    host = RecordingHost.of("code", params, directory=tmp_path)
    async with started(host) as cell:
        begun = time.perf_counter()
        (emission,) = await cell.handle(envelope(), host)

        assert emission.hop == {"finish_reason": "error", "error_code": "script_timeout"}
        assert time.perf_counter() - begun < 5
        assert (tmp_path / "begun").exists()
        await eventually(lambda: not running_in(tmp_path))


async def test_cancelling_a_handle_kills_the_script(tmp_path: Path) -> None:
    script = "import time\ntime.sleep(60)"
    host = RecordingHost.of("code", {"script_inline": script}, directory=tmp_path)
    async with started(host) as cell:
        handle = asyncio.create_task(cell.handle(envelope(), host))
        await eventually(lambda: running_in(tmp_path) != [])
        handle.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handle

        await eventually(lambda: not running_in(tmp_path))


async def test_what_a_script_leaves_running_neither_delays_nor_survives_it(tmp_path: Path) -> None:
    script = """
import subprocess
subprocess.Popen(["sleep", "60"])
print('{"messages": []}')
"""
    begun = time.perf_counter()

    (emission,) = await run_script(script, directory=tmp_path)

    assert "error_code" not in emission.hop
    assert time.perf_counter() - begun < 5
    assert not running_in(tmp_path)


@pytest.mark.parametrize(
    "stdout",
    [
        "",
        "not json",
        "7",
        "[1, 2]",
        "null",
        '{"messages": []} trailing',
        '{"header": "a string", "messages": []}',
        '{"header": null, "messages": []}',
        '[{"messages": []}, 5]',
        '{"messages": [], "n": NaN}',
        "[" * 100_000,
    ],
)
async def test_stdout_that_is_no_emission_is_invalid_json(stdout: str) -> None:
    (emission,) = await run_script(f"print({stdout!r})")

    assert emission.hop == {"finish_reason": "error", "error_code": "invalid_json"}


async def test_a_body_in_another_format_is_invalid_ubf_body() -> None:
    (emission,) = await run_script("print('{\"foo\": 1}')")

    assert emission.hop["error_code"] == "invalid_ubf_body"


async def test_an_empty_array_emits_nothing() -> None:
    assert await run_script("print('[]')") == []


async def test_stderr_of_a_good_run_is_a_warning_and_not_in_the_message() -> None:
    script = "import sys\nsys.stderr.write('x' * 20000)\nprint('{\"messages\": []}')"
    host = RecordingHost.of("code", {"script_inline": script})

    async with started(host) as cell:
        (emission,) = await cell.handle(envelope(), host)

    assert emission.hop["had_stderr"] is True
    assert emission.body == Body.of()
    assert host.logged == [
        {"event": "script_wrote_to_stderr", "log_level": "warning", "stderr": "x" * 8192}
    ]


async def test_a_script_of_200_kilobytes_runs() -> None:
    assert len(await run_script("# " + "x" * 200_000 + ECHO)) == 1


async def test_a_body_of_several_megabytes_passes_both_ways() -> None:
    long = Entry.say("user", "ä" * 2_000_000)

    (emission,) = await run_script(ECHO, envelope(long))

    assert emission.body.entries == (long,)


async def test_a_script_that_prints_without_end_fails_and_the_next_one_runs() -> None:
    host = RecordingHost.of("code", {"script_inline": "while True: print('x' * 65536)"})
    async with started(host) as cell:
        (emission,) = await cell.handle(envelope(), host)
    assert emission.hop["error_code"] == "script_failed"
    assert len(emission.body.entries[0].text or "") < 20_000

    assert len(await run_script(ECHO)) == 1


async def test_a_script_that_allocates_without_end_fails() -> None:
    (emission,) = await run_script("bytearray(8 << 30)")

    assert emission.hop["error_code"] == "script_failed"
    assert "MemoryError" in text_of([emission])


async def test_text_that_has_no_bytes_is_invalid_input() -> None:
    (emission,) = await run_script(ECHO, envelope(Entry.say("user", "\ud800")))

    assert emission.hop["error_code"] == "invalid_input"


async def test_scripts_run_side_by_side() -> None:
    host = RecordingHost.of("code", {"script_inline": "import time; time.sleep(0.5); print('[]')"})
    async with started(host) as cell:
        begun = time.perf_counter()
        await asyncio.gather(*(cell.handle(envelope(), host) for _ in range(6)))

    assert time.perf_counter() - begun < 2


async def test_the_process_that_forks_is_replaced_when_it_dies(tmp_path: Path) -> None:
    host = RecordingHost.of("code", {"script_inline": ECHO})
    sleeping = RecordingHost.of(
        "code", {"script_inline": "import time; time.sleep(60)"}, directory=tmp_path
    )
    async with started(host) as cell, started(sleeping) as other:
        handle = asyncio.create_task(other.handle(envelope(), sleeping))
        await eventually(lambda: running_in(tmp_path) != [])
        (zygote,) = children_running(ZYGOTE)
        os.kill(zygote, signal.SIGKILL)
        (broken,) = await handle
        (emission,) = await cell.handle(envelope(), host)

    assert broken.hop["error_code"] == "io_error"
    assert emission.hop["route"] == "done"
    await eventually(lambda: not running_in(tmp_path))


OWNER = """
import asyncio, sys
from colony.body import Body
from colony.envelope import Envelope
from colony.testing.host import RecordingHost
from workers.code import Code

async def main():
    script = sys.argv[2]
    host = RecordingHost.of("code", {"script_inline": script}, directory=sys.argv[1])
    cell = Code(Code.Params.model_validate(host.spec.params))
    await cell.start(host)
    await cell.handle(Envelope(id="m", trace_id="t", target="/c", ttl=1, body=Body.of()), host)

asyncio.run(main())
"""


async def test_scripts_die_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    script = "import time; time.sleep(60)"
    owner = subprocess.Popen(  # noqa: ASYNC220  waited for below
        [sys.executable, "-c", OWNER, str(tmp_path), script], env={**os.environ, "PYTHONPATH": path}
    )
    await eventually(lambda: running_in(tmp_path) != [])

    owner.kill()
    owner.wait()

    await eventually(lambda: not running_in(tmp_path))


async def test_the_process_that_forks_is_shared_and_ends_with_its_last_cell() -> None:
    hosts = [RecordingHost.of("code", {"script_inline": ECHO}) for _ in range(2)]
    async with started(hosts[0]):
        async with started(hosts[1]):
            shared = children_running(ZYGOTE)
        assert children_running(ZYGOTE) == shared

    assert len(shared) == 1
    assert not children_running(ZYGOTE)


async def test_an_error_answers_the_call_that_came_in() -> None:
    (emission,) = await run_script("1 / 0", envelope(Entry.call("call-7", {"q": 1})))
    (entry,) = emission.body.entries
    assert (entry.origin, entry.type, entry.id, entry.is_error) == (
        "tool",
        "tool_result",
        "call-7",
        True,
    )

    (emission,) = await run_script("1 / 0")
    assert emission.body.entries[0].id == ""


# Contracts


def contract(*, multi_send_capable: bool = False) -> Contract:
    route = FieldSpec(type="string", values=("a", "b"))
    emits = Emits(hop={"route": route, "n": FieldSpec(type="number", required=False)})
    return Contract(
        version="1",
        settings={},
        consumes=Consumes(),
        emits=emits,
        multi_send_capable=multi_send_capable,
    )


def emitting(*headers: str) -> str:
    elements = ", ".join(f'{{"header": {header}, "messages": []}}' for header in headers)
    return f"print('[{elements}]')"


async def test_two_emissions_need_the_declaration() -> None:
    two = emitting('{"route": "a"}', '{"route": "b"}')

    (refused,) = await run_script(two, contract=contract())
    assert refused.hop["error_code"] == "multi_send_not_declared"

    assert len(await run_script(two, contract=contract(multi_send_capable=True))) == 2
    assert len(await run_script(two)) == 2


@pytest.mark.parametrize(
    "header",
    ['{"route": "c"}', '{"route": 5}', "{}", '{"route": "a", "n": "many"}', '{"route": null}'],
)
async def test_one_emission_against_the_contract_holds_all_back(header: str) -> None:
    script = emitting('{"route": "a"}', header, '{"route": "b"}')

    (emission,) = await run_script(script, contract=contract(multi_send_capable=True))

    assert emission.hop == {"finish_reason": "error", "error_code": "contract_violation"}


async def test_messages_count_as_an_array() -> None:
    promised = contract().model_copy(
        update={"emits": Emits(body={"messages": FieldSpec(type="array")})}
    )

    (emission,) = await run_script("print('{\"messages\": []}')", contract=promised)

    assert "error_code" not in emission.hop


async def test_undeclared_keys_and_numbers_of_both_kinds_are_fine() -> None:
    script = emitting('{"route": "a", "n": 1, "extra": []}', '{"route": "b", "n": 1.5}')

    assert len(await run_script(script, contract=contract(multi_send_capable=True))) == 2


async def test_a_handler_is_held_to_its_contract() -> None:
    (emission,) = await run({"handler": f"{__name__}:upper"}, contract=contract())

    assert emission.hop["error_code"] == "contract_violation"


# Handlers


def upper(envelope: Envelope, params: Mapping[str, Any]) -> Emission:
    entry = envelope.body.last("user")
    assert entry is not None
    return Emission.say((entry.text or "").upper() + params.get("suffix", ""), route="loud")


async def upper_async(envelope: Envelope, params: Mapping[str, Any]) -> list[Emission]:
    await asyncio.sleep(0)
    return [upper(envelope, params)]


def nothing(envelope: Envelope, params: Mapping[str, Any]) -> None:
    print("a handler may print")


def exiting(envelope: Envelope, params: Any) -> None:
    raise SystemExit(3)


def raising(envelope: Envelope, params: Mapping[str, Any]) -> None:
    raise ValueError("no such thing")


def poisoned(envelope: Envelope, params: Mapping[str, Any]) -> None:
    raise CellError(detail="cannot be handled", retryable=True)


def leaving(envelope: Envelope, params: Mapping[str, Any]) -> None:
    os._exit(0)


def answering_twice(envelope: Envelope, params: Mapping[str, Any]) -> None:
    if os.fork():
        os.wait()


def printing(envelope: Envelope, params: Mapping[str, Any]) -> Emission:
    print("by print")
    os.write(1, b"by write\n")
    subprocess.run(["echo", "by a program"], check=True)
    return Emission.say("said")


def a_string(envelope: Envelope, params: Mapping[str, Any]) -> str:
    return "not an emission"


def slow(envelope: Envelope, params: Mapping[str, Any]) -> None:
    time.sleep(params["seconds"])


async def slow_async(envelope: Envelope, params: Mapping[str, Any]) -> None:
    await asyncio.sleep(60)


def own_timeout(envelope: Envelope, params: Mapping[str, Any]) -> None:
    raise TimeoutError("the service behind it")


def pid(envelope: Envelope, params: Mapping[str, Any]) -> Emission:
    return Emission.say(str(os.getpid()), context=dict(envelope.context), id=envelope.id)


@pytest.mark.parametrize("isolation", [None, "inline", "process", "job"])
@pytest.mark.parametrize("name", ["upper", "upper_async"])
async def test_handler_gives_the_same_plain_or_async_inline_or_apart(
    name: str, isolation: str | None
) -> None:
    params = {"handler": f"{__name__}:{name}", "suffix": "!"}

    (emission,) = await run(params, isolation=isolation)

    assert emission == Emission.say("HELLO!", route="loud")


@pytest.mark.parametrize("isolation", [None, "process"])
async def test_handler_that_gives_none_emits_nothing(isolation: str | None) -> None:
    assert await run({"handler": f"{__name__}:nothing"}, isolation=isolation) == []


@pytest.mark.parametrize("isolation", [None, "process"])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raising", "no such thing"),
        ("a_string", "not str"),
        ("own_timeout", "service behind"),
        ("exiting", "3"),
    ],
)
async def test_what_a_handler_raises_is_script_failed(
    name: str, says: str, isolation: str | None
) -> None:
    arriving = envelope(Entry.call("c-1", {}))

    (emission,) = await run({"handler": f"{__name__}:{name}"}, arriving, isolation=isolation)

    assert emission.hop["error_code"] == "script_failed"
    assert emission.body.entries[0].id == "c-1"
    assert says in text_of([emission])


@pytest.mark.parametrize("name", ["leaving", "answering_twice"])
async def test_an_isolated_handler_without_exactly_one_answer_is_script_failed(name: str) -> None:
    (emission,) = await run({"handler": f"{__name__}:{name}"}, isolation="process")

    assert (emission.hop["error_code"], emission.hop["exit_code"]) == ("script_failed", 0)


async def test_nothing_that_an_isolated_handler_prints_gets_into_its_answer() -> None:
    found = await run({"handler": f"{__name__}:printing"}, isolation="process")

    assert found == [Emission.say("said")]


async def test_a_cell_error_of_a_handler_is_its_own_decision() -> None:
    with pytest.raises(CellError) as caught:
        await run({"handler": f"{__name__}:poisoned"})

    assert caught.value.retryable


@pytest.mark.parametrize(
    ("name", "isolation"), [("slow", None), ("slow_async", None), ("slow", "process")]
)
async def test_a_slow_handler_is_script_timeout(name: str, isolation: str | None) -> None:
    params = {"handler": f"{__name__}:{name}", "external_timeout_ms": 300, "seconds": 1}

    (emission,) = await run(params, isolation=isolation)

    assert emission.hop == {"finish_reason": "error", "error_code": "script_timeout"}


async def test_plain_handlers_do_not_block_the_loop() -> None:
    host = RecordingHost.of("code", {"handler": f"{__name__}:slow", "seconds": 0.3})
    async with started(host) as cell:
        begun = time.perf_counter()
        await asyncio.gather(*(cell.handle(envelope(), host) for _ in range(4)))

    assert time.perf_counter() - begun < 1


async def test_an_isolated_handler_has_the_whole_envelope_and_another_process() -> None:
    arriving = envelope(context={"turn_id": "t-9"})

    (emission,) = await run({"handler": f"{__name__}:pid"}, arriving, isolation="process")

    assert emission.hop == {"context": {"turn_id": "t-9"}, "id": "m-1"}
    assert text_of([emission]) != str(os.getpid())
