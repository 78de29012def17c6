"""Prose: the headings and the paragraphs of a text, as Markdown tells them apart."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FRONT_MATTER = re.compile(
    r"\A\ufeff?(---|\+\+\+)[ \t\r]*\n"
    r"((?:\w[\w-]*[ \t]*[:=].*\n|[ \t#-].*\n|\r?\n)*?)"
    r"(?:\1|\.\.\.)[ \t\r]*(?:\n|\Z)"
)
_TITLE = re.compile(r"^title[ \t]*[:=](.+)$", re.MULTILINE)
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_ATX = re.compile(r"^ {0,3}#{1,6}(?=[ \t]|$)")
_UNDERLINE = re.compile(r"^ {0,3}(?:=+|-{2,})[ \t]*$")
_RULE = re.compile(r"^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_ITEM = re.compile(r"^\s*(?:[-*+](?:\s+\[[ xX]\])?|(\d{1,3})[.)])\s+(?=\S)")
_QUOTED = re.compile(r"^\s*(?:>\s?)+")
_ENDED = re.compile(r"[.!?][\"'\u201d\u2019)]*$")


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above a part of a text."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Lines that belong together, without their marks: of text, a list item, a row or code."""

    text: str


Block = Heading | Paragraph


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a text in their order; what only sets them apart is left out.

    A text that is no Markdown is its paragraphs: nothing is lost of it for a stray mark.
    """
    matter = _FRONT_MATTER.match(text)
    yield from _Reader().read(text[matter.end() :] if matter else text)


def title(text: str) -> str:
    """What the front matter calls the text, or else its first heading; empty where neither is."""
    matter = _FRONT_MATTER.match(text)
    if matter and (named := _TITLE.search(matter[2])):
        return named[1].strip().strip("\"'")
    return next((block.text for block in blocks(text) if isinstance(block, Heading)), "")


class _Reader:
    """The lines of the paragraph that is being read, and what it stands in."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._in_list = False
        self._in_table = False
        self._in_quote = False

    def read(self, text: str) -> Iterator[Block]:
        fence = ""
        for line in text.splitlines():
            mark = _FENCE.match(line)
            if fence:
                closed = mark and mark[1].startswith(fence) and not line.strip(" \t" + fence[0])
                fence = "" if closed else fence
                if not closed and line.strip():
                    yield Paragraph(" ".join(line.split()))
            elif mark and "`" not in line[mark.end() :]:
                yield from self._end()
                fence = mark[1]
            else:
                yield from self._line(line)
        yield from self._end()

    def _line(self, line: str) -> Iterator[Block]:
        if quoted := _QUOTED.match(line):
            if not self._in_quote:
                yield from self._end()
            self._in_quote = True
            line = line[quoted.end() :]
        if not line.strip():
            yield from self._end()
            self._in_list = self._in_table = self._in_quote = False
        elif heading := _ATX.match(line):
            yield from self._end()
            if text := _heading(line[heading.end() :]):
                yield Heading(text)
        elif _UNDERLINE.match(line) and self._is_heading():
            yield Heading(self._lines.pop())
        elif {"|", "-"} <= set(line) <= set("|:- \t"):
            yield from self._end()
            self._in_table = True
        elif _RULE.match(line) or _UNDERLINE.match(line):
            yield from self._end()
        elif self._in_table or line.lstrip().startswith("|"):
            yield from self._end()
            self._lines = [line.strip().strip("|").strip()]
        else:
            yield from self._words(line)

    def _words(self, line: str) -> Iterator[Block]:
        item = _ITEM.match(line)
        # A number that a line of a sentence happens to begin with begins no list, unless it is 1.
        if item and item[1] and self._lines and not self._in_list and item[1] != "1":
            item = None
        if item:
            yield from self._end()
            self._in_list = True
            line = line[item.end() :]
        self._lines.append(line.strip())

    def _is_heading(self) -> bool:
        # A sentence, or one of several lines, has a line below it in a text that is no Markdown.
        return len(self._lines) == 1 and not self._in_list and not _ENDED.search(self._lines[0])

    def _end(self) -> Iterator[Block]:
        lines, self._lines = self._lines, []
        if lines:
            yield Paragraph(" ".join(" ".join(lines).split()))


def _heading(text: str) -> str:
    text = text.strip()
    unmarked = text.rstrip("#")
    # Marks at the end close a heading only where they stand apart: C# is a name.
    return unmarked.rstrip() if unmarked != unmarked.rstrip() or not unmarked else text
