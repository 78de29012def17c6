import json
from collections.abc import Mapping
from typing import Any

import pytest

from colony.body import Body, Entry
from colony.envelope import Emission, Envelope
from colony.errors import ModelFailed
from colony.testing.host import RecordingHost
from colony.topology.model import ToolDeclaration
from workers.language import sentences
from workers.llm import Llm
from workers.llm.offline.extractive import WHAT_IT_IS, plan_queries
from workers.llm.offline.quotes import LONGEST_CHARACTERS, Found, Quote, best_quotes

PAGES = {
    "file:///tea.md": "# Tea\n\nGreen tea is steeped at 80 degrees. Its leaves are not oxidised.\n"
    "Tea came to Europe in 1610.",
    "file:///coffee.md": "Coffee is brewed at 95 degrees.\n\n- Espresso needs nine bars of it.",
    "file:///stone.md": "Granite is a hard stone that does not melt at 95 degrees.",
}
SEARCH = ToolDeclaration(name="web_search", description="d", parameters={"type": "object"})
FETCH = ToolDeclaration(name="web_fetch", description="d", parameters={"type": "object"})
OTHER = ToolDeclaration(name="remember", description="d", parameters={"type": "object"})


class Loop:
    """A tool loop around an extractive cell, over `PAGES`."""

    def __init__(self, *tools: ToolDeclaration, broken: tuple[str, ...] = ()) -> None:
        self.host = RecordingHost.of("llm", {"provider": "extractive"}, tools=tools)
        self.broken = broken
        self.thread: list[Entry] = []
        self.rounds: list[list[tuple[str, dict[str, Any]]]] = []

    async def ask(self, question: str) -> str:
        self.thread.append(Entry.say("user", question))
        cell = Llm(Llm.Params(provider="extractive"))
        await cell.start(self.host)
        while True:
            (emission,) = await cell.handle(self._envelope(), self.host.next_envelope())
            self.thread += emission.body.entries
            if emission.hop["finish_reason"] == "stop":
                (entry,) = emission.body.entries
                return entry.text or ""
            self._run_calls(emission)
            assert len(self.rounds) < 5

    def _envelope(self) -> Envelope:
        body = Body.of(*self.thread)
        return Envelope(id="m", trace_id="t", target="/cell", ttl=9, body=body)

    def _run_calls(self, emission: Emission) -> None:
        made = []
        for call in emission.body.each("tool_call"):
            function = json.loads(call.text or "")
            arguments = json.loads(function["arguments"])
            made.append((function["name"], arguments))
            self.thread.append(self._result(call.id or "", function["name"], arguments))
        self.rounds.append(made)

    def _result(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> Entry:
        if name in self.broken:
            return Entry.result(call_id, "io_error: it is away", is_error=True)
        if name == "web_fetch":
            return Entry.result(call_id, PAGES[arguments["url"]])
        wanted = set(arguments["query"].lower().split())
        results = [
            {"title": url, "url": url, "snippet": text.splitlines()[-1]}
            for url, text in PAGES.items()
            if wanted & set(text.lower().replace(".", "").split())
        ]
        return Entry.result(call_id, json.dumps({"results": results}))


async def test_it_searches_then_reads_then_quotes_with_sources() -> None:
    loop = Loop(SEARCH, FETCH)

    answer = await loop.ask("At how many degrees is green tea steeped?")

    searches, fetches = loop.rounds
    assert {name for name, _ in searches} == {"web_search"}
    assert [call for call in fetches if call == ("web_fetch", {"url": "file:///tea.md"})]
    assert len(fetches) > 1
    assert answer.startswith(WHAT_IT_IS)
    assert "- \u201cGreen tea is steeped at 80 degrees.\u201d [source: file:///tea.md]" in answer
    assert "Espresso" not in answer
    assert "1610" not in answer


async def test_each_question_of_a_thread_is_researched_anew() -> None:
    loop = Loop(SEARCH, FETCH)
    await loop.ask("At how many degrees is green tea steeped?")

    answer = await loop.ask("How many bars does espresso need?")

    assert len(loop.rounds) == 4
    assert "nine bars of it" in answer
    assert "80 degrees" not in answer


async def test_the_same_thread_gives_the_same_entries() -> None:
    first, second = Loop(SEARCH, FETCH), Loop(SEARCH, FETCH)

    for loop in (first, second):
        await loop.ask("What is brewed, and what is steeped?")

    assert first.thread == second.thread


async def test_only_offered_tools_are_used() -> None:
    without_fetch, without_any = Loop(SEARCH, OTHER), Loop(OTHER)

    assert "Espresso needs nine bars" in await without_fetch.ask("How many bars needs espresso?")
    answer = await without_any.ask("How many bars needs espresso?")

    assert len(without_fetch.rounds) == 1
    assert without_any.rounds == []
    assert "no tool to search" in answer


async def test_without_any_tool_there_is_no_answer() -> None:
    """Whoever asks a model without tools goes on from its answer, and this one would have none."""
    cell, host = Llm(Llm.Params(provider="extractive")), RecordingHost.of("llm", {})
    await cell.start(host)
    body = Body.of(Entry.say("user", "How many bars needs espresso?"))
    envelope = Envelope(id="m", trace_id="t", target="/cell", ttl=9, body=body)

    (emission,) = await cell.handle(envelope, host.next_envelope())

    assert (emission.hop["finish_reason"], emission.hop["error_code"]) == ("error", "empty_answer")
    assert emission.hop["retry_disposition"] == "permanent"
    assert emission.hop.keys() <= Llm.emits
    assert emission.body.entries == body.entries


@pytest.mark.parametrize("tools", [(), (SEARCH,)], ids=len)
async def test_probe_finds_whether_it_has_tools(tools: tuple[ToolDeclaration, ...]) -> None:
    cell = Llm(Llm.Params(provider="extractive"))
    await cell.start(RecordingHost.of("llm", {}, tools=tools))

    if tools:
        assert "extractive" in await cell.probe()
        return
    with pytest.raises(ModelFailed, match="offered no tool"):
        await cell.probe()


async def test_nothing_found_is_said() -> None:
    loop = Loop(SEARCH, FETCH)

    answer = await loop.ask("Who won the regatta of Venice?")

    assert "found no sentence" in answer
    assert "[source:" not in answer
    assert answer.endswith("It searched for \u201cregatta Venice\u201d and read 0 documents.")


async def test_one_document_that_says_nothing_is_counted_as_one() -> None:
    answer = await Loop(FETCH).ask("Who won the regatta, file:///stone.md ?")

    assert "read 1 document." in answer


async def test_failed_calls_are_told_and_snippets_stand_in_for_unread_pages() -> None:
    loop = Loop(SEARCH, FETCH, broken=("web_fetch",))

    answer = await loop.ask("How many bars needs espresso?")

    assert "Espresso needs nine bars" in answer
    assert "1 of 2 tool calls failed." in answer
    assert "it is away" not in answer

    assert "found no sentence" in await Loop(SEARCH, broken=("web_search",)).ask("Any tea?")


async def test_a_url_in_the_question_is_read_at_once() -> None:
    loop = Loop(SEARCH, FETCH)

    await loop.ask("What does file:///stone.md say about granite?")

    assert ("web_fetch", {"url": "file:///stone.md"}) in loop.rounds[0]
    assert all("file" not in arguments.get("query", "") for _, arguments in loop.rounds[0])


@pytest.mark.parametrize(
    ("question", "queries"),
    [
        ("How is tea made?", ["tea made"]),
        (
            "How is green tea steeped, and what is an espresso?",
            ["green tea steeped espresso", "green tea steeped", "espresso"],
        ),
        ('Who wrote "The Book of Tea"?', ["wrote Book Tea", "Book Tea"]),
        ("and?", []),
    ],
)
def test_searches_are_planned_from_the_question(question: str, queries: list[str]) -> None:
    assert plan_queries(question) == queries


def test_quotes_are_spread_over_sources_and_never_repeated() -> None:
    source = " ".join(f"Green tea number {n} is steeped for long." for n in range(9))

    quotes = best_quotes("green tea steeped", {"a": source, "b": source, "c": source}).quotes

    assert [q.url for q in quotes].count("a") == 2
    assert len({q.sentence for q in quotes}) == len(quotes) == 5


def test_what_a_tool_says_of_its_cut_is_no_quote() -> None:
    text = "Green tea is steeped shor… [truncated, 900 bytes total]"

    assert best_quotes("green tea", {"a": text}) == Found()


def test_sentences_stand_as_in_the_text_but_for_line_breaks() -> None:
    text = "# Title\n\nOne is\nhere. Two, e.g. this, too!\n\n* Three (3.5)\n2. Four"

    assert sentences(text) == ["One is here.", "Two, e.g. this, too!", "Three (3.5)", "Four"]


@pytest.mark.parametrize(
    ("question", "sources", "quoted"),
    [
        # Six documents that all hold the word, and a question with words about the question.
        (
            "What do these notes say about renewal?",
            [f"Renewal of contract {n} is due in March." for n in range(6)],
            "Renewal of contract 0 is due in March.",
        ),
        ("Renewal?", ["Renewals are due in March."], "Renewals are due in March."),
        ("What is a note?", ["A note is a short text.", "Tea."], "A note is a short text."),
        ("When is renewal?", ["Renewal: March."], "Renewal: March."),
        ("When was it sold?", ["| Lamp | sold |\n|---|---|\n| Gas | 1907 |"], "Lamp | sold"),
        ("Is the lamp brass?", ["# The lamp\nThe lamp is brass."], "The lamp is brass."),
    ],
)
def test_a_sentence_that_holds_what_is_asked_about_is_quoted(
    question: str, sources: list[str], quoted: str
) -> None:
    found = best_quotes(question, {str(n): text for n, text in enumerate(sources)})

    assert found.fits
    assert found.quotes[0] == Quote(quoted, "0")


def test_where_no_sentence_fits_the_nearest_are_given_as_such() -> None:
    found = best_quotes("Who won the regatta of Venice?", {"a": "Venice lies on the water."})

    assert found == Found([Quote("Venice lies on the water.", "a")], fits=False)


def test_a_long_sentence_is_quoted_where_it_holds_the_word() -> None:
    text = f"{'other words ' * 100}the regatta is in May {'and so on ' * 100}"

    [quote] = best_quotes("regatta", {"a": text}).quotes

    assert "the regatta is in May" in quote.sentence
    assert quote.sentence.startswith("… ")
    assert quote.sentence.endswith(" …")
    assert len(quote.sentence) <= LONGEST_CHARACTERS + 4


async def test_each_part_of_a_question_is_answered_or_said_to_be_open() -> None:
    loop = Loop(SEARCH, FETCH)

    answer = await loop.ask(
        "At how many degrees is green tea steeped, and what does espresso need? "
        "Who won the regatta of Venice?"
    )

    assert "\u201cGreen tea is steeped at 80 degrees.\u201d" in answer
    assert "\u201cEspresso needs nine bars of it.\u201d" in answer
    assert "no sentence that answers \u201cWho won the regatta of Venice\u201d." in answer


async def test_the_nearest_sentences_are_not_called_an_answer() -> None:
    answer = await Loop(SEARCH, FETCH).ask("Which king drank espresso in Venice?")

    assert "found no sentence that answers" in answer
    assert "The nearest it found:" in answer
    assert "\u201cEspresso needs nine bars of it.\u201d" in answer
