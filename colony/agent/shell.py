"""Shell: which commands a command line runs, as far as can be told without running it.

It is read to be judged. What only a shell would know, such as what is substituted or where output
goes, is a doubt about the whole line, and so is whatever two shells would read differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from colony.agent.wrappers import unwrapped

SUBSTITUTES: Final = "the command substitutes something"
GROUPS: Final = "the command groups or branches"
REDIRECTS: Final = "the command redirects"
UNREADABLE: Final = "the command cannot be read to its end"
QUOTES: Final = "the command quotes in a way that not every shell knows"
SETS: Final = "the command sets variables"
VARIES: Final = "what the command runs is known to the shell alone"
WRAPS: Final = "the command is run by another one in a way that is not known here"

_BLANKS: Final = " \t"
_SEPARATORS: Final = ";|&\n"
_RESERVED: Final = frozenset(
    ("!", "{", "}", "if", "then", "elif", "else", "fi", "for", "in", "while", "until", "do",
     "done", "case", "esac", "select", "function", "coproc")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Word:
    """A word as it is written, and without its quotes."""

    written: str
    bare: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a line: its words, and those that are left without what only runs it."""

    words: Sequence[Word]
    inner: Sequence[Word]

    @property
    def text(self) -> str:
        """What it runs, with one blank between words and every quote in its place."""
        return " ".join(word.written for word in self.inner)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Other ways to write the same: with what runs it, and without quotes."""
        return (
            " ".join(word.written for word in self.words),
            " ".join(word.bare for word in self.words),
            " ".join(word.bare for word in self.inner),
        )


@dataclass(frozen=True, slots=True)
class Line:
    """The commands of a line, in order. `doubt` says why it may do more than they say, if so."""

    commands: Sequence[Command]
    doubt: str = ""


def read_line(text: str) -> Line:
    """The commands that a line runs: it falls apart at `&&`, `||`, `;`, `|`, `&` and newlines."""
    reading = _Reading(text)
    reading.run()
    return Line(reading.commands, reading.doubt)


@dataclass(slots=True)
class _Reading:
    """A line while it is read, up to `at`."""

    line: str
    at: int = 0
    written: str = ""
    bare: str = ""
    words: list[Word] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    doubt: str = ""

    def run(self) -> None:
        if "\0" in self.line:
            self._doubt(UNREADABLE)
        while self.at < len(self.line):
            self._step(self.line[self.at])
        self._end_command()
        if not self.commands:
            self._doubt(UNREADABLE)

    def _step(self, char: str) -> None:
        if self.line.startswith("\\\n", self.at):
            self.at += 2
        elif char == "\\":
            self._escaped()
        elif char == "'":
            self._single_quoted()
        elif char == '"':
            self._double_quoted()
        elif char == "#" and not self.written:
            end = self.line.find("\n", self.at)
            self.at = len(self.line) if end < 0 else end
        elif char in _BLANKS:
            self._end_word()
            self.at += 1
        elif char in "<>":
            self._redirected()
        elif char in "()`":
            # What is inside is a command of its own.
            self._doubt(SUBSTITUTES if char == "`" or self.written.endswith("$") else GROUPS)
            self._end_command()
            self.at += 1
        elif char in _SEPARATORS:
            self._end_command()
            self.at += 1
        else:
            self._take(char)

    def _take(self, char: str) -> None:
        behind = self.line[self.at + 1 : self.at + 2]
        if char == "$" and behind in ("{", "["):
            self._doubt(SUBSTITUTES)
        elif char == "$" and behind in ("'", '"'):
            self._doubt(QUOTES)
        elif char in "{}":
            self._doubt(GROUPS)
        self._add(char, char, 1)

    def _escaped(self) -> None:
        pair = self.line[self.at : self.at + 2]
        if len(pair) == 1:
            self._doubt(UNREADABLE)
        self._add(pair, pair[1:], 2)

    def _single_quoted(self) -> None:
        end = self.line.find("'", self.at + 1)
        if end < 0:
            self._doubt(UNREADABLE)
            end = len(self.line)
        self._add(self.line[self.at : end + 1], self.line[self.at + 1 : end], end + 1 - self.at)

    def _double_quoted(self) -> None:
        begin = at = self.at + 1
        bare = ""
        while at < len(self.line) and self.line[at] != '"':
            if self.line[at] == "\\":
                pair = self.line[at : at + 2]
                bare += {"\\\n": ""}.get(pair, pair[1:] if pair[1:] in {*'$`"\\'} else pair)
                at += 2
                continue
            bare += self.line[at]
            at += 1
        inside = self.line[begin:at]
        if at >= len(self.line):
            self._doubt(UNREADABLE)
        if any(mark in inside for mark in ("$(", "${", "$[", "`")):
            self._doubt(SUBSTITUTES)
            self.commands += read_line(inside).commands
        self._add(self.line[self.at : at + 1], bare, at + 1 - self.at)

    def _redirected(self) -> None:
        self._doubt(REDIRECTS)
        self._end_word()
        length = 2 if self.line[self.at + 1 : self.at + 2] in {*"<>&|"} else 1
        operator = self.line[self.at : self.at + length]
        self._add(operator, operator, length)
        self._end_word()

    def _add(self, written: str, bare: str, length: int) -> None:
        self.written += written
        self.bare += bare
        self.at += length

    def _end_word(self) -> None:
        if self.written:
            self.words.append(Word(self.written, self.bare))
        self.written = self.bare = ""

    def _end_command(self) -> None:
        self._end_word()
        words, self.words = self.words, []
        if words:
            self.commands.append(Command(words, self._inner(words)))

    def _inner(self, words: Sequence[Word]) -> Sequence[Word]:
        """The words of the command that is run in the end, all of them where that is not known."""
        left = list(words)
        while left and left[0].written in _RESERVED:
            self._doubt(GROUPS)
            left = left[1:]
        found = unwrapped([word.bare for word in left])
        if found is None:
            self._doubt(WRAPS)
            return left or words
        if found.assigns:
            self._doubt(SETS)
        left = left[found.skipped :]
        if left and any(char in left[0].written for char in "$*?["):
            self._doubt(VARIES)
        return left or words

    def _doubt(self, why: str) -> None:
        self.doubt = self.doubt or why
