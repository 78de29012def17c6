import pytest

from workers.language import sentences
from workers.prose import Heading, blocks, title


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Gas lamps\nThe valve was patented in 1907.", ["The valve was patented in 1907."]),
        ("Before it.\n## Gas ##\nAfter it.", ["Before it.", "After it."]),
        ("Gas lamps\n=========\nAfter it.", ["After it."]),
        ("Gas lamps\n---\nAfter it.", ["After it."]),
        ("   ### Gas\n#\nAfter it.", ["After it."]),
        (
            "#Gas is no heading.\n\n####### Nor is this.",
            ["#Gas is no heading.", "####### Nor is this."],
        ),
        ("A sentence.\n-----\nAnother.", ["A sentence.", "Another."]),
        ("A paragraph of\ntwo lines\n---\nAnother.", ["A paragraph of two lines", "Another."]),
        ("One.\n\n* * *\n___\nTwo.", ["One.", "Two."]),
        ("---\ntitle: Gas\ntags:\n  - lamp\n---\nA lamp.", ["A lamp."]),
        ('+++\r\ntitle = "Gas"\r\n+++\r\n# Gas\r\nA lamp.\r\n', ["A lamp."]),
        ("---\nNo front matter. Text.\n---\nMore.", ["No front matter.", "Text.", "More."]),
        (
            "- one\n  goes on\n- [x] two\n  1. three\n  2) four",
            ["one goes on", "two", "three", "four"],
        ),
        (
            "It was patented in\n1907. It was sold in\n12. And on.",
            ["It was patented in 1907.", "It was sold in 12.", "And on."],
        ),
        (
            "Text:\n- item\n\nMore\n1. first\n2. second",
            ["Text:", "item", "More", "first", "second"],
        ),
        ("1907 was a year.\n\n1907. Was it?", ["1907 was a year.", "1907.", "Was it?"]),
        ("| Lamp | Year |\n|:-----|-----:|\n| Gas | 1907 |", ["Lamp | Year", "Gas | 1907"]),
        (
            "Lamp | Year\n--- | ---\nGas | 1907\nOil | 1780\n\nOn.",
            ["Lamp | Year", "Gas | 1907", "Oil | 1780", "On."],
        ),
        (
            "Run:\n```sh\n# not a heading\ncolony  up\n```\nIt is up.",
            ["Run:", "# not a heading", "colony up", "It is up."],
        ),
        ("~~~\n```\na\n~~~\nEnd.", ["```", "a", "End."]),
        ("````\n```\n````\nEnd.", ["```", "End."]),
        ("```\nnever closed", ["never closed"]),
        ("```inline``` code. More.", ["```inline``` code.", "More."]),
        (
            "Said:\n> One\n> > is here.\nAnd on.\n\nEnd.",
            ["Said:", "One is here.", "And on.", "End."],
        ),
        ("", []),
        ("#\n---\n|-|\n> \n```\n```", []),
    ],
)
def test_the_sentences_of_a_text_are_those_of_its_paragraphs(
    text: str, expected: list[str]
) -> None:
    assert sentences(text) == expected


def test_headings_are_told_apart_without_their_marks() -> None:
    text = "# One #\nText.\n\nTwo\n===\n### C#\n```\n# Code\n```\n"

    assert [block.text for block in blocks(text) if isinstance(block, Heading)] == [
        "One",
        "Two",
        "C#",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\ntitle: 'Gas lamps'\n---\n# Other\n", "Gas lamps"),
        ("---\ndate: 2026-03-01\n---\n# Gas lamps\n", "Gas lamps"),
        ("```\n# Code\n```\nGas lamps\n=====\n", "Gas lamps"),
        ("No heading.", ""),
    ],
)
def test_the_title_is_that_of_the_front_matter_or_the_first_heading(
    text: str, expected: str
) -> None:
    assert title(text) == expected


@pytest.mark.parametrize(
    "unit", ["# ", "- ", "> ", "|", "---\n", "```\n", "a: b\n", "-\t", "1) ", "=\n", "[ ] ", "#"]
)
def test_any_text_is_read_in_one_pass(unit: str) -> None:
    for start in ("", "---\n", "title: ", "# a", "- "):
        text = start + unit * 50_000 + "x"

        assert sum(len(block.text) for block in blocks(text)) <= len(text)
        title(text)
