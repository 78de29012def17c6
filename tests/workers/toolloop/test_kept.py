"""What is kept whole is named in one sentence, which is read back as it was written."""

import pytest

from colony.results import Kept
from workers.toolloop.kept import MAX_HANDLES, Named


def kept(*numbers: int) -> Named:
    return Named.of(Kept(f"blob:{number:032x}@trace-{number}.x", number) for number in numbers)


def test_each_is_named_once_in_the_order_in_which_it_came():
    named = kept(7, 9, 7)

    assert named.text == (
        f"Kept: 7 bytes at blob:{7:032x}@trace-7.x, 9 bytes at blob:{9:032x}@trace-9.x."
    )


@pytest.mark.parametrize("count", [0, 1, 2, MAX_HANDLES, MAX_HANDLES + 3])
def test_what_is_named_is_read_back(count):
    named = kept(*range(1, count + 1))

    again = Named.read(named.text)

    assert again.text == named.text
    assert again.before == max(0, count - MAX_HANDLES)
    assert [*again.sizes] == [*named.sizes][-MAX_HANDLES:]


def test_newer_ones_stand_behind_and_those_before_are_counted_on():
    older = Named.read(kept(*range(1, MAX_HANDLES + 2)).text)

    both = older.and_then(kept(40, 41))

    assert both.text.endswith(f"41 bytes at blob:{41:032x}@trace-41.x, and 3 before them.")
    assert f"{40:032x}" in both.text
    assert f"{3:032x}" not in both.text


@pytest.mark.parametrize(
    "text",
    ["", "Kept: nothing.", "Kept: 7 bytes at home.", f"So: {kept(7).text}", kept(7).text[:-1]],
)
def test_any_other_text_names_nothing(text):
    assert Named.read(text) == Named()
