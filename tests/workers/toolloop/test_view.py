import pytest
from hypothesis import given
from hypothesis import strategies as st

from colony.body import Entry
from workers.toolloop.thread import Round, Thread
from workers.toolloop.view import ViewParams, cut, view


@pytest.fixture
def thread(called):
    """A thread with a round for each list of result texts."""

    def make(*rounds):
        return Thread(
            question=Entry.say("user", "why?"),
            rounds={
                number: Round(
                    number,
                    said=[called(f"{number}-{n}") for n in range(len(texts))],
                    results={
                        f"{number}-{n}": Entry.result(f"{number}-{n}", text)
                        for n, text in enumerate(texts)
                    },
                )
                for number, texts in enumerate(rounds)
            },
        )

    return make


def results(entries):
    return [entry for entry in entries if entry.type == "tool_result"]


def test_short_results_are_shown_whole(thread):
    shown = view(thread(["one", "two"]), ViewParams())

    assert [entry.text for entry in results(shown)] == ["one", "two"]


def test_long_result_is_shown_by_its_head_and_tail_and_what_is_left_out(thread):
    text = "HEAD" + "x" * 100_000 + "TAIL"

    (shown,) = results(view(thread([text]), ViewParams()))

    assert shown.text.startswith("HEAD")
    assert shown.text.endswith("TAIL")
    assert "of 100008 are left out" in shown.text
    assert len(shown.text) < 16_384 + 100


def test_round_has_a_cap_of_its_own_and_what_short_results_leave_goes_to_long_ones(thread):
    texts = [*("x" * 6_000 for _ in range(7)), *("y" * 40_000 for _ in range(2))]

    sizes = [len(entry.text) for entry in results(view(thread(texts), ViewParams()))]

    assert sizes[:7] == [6_000] * 7
    assert min(sizes[7:]) > 11_000
    assert sum(sizes) < 65_536 + 2 * 100


def test_older_rounds_leave_whole_and_the_newest_never(thread):
    rounds = [["z" * 1_000] * 2 for _ in range(6)]

    shown = view(thread(*rounds), ViewParams(max_view_bytes=5_000))
    tight = view(thread(*rounds), ViewParams(max_view_bytes=1, max_rounds=1))

    assert [entry.id for entry in results(shown)] == ["4-0", "4-1", "5-0", "5-1"]
    assert [entry.id for entry in results(tight)] == ["5-0", "5-1"]
    assert shown[0].text == "why?"


def test_what_a_provider_wants_back_is_shown_whole_and_counts_as_well(thread):
    made = thread(["ok"], ["ok"], ["ok"])
    kept = {"anthropic": {"turn": {"blocks": ["t" * 2_000]}}}
    for found in made.rounds.values():
        found.said = [call.model_copy(update={"vendor": kept}) for call in found.said]

    shown = view(made, ViewParams(max_view_bytes=5_000))

    assert [entry.vendor for entry in shown if entry.type == "tool_call"] == [kept, kept]


@pytest.mark.parametrize("most", range(1, 8))
def test_every_call_that_is_shown_has_its_result_at_any_cut(thread, most):
    shown = view(thread(*([["ok"] * 3] * 6)), ViewParams(max_rounds=most))

    calls = [entry.id for entry in shown if entry.type == "tool_call"]
    assert calls == [entry.id for entry in results(shown)]
    assert len(calls) == 3 * min(most, 6)


@given(st.text(), st.integers(1, 200))
def test_cut_text_keeps_whole_characters(text, limit):
    shown = cut(text, limit)

    assert "\ufffd" not in shown or "\ufffd" in text
    assert len(shown.encode()) <= max(len(text.encode()), limit + 100)
