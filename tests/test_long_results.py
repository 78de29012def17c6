"""Long results: shown in part, kept whole, read in ranges by whoever is asked the same question."""

import importlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colony.blobs import UNREFERENCED_MS
from colony.body import Body, Entry
from colony.envelope import Emission, Envelope, digest
from colony.host import Host
from colony.keys import Keys
from colony.link import Link
from colony.lua.registry import Call
from colony.results import MAX_RESULT_BYTES, SHELVED_BYTES, SHELVED_KEY, handle_of, read_handle
from colony.shelf import PIECE_BYTES, Shelf
from colony.testing.harness import Harness
from colony.topology.model import CellSettings, CellSpec, EdgeSpec, ToolDeclaration, TopologySpec
from tests.test_worker import contract
from workers.toolloop.rows import results_in
from workers.toolloop.view import cut

KEPT = re.compile(r"\[kept: (\d+) bytes at (blob:\S+)\]$")
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


def kept_at(harness: Harness, handle: str, *, session: str = "") -> str:
    named = read_handle(handle)
    assert named is not None
    text, trace_id = named
    return harness.keys.shelved(trace_id, session and digest(session), text)


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
        key = kept_at(harness, handle)
        assert size == len(whole)
        assert len(shown.encode()) < MAX_RESULT_BYTES + 192
        assert shown.startswith(whole[: MAX_RESULT_BYTES - 4096].decode(errors="ignore"))
        assert shown[: found.start()].endswith(f"{LARGE[-500:]}\n")
        # So does what a model is shown of it.
        [row] = results_in(arriving(output))
        assert LARGE[-400:] in cut(row.text or "", 4_096)
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


READ_LATER = "x" * 99 + "END"


async def keep_for(harness: Harness, acts: dict[str, Any], session: str) -> str:
    """The handle of a text that a question of a session kept."""
    handles: list[str] = []

    async def act(envelope: Envelope, host: Host) -> Sequence[Emission]:
        handles.append(await host.shelve(READ_LATER))
        return [Emission.of(Entry.result("c", "kept"), **{SHELVED_KEY: [*handles]})]

    acts["big"] = act
    await result(harness, await harness.send("/big", CALL, context={"session_id": session}))
    return handles[0]


async def read_for(harness: Harness, handle: str, session: str = "", **more: Any) -> Any:
    """What a new question of a session is told of a handle."""
    asked = Body.of(Entry.call("d", {"op": "read", "path": handle, **more}))
    context = {"session_id": session} if session else {}
    return await result(harness, await harness.send("/file", asked, context=context))


async def test_a_later_question_of_the_session_reads_what_an_earlier_one_kept(
    redis_url: str, tmp_path: Path, acts: dict[str, Any]
) -> None:
    async with Harness(redis_url, tree(tmp_path)) as harness:
        handle = await keep_for(harness, acts, "s")
        key = kept_at(harness, handle, session="s")

        output = await read_for(harness, handle, "s", offset=99)

        assert output["body"]["messages"][0]["text"] == "END"
        # It goes with the question that kept it, and nobody who reads it prolongs that.
        await harness.attend()
        record = harness.keys.trace(handle.partition("@")[2])
        goes = await harness.link.command("PEXPIRETIME", record)
        assert goes > 0
        assert await harness.link.command("PEXPIRETIME", key) == goes


async def test_a_handle_that_leads_nowhere_is_answered_alike_whatever_the_reason(
    redis_url: str, tmp_path: Path, acts: dict[str, Any]
) -> None:
    async with Harness(redis_url, tree(tmp_path)) as harness:
        handle = await keep_for(harness, acts, "s")
        expired = await keep_for(harness, acts, "gone")
        await harness.link.command("DEL", kept_at(harness, expired, session="gone"))
        wrong = handle.replace("@", "0@")
        answers = {
            (asked, session): await read_for(harness, asked, session)
            for asked, session in [
                (handle, ""),
                (handle, "other"),
                (expired, "gone"),
                (wrong, "s"),
                (handle[:-1], "s"),
                ("blob:", "s"),
            ]
        }

        for (asked, _), output in answers.items():
            told = output["body"]["messages"][0]
            assert told["is_error"]
            assert output["hop"]["error_code"] == "not_found"
            sentence = f"there is no text kept as {asked} that this question may read"
            assert told["text"] == f"not_found: {sentence}"


async def test_a_text_is_kept_for_each_question_that_keeps_it(
    redis_url: str, tmp_path: Path, acts: dict[str, Any]
) -> None:
    async with Harness(redis_url, tree(tmp_path)) as harness:
        first = await keep_for(harness, acts, "s")
        second = await keep_for(harness, acts, "s")
        await harness.link.command("DEL", kept_at(harness, first, session="s"))

        output = await read_for(harness, second, "s")

        assert output["body"]["messages"][0]["text"] == READ_LATER


@pytest.mark.parametrize(("length", "kept"), [(SHELVED_BYTES, 0), (SHELVED_BYTES + 1, 1)])
async def test_what_is_long_is_kept_and_a_view_that_leaves_some_of_it_out_names_it(
    redis_url: str, tmp_path: Path, acts: dict[str, Any], length: int, kept: int
) -> None:
    text = "x" * length
    giving(acts, text)
    async with Harness(redis_url, tree(tmp_path)) as harness:
        trace_id = await harness.send("/big", CALL)
        output = await result(harness, trace_id)
        key = kept_at(harness, handle_of(text.encode(), trace_id))

        # Whole as it is, it says nothing of that: a program may read it.
        assert output["body"]["messages"][0]["text"] == text
        assert await harness.link.command("EXISTS", key) == kept
        [row] = results_in(arriving(output))
        assert (row.text == text) == (not kept)
        assert (
            f"[kept: {length} bytes at {handle_of(text.encode(), trace_id)}]" in row.text
        ) == bool(kept)


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
            kept = await harness.link.command("GET", kept_at(harness, found[2]))
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
            key = kept_at(harness, found[2])
            assert await harness.link.command("GET", key) == texts[entry.id or ""].encode()


async def test_of_a_result_longer_than_anything_is_kept_the_beginning_is(
    redis_url: str, tmp_path: Path, acts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colony.long_results.MOST_KEPT_BYTES", 300_001)
    giving(acts, "é" * 200_000)
    async with Harness(redis_url, tree(tmp_path)) as harness:
        output = await result(harness, await harness.send("/big", CALL))

        shown = output["body"]["messages"][0]["text"]
        found = KEPT.search(shown)
        assert found is not None
        assert int(found[1]) == 300_000
        assert "… [truncated, 400000 bytes total]" in shown
        kept = await harness.link.command("GET", kept_at(harness, found[2]))
        assert kept == "é".encode() * 150_000


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


class Broken(Exception):
    """What a worker that is killed does not see."""


class BreakingLink:
    """A connection over which so many scripts run, and then none."""

    def __init__(self, link: Link, *, runs: int) -> None:
        self.link = link
        self.left = runs

    async def run(self, call: Call, *, server: str | None = None) -> Any:
        if not self.left:
            raise Broken
        self.left -= 1
        return await self.link.run(call, server=server)


async def test_a_worker_that_ends_between_two_pieces_leaves_what_expires(redis_url: str) -> None:
    link, keys, data = Link(redis_url), Keys("pieces"), LARGE.encode()
    pieces = -(-len(data) // PIECE_BYTES)
    shelf = Shelf(link, keys, "t", session="", server=None)
    for runs in range(1, pieces):
        broken: Any = BreakingLink(link, runs=runs)
        with pytest.raises(Broken):
            await replace(shelf, link=broken).put(data)

        [key] = await link.command("KEYS", "*")
        assert await link.command("STRLEN", key) == runs * PIECE_BYTES
        assert 0 < await link.command("PTTL", key) <= UNREFERENCED_MS

    # Whoever handles the envelope again completes it.
    handle, key = await shelf.put(data)
    assert await link.command("GET", key) == data
    assert await shelf.read(handle, offset=PIECE_BYTES - 1, limit=2) == (
        data[PIECE_BYTES - 1 : PIECE_BYTES + 1],
        len(data),
    )
    await link.close()


async def test_a_text_whose_beginning_expires_before_its_end_is_written_is_begun_again(
    redis_url: str,
) -> None:
    link, keys, data = Link(redis_url), Keys("pieces"), LARGE.encode()

    class Slow(BreakingLink):
        async def run(self, call: Call, *, server: str | None = None) -> Any:
            self.left -= 1
            if not self.left:
                await link.command("DEL", *call.keys)
            return await link.run(call, server=server)

    slow: Any = Slow(link, runs=3)
    _, key = await Shelf(slow, keys, "t", session="", server=None).put(data)

    assert await link.command("GET", key) == data
    assert 0 < await link.command("PTTL", key) <= UNREFERENCED_MS
    await link.close()


async def test_what_was_committed_never_expires_because_it_is_written_again(
    redis_url: str,
) -> None:
    link, keys, data = Link(redis_url), Keys("pieces"), LARGE.encode()
    shelf = Shelf(link, keys, "t", session="", server=None)
    _, key = await shelf.put(data)
    await link.command("PERSIST", key)

    await shelf.put(data)

    assert await link.command("PTTL", key) == -1
    await link.close()
