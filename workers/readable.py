"""Readable text: what a person would read of an HTML page, run as a program."""

import re
import sys
from typing import NamedTuple

from selectolax.lexbor import LexborHTMLParser, LexborNode

from workers.charset import decode_page
from workers.reader import Parts, read_stdin

_NOISE = "script, style, noscript, template, svg, iframe, nav, aside, footer, form, dialog, button"
_BLOCKS = (
    "address, article, blockquote, br, dd, div, dl, dt, figcaption, figure, h1, h2, h3, h4, h5, h6,"
    "header, hr, li, main, ol, p, pre, section, table, tr, ul"
)
_MARKS = {"h1": "# ", "h2": "## ", "h3": "### ", "h4": "#### ", "li": "- "}
# Characters of the private use area stand for structure until the end, because white space of the
# source means nothing outside of <pre>.
_BREAK, _NEWLINE, _SPACE = "\ue000", "\ue001", "\ue002"
_HIDE = str.maketrans({"\n": _NEWLINE, " ": _SPACE})
_SHOW = str.maketrans({_NEWLINE: "\n", _SPACE: " "})
_DROP = str.maketrans(dict.fromkeys((_BREAK, _NEWLINE, _SPACE)))
# A mark and the block it belongs to, which may open more blocks before its first word.
_MARKED = re.compile(rf"({_BREAK}(?:-|#+) )[\s{_BREAK}]+")


class Readable(NamedTuple):
    """The title and the text of a page."""

    title: str
    text: str


def readable(html: str) -> Readable:
    """The title of a page, and its main text: blocks apart, headings and list items marked."""
    page = LexborHTMLParser(html.translate(_DROP))
    title = _title(page)
    if page.body is None:
        return Readable(title, "")
    for node in page.body.css(_NOISE):
        node.decompose()
    main = page.css_first("main") or page.css_first("article") or page.body
    _mark(main)
    return Readable(title, _lines(main.text(deep=True, separator="")))


def _title(page: LexborHTMLParser) -> str:
    node = page.css_first("head title") or page.css_first("h1")
    return " ".join(node.text().split()) if node else ""


def _mark(main: LexborNode) -> None:
    for cell in main.css("td, th"):
        cell.insert_after(" ")
    for pre in main.css("pre"):
        pre.replace_with(_BREAK + pre.text().strip("\n").translate(_HIDE) + _BREAK)
    for block in main.css(_BLOCKS):
        block.insert_before(_BREAK + _MARKS.get(block.tag or "", ""))
        block.insert_after(_BREAK)


def _lines(text: str) -> str:
    blocks = (" ".join(block.split()) for block in _MARKED.sub(r"\1", text).split(_BREAK))
    return "\n".join(block for block in blocks if block).translate(_SHOW)


def main() -> None:
    """Read one page on stdin within the limits; the first argument is its charset."""
    charset = sys.argv[1] if len(sys.argv) > 1 else None

    def read(html: bytes) -> Parts:
        yield from readable(decode_page(html, charset))

    read_stdin(read)


if __name__ == "__main__":
    main()
