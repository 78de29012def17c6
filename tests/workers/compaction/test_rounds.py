"""However rounds are made, what is cut between them are whole rounds."""

from hypothesis import given
from hypothesis import strategies as st

from colony.body import Entry
from workers.compaction.rounds import in_rounds

said = st.lists(st.sampled_from(["call", "text"]), min_size=1, max_size=5).filter(
    lambda kinds: "call" in kinds
)


@given(st.lists(said, max_size=25), st.data())
def test_each_round_comes_back_whole(drawn, data):
    rounds, number = [], 0
    for kinds in drawn:
        entries = []
        for kind in kinds:
            if kind == "call":
                number += 1
                entries.append(
                    Entry(origin="assistant", type="tool_call", id=f"c-{number}", text="{}")
                )
            else:
                entries.append(Entry.say("assistant", "hm"))
        ids = [entry.id for entry in entries if entry.type == "tool_call"]
        answered = data.draw(st.permutations(ids))
        rounds.append([*entries, *(Entry.result(one, "42") for one in answered)])

    flat = [entry for found in rounds for entry in found]

    assert in_rounds(flat) == rounds


def test_a_head_is_no_round():
    head = [Entry.say("user", "Q"), Entry.say("assistant", "A"), Entry.say("user", "Q")]

    assert in_rounds(head) == []
    assert in_rounds([]) == []
