from pathlib import Path

import pytest

from colony.body import Body, Entry
from colony.errors import CellError
from colony.host import Host
from colony.schema import Schema
from colony.testing.host import Kept, RecordingHost
from colony.topology.model import ToolDeclaration


async def test_host_records_what_a_cell_asks_for(tmp_path: Path) -> None:
    tool = ToolDeclaration(name="look", description="d", parameters={})
    recording = RecordingHost.of("code", {"n": 1}, directory=tmp_path, tools=[tool])
    host: Host = recording
    body = Body.of(Entry.say("assistant", "x"))

    host.keep(body, {"route": "done"})
    host.log.warning("looked", at="this")

    assert (host.spec.path, host.spec.params) == ("/cell", {"n": 1})
    assert host.directory == tmp_path
    assert list(host.tools) == [tool]
    assert recording.kept == [Kept(body, {"route": "done"})]
    assert recording.logged == [{"event": "looked", "at": "this", "log_level": "warning"}]


async def test_first_record_of_an_envelope_wins_and_the_next_envelope_has_none() -> None:
    host = RecordingHost.of("code")

    assert await host.record("answer", b"1") == b"1"
    assert await host.record("answer", b"2") == b"1"
    assert await host.recall("answer") == b"1"
    assert await host.next_envelope().recall("answer") is None


async def test_state_is_changed_by_path_and_shared_with_the_next_envelope() -> None:
    host = RecordingHost.of("llm")
    await host.update_state("session", {"a.x": "1", "a.y": "2", "ab": "3"}, [])

    result = await host.next_envelope().update_state("session", {"a.z": "4"}, ["a"])

    assert result == {"ab": "3", "a.z": "4"}
    assert await host.state("session") == result
    assert await host.state("cell") == {}


def test_tables_that_were_not_given_are_refused() -> None:
    with pytest.raises(CellError, match="tables"):
        RecordingHost.of("store").tables(Schema.model_construct())
