"""Long results: shown in part, kept whole, read in ranges by whoever is asked the same question."""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.cell import Host
from colony.envelope import Emission, Envelope
from colony.keys import Keys
from colony.results import MAX_RESULT_BYTES, SHELVED_BYTES, SHELVED_KEY, handle_of
from colony.testing.harness import Harness
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, ToolDeclaration, TopologySpec
from tests.test_worker import contract
from workers.toolloop.view import cut

KEPT = re.compile(r"\[kept: (\d+) bytes at (blob:\w+)\]$")
LARGE = "".join(f"{n:06d}é" for n in range(640_000))  # 5 MB


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "probe"))
    found: dict[str, Any] = importlib.import_module("colony_probe").Probe.ACTS
    found.clear()
    return found


def tree(tmp_path: Path) -> TopologySpec:
    tool = ToolDeclaration(name="big", description="d", parameters={"type": "object"})
    declared = contract().model_copy(update={"tool": tool})
    return TopologySpec(
        cells=(
            CellSpec(
                path="/big",
                cell=CellSettings(type="probe"),
                params={"act": "big"},
                contract=declared,
            ),
            CellSpec(
                path="/file", cell=CellSettings(type="file"), params={"base_path": str(tmp_path)}
            ),
            CellSpec(path="/sink", cell=CellSettings(type="sink")),
        ),
        edges=(
            EdgeSpec(source="/big", target="/sink"),
            EdgeSpec(source="/file", target="/sink"),
            EdgeSpec(source="/sink", target="/sink"),
        ),
    )


def giving(acts: dict[str, Any], text: str, **hop: Any) -> None:
    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        return [Emission.of(Entry.result("c", text), **hop)]

    acts["big"] = act


CALL = Body.of(Entry.call("c", {}))


async def result(harness: Harness, trace_id: str) -> Any:
    await harness.run()
    [output] = await harness.outputs(trace_id)
    return output


async def test_a_result_of_five_megabytes_is_cut_and_can_be_had_whole(
    redis_url: str, tmp_path: Path, acts: dict[str, Any]
) -> None:
    giving(acts, LARGE)
    whole = LARGE.encode()
    async with Harness(redis_url, tree(tmp_path)) as harness:
        trace_id = await harness.send("/big", CALL)
        output = await result(harness, trace_id)

        shown = output["body"]["messages"][0]["text"]
        found = KEPT.search(shown)
        assert found is not None
        size, handle = int(found[1]), found[2]
        key = harness.keys.shelved(trace_id, handle)
        assert size == len(whole)
        assert len(shown.encode()) < MAX_RESULT_BYTES + 192
        assert shown.startswith(whole[: MAX_RESULT_BYTES - 3].decode(errors="ignore"))
        assert await harness.link.command("GET", key) == whole
        # Nothing of it goes before the trace does.
        assert await harness.link.command("PTTL", key) == await harness.link.command(
            "PTTL", harness.keys.belongings(trace_id)
        )


async def test_the_file_cell_of_any_host_reads_it_within_its_question_only(
    redis_url: str, tmp_path: Path, acts: dict[str, Any]
) -> None:
    handles: list[str] = []

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        handles.append(await host.shelve("x" * 99 + "END"))
        arguments = {"op": "read", "path": handles[-1], "offset": 99}
        return [Emission.of(Entry.call("d", arguments), **{SHELVED_KEY: handles[-1]})]

    acts["big"] = act
    spec = tree(tmp_path)
    onward = (EdgeSpec(source="/big", target="/file"), *spec.edges[1:])
    async with Harness(redis_url, spec.model_copy(update={"edges": onward})) as harness:
        output = await result(harness, await harness.send("/big", CALL))
        assert output["body"]["messages"][0]["text"] == "END"

        asked = Body.of(Entry.call("d", {"op": "read", "path": handles[0]}))
        stranger = await result(harness, await harness.send("/file", asked))
        assert stranger["hop"]["error_code"] == "not_found"


@pytest.mark.parametrize(("length", "kept"), [(SHELVED_BYTES, 0), (SHELVED_BYTES + 1, 1)])
async def test_what_is_long_is_kept_and_a_view_that_leaves_some_of_it_out_names_it(
    redis_url: str, tmp_path: Path, acts: dict[str, Any], length: int, kept: int
) -> None:
    text = "x" * length
    giving(acts, text)
    async with Harness(redis_url, tree(tmp_path)) as harness:
        trace_id = await harness.send("/big", CALL)
        output = await result(harness, trace_id)
        key = harness.keys.shelved(trace_id, handle_of(text.encode()))

        # Whole as it is, it says nothing of that: a program may read it.
        assert output["body"]["messages"][0]["text"] == text
        assert await harness.link.command("EXISTS", key) == kept
        assert (handle_of(text.encode()) in cut(text, 100)) == bool(kept)


async def test_what_a_handle_shelved_and_never_committed_goes_by_itself(
    redis_url: str, tmp_path: Path, acts: dict[str, Any]
) -> None:
    giving(acts, LARGE)
    async with Harness(redis_url, tree(tmp_path)) as harness:
        await harness.send("/big", CALL)
        [birth] = await harness.pending()
        await harness.step(birth)
        [delivery] = await harness.pending()
        step = await harness.decide(delivery)

        [key] = step.shelved
        assert 0 < await harness.link.command("PTTL", key) <= 600_000
        assert isinstance(harness.keys, Keys)
