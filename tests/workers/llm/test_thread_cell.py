"""Threads as the llm cell sends them, and what it keeps for its provider."""

import json
import subprocess
import sys

import pytest

from colony.body import Body, Entry
from colony.envelope import Envelope
from colony.errors import TopologyError
from colony.testing.host import RecordingHost
from colony.testing.messages_server import MessagesServer
from colony.testing.model_server import ModelServer
from colony.topology.findings import Finding, hosted_here
from workers.llm import Llm
from workers.llm.servers import extras

QUESTION = Entry.say("user", "why?")
CALL = Entry(
    origin="assistant", type="tool_call", id="a", text='{"name": "look", "arguments": "{}"}'
)
ANTHROPIC = {"provider": "anthropic", "model": "m"}


def envelope(*entries, **slots):
    body = Body.model_validate({"messages": entries, **slots})
    return Envelope(id="m-1", trace_id="t-1", target="/cell", ttl=9, body=body)


async def handled(host, *arriving):
    """What the cell emits for each envelope; one host is the host of all of them."""
    cell = Llm(Llm.Params.model_validate(host.spec.params))
    await cell.start(host)
    try:
        return [emission for one in arriving for emission in await cell.handle(one, host)]
    finally:
        await cell.stop()


def host_of(provider, server, **params):
    given = {"provider": provider, "model": "m", "base_url": server.base_url, **params}
    return RecordingHost.of("llm", given)


def warnings(host):
    return [line for line in host.logged if line["log_level"] == "warning"]


def meta_of(emission):
    return emission.body.__pydantic_extra__["meta"]


SERVERS = pytest.mark.parametrize(
    ("provider", "server", "answer"),
    [("openai", ModelServer, {"text": "x"}), ("anthropic", MessagesServer, {"content": "x"})],
)


@SERVERS
async def test_a_thread_that_is_repaired_is_sent_logged_once_and_told(provider, server, answer):
    broken = envelope(QUESTION, CALL, QUESTION, Entry.result("z", "left over"))
    with server([answer]) as model:
        host = host_of(provider, model)
        first, again = await handled(host, broken, broken)

    assert model.refused == []
    assert len(model.requests) == 1
    counts = {"missing_result": 1, "orphan_result": 1}
    (line,) = warnings(host)
    assert line == {"event": "thread_repaired", "log_level": "warning", **counts}
    assert meta_of(first)["repairs"] == counts
    assert again == first


@SERVERS
async def test_a_thread_without_a_flaw_is_sent_without_a_word(provider, server, answer):
    with server([answer]) as model:
        host = host_of(provider, model)
        (emission,) = await handled(host, envelope(QUESTION, CALL, Entry.result("a", "1")))

    assert warnings(host) == []
    assert "repairs" not in meta_of(emission)


@SERVERS
async def test_the_same_thread_is_the_same_bytes(provider, server, answer):
    broken = envelope(Entry.result("z", "1"), QUESTION, CALL, CALL, Entry.result("b", "2"))
    with server([answer, answer]) as model:
        for _ in range(2):
            await handled(host_of(provider, model), broken)

    one, other = [json.dumps(request.body) for request in model.requests]
    assert one == other


async def test_what_a_turn_and_its_calls_come_with_is_kept_under_the_name_of_the_provider():
    message = {
        "role": "assistant",
        "content": "wait",
        "reasoning_content": "deep",
        "tool_calls": [
            {"id": "a", "function": {"name": "look", "arguments": "{}"}, "extra_content": {"x": 1}},
            {"id": "b", "function": {"name": "see", "arguments": "{}", "signature": "s"}},
        ],
    }
    choice = {"message": message, "finish_reason": "tool_calls"}
    with ModelServer([{"body": {"choices": [choice]}}]) as server:
        (emission,) = await handled(host_of("openai", server), envelope(QUESTION))

    assert [entry.vendor for entry in emission.body.entries] == [
        {"openai": {"call": {"extra_content": {"x": 1}}, "turn": {"reasoning_content": "deep"}}},
        {"openai": {"call": {"function": {"signature": "s"}}}},
        None,
    ]


async def test_a_call_that_cannot_be_run_says_so_to_whoever_dispatches_it():
    calls = [{"id": "a", "name": "look", "arguments": '{"q": '}, {"id": "b", "name": "see"}]
    with ModelServer([{"tool_calls": calls}]) as server:
        (emission,) = await handled(host_of("openai", server), envelope(QUESTION))

    assert [json.loads(entry.text) for entry in emission.body.entries] == [
        {"name": "look", "arguments": '{"q": ', "problem": "invalid_arguments"},
        {"name": "see", "arguments": "{}"},
    ]
    assert emission.hop["finish_reason"] == "tool_calls"


# The extra


@pytest.fixture
def without_anthropic(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_anthropic")
async def test_a_cell_without_its_library_does_not_start_and_says_what_to_install():
    host = RecordingHost.of("llm", ANTHROPIC)

    with pytest.raises(TopologyError, match=r"pip install -e '\.\[anthropic\]'"):
        await Llm(Llm.Params.model_validate(ANTHROPIC)).start(host)


@pytest.mark.usefixtures("without_anthropic")
def test_a_provider_without_its_library_is_a_finding_and_an_error_where_it_is_run():
    (flaw,) = Llm.flaws(RecordingHost.of("llm", ANTHROPIC).spec)

    assert (flaw.code, flaw.severity) == ("extra_missing", "warning")
    assert "[anthropic]" in flaw.sentence
    finding = Finding(flaw.severity, flaw.file, "$", flaw.code, flaw.sentence)
    assert [found.severity for found in hosted_here([finding])] == ["error"]


def test_a_provider_whose_library_is_there_has_no_flaw():
    assert [*Llm.flaws(RecordingHost.of("llm", ANTHROPIC).spec)] == []


def test_the_library_is_loaded_only_where_it_is_used():
    program = "import sys, workers.llm; print('anthropic' in sys.modules, 'openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.split() == ["False", "False"], done.stderr


def test_an_anthropic_cell_needs_a_model():
    with pytest.raises(ValueError, match="needs a model"):
        Llm.Params.model_validate({"provider": "anthropic"})
