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
from workers.toolloop.rows import results_in
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


def arriving(output: Any) -> Envelope:
    """What a collector would be given of an output."""
    given = {"id": "m", "trace_id": "t", "target": "/c", "ttl": 9}
    return Envelope.model_validate({**given, "hop": output["hop"], "body": output["body"]})


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
        [row] = results_in(arriving(output))
        assert (row.text == text) == (not kept)
        assert (f"[kept: {length} bytes at {handle_of(text.encode())}]" in row.text) == bool(kept)


@pytest.mark.parametrize("letter", ["x", "é", "€", "😀"])
@pytest.mark.parametrize("limit", [SHELVED_BYTES, MAX_RESULT_BYTES])
@pytest.mark.parametrize("beyond", [-4, -1, 0, 1, 4, 100, 200])
async def test_whatever_handle_a_view_shows_leads_to_the_whole(
    redis_url: str, tmp_path: Path, acts: dict[str, Any], letter: str, limit: int, beyond: int
) -> None:
    text = letter * ((limit + beyond) // len(letter.encode()))
    giving(acts, text)
    async with Harness(redis_url, tree(tmp_path)) as harness:
        trace_id = await harness.send("/big", CALL)
        output = await result(harness, trace_id)
        shown = cut(results_in(arriving(output))[0].text or "", 4_096)

        found = KEPT.search(shown)
        assert bool(found) == (len(text.encode()) > SHELVED_BYTES)
        if found is not None:
            assert shown.count("blob:") == 1
            kept = await harness.link.command("GET", harness.keys.shelved(trace_id, found[2]))
            assert kept == text.encode()
            assert int(found[1]) == len(kept)


async def test_a_range_of_a_file_is_not_kept_again_and_no_handle_is_named(
    redis_url: str, tmp_path: Path, acts: dict[str, Any]
) -> None:
    (tmp_path / "long.txt").write_text("x" * 100_000)
    async with Harness(redis_url, tree(tmp_path)) as harness:
        read = Body.of(Entry.call("c", {"op": "read", "path": "long.txt", "limit": 50_000}))
        output = await result(harness, await harness.send("/file", read))

        shown = cut(results_in(arriving(output))[0].text or "", 4_096)
        assert "blob:" not in shown
        assert shown.endswith("read on at offset 50000]")


async def test_each_of_several_long_results_is_kept_and_named(
    redis_url: str, tmp_path: Path, acts: dict[str, Any]
) -> None:
    texts = {"a": "x" * 20_000, "b": "short", "c": "y" * 300_000, "d": "x" * 20_000}

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        return [Emission.of(*(Entry.result(call_id, text) for call_id, text in texts.items()))]

    acts["big"] = act
    async with Harness(redis_url, tree(tmp_path)) as harness:
        trace_id = await harness.send("/big", CALL)
        output = await result(harness, trace_id)

        assert len(output["hop"]["shelved"]) == 2
        for entry in results_in(arriving(output)):
            found = KEPT.search(entry.text or "")
            if entry.id == "b":
                assert found is None
                continue
            assert found is not None
            key = harness.keys.shelved(trace_id, found[2])
            assert await harness.link.command("GET", key) == texts[entry.id or ""].encode()


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
