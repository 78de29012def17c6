"""Command lines: what they run, and what is in doubt about them."""

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from colony.agent.shell import (
    GROUPS,
    QUOTES,
    REDIRECTS,
    SETS,
    SUBSTITUTES,
    UNREADABLE,
    VARIES,
    WRAPS,
    read_line,
)
from colony.agent.wrappers import WRAPPERS


def texts(line: str) -> list[str]:
    return [command.text for command in read_line(line).commands]


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("ls", ["ls"]),
        ("ls -l  /tmp", ["ls -l /tmp"]),
        ("a && b", ["a", "b"]),
        ("a||b;c|d&e\nf", ["a", "b", "c", "d", "e", "f"]),
        ("a &", ["a"]),
        ("a |& b", ["a", "b"]),
        ("\n\n a ;; b\n", ["a", "b"]),
        # What is quoted or escaped splits nothing, and keeps its blanks.
        ("echo 'a && b'", ["echo 'a && b'"]),
        ('echo "a;  b"', ['echo "a;  b"']),
        ('echo "a\nb"', ['echo "a\nb"']),
        ("echo a\\;b", ["echo a\\;b"]),
        ("echo 'it'\"'\"'s'; b", ["echo 'it'\"'\"'s'", "b"]),
        ('echo "a \'b" ; c', ['echo "a \'b"', "c"]),
        ("echo 'a \\' ; c", ["echo 'a \\'", "c"]),
        ('echo "a \\" ; c" ; d', ['echo "a \\" ; c"', "d"]),
        ("ec\\\nho a", ["echo a"]),
        ("echo ''", ["echo ''"]),
        # A comment ends with its line, whatever quotes it has.
        ("ls # it's\nrm x", ["ls", "rm x"]),
        ("ls #'\nrm x\n#'", ["ls", "rm x"]),
        ("ls # a \\\nrm x", ["ls", "rm x"]),
        ("ls a#b", ["ls a#b"]),
        ("echo $#; b", ["echo $#", "b"]),
        # Only a blank parts words, and only a newline ends a line.
        ("ls\N{NO-BREAK SPACE}x", ["ls\N{NO-BREAK SPACE}x"]),
        ("ls\rrm x", ["ls\rrm x"]),
        ("ls\N{LINE SEPARATOR}rm", ["ls\N{LINE SEPARATOR}rm"]),
        ("écho 'ü && ö'", ["écho 'ü && ö'"]),
        ("echo $HOME", ["echo $HOME"]),
    ],
)
def test_line_falls_into_its_commands(line: str, commands: list[str]) -> None:
    read = read_line(line)

    assert [command.text for command in read.commands] == commands
    assert read.doubt == ""


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("timeout 5 ls", "ls"),
        ("timeout -k 1 -s KILL 5 ls -l", "ls -l"),
        ("timeout -k1 --signal=KILL --foreground 5 ls", "ls"),
        ("time -p ls", "ls"),
        ("nice ls", "ls"),
        ("nice -n 5 ls", "ls"),
        ("nice -5 ls", "ls"),
        ("nice --adjustment=5 ls", "ls"),
        ("env ls", "ls"),
        ("env -i -u HOME ls", "ls"),
        ("env -- ls", "ls"),
        ("stdbuf -oL -e 0 ls", "ls"),
        ("ionice -c 3 -n7 ls", "ls"),
        ("timeout 5 nice -n 5 env ls", "ls"),
        ("timeout 5", "timeout 5"),
        ("env", "env"),
        # These are commands of their own.
        ("sudo ls", "sudo ls"),
        ("timeout 5 sudo ls", "sudo ls"),
        ("docker exec x ls", "docker exec x ls"),
        ("npx ls", "npx ls"),
        ("/usr/bin/env ls", "/usr/bin/env ls"),
    ],
)
def test_what_only_runs_another_command_is_taken_off(line: str, command: str) -> None:
    assert texts(line) == [command]
    assert read_line(line).doubt == ""


@pytest.mark.parametrize(
    ("line", "doubt"),
    [
        ("ls $(x)", SUBSTITUTES),
        ('ls "$(x)"', SUBSTITUTES),
        ("ls `x`", SUBSTITUTES),
        ('ls "`x`"', SUBSTITUTES),
        ("ls ${x}", SUBSTITUTES),
        ("ls $((1+1))", SUBSTITUTES),
        ("ls $[1+1]", SUBSTITUTES),
        ("ls >file", REDIRECTS),
        ("ls>>file", REDIRECTS),
        ("ls 2>&1", REDIRECTS),
        ("ls &>file", REDIRECTS),
        ("cat <file", REDIRECTS),
        ("cat <<END\nrm x\nEND", REDIRECTS),
        ("cat <(ls)", REDIRECTS),
        ("(ls)", GROUPS),
        ("{ ls; }", GROUPS),
        ("if true; then ls; fi", GROUPS),
        ("! ls", GROUPS),
        ("for x in a; do ls; done", GROUPS),
        ("f() { ls; }", GROUPS),
        ("rm {a,b}", GROUPS),
        ("ls 'x", UNREADABLE),
        ('ls "x', UNREADABLE),
        ("ls \\", UNREADABLE),
        ("", UNREADABLE),
        (" \t\n", UNREADABLE),
        ("&& ;", UNREADABLE),
        ("# nothing", UNREADABLE),
        ("ls \0", UNREADABLE),
        ("ls $'\\'' ; rm x #'", QUOTES),
        ('ls $"x"', QUOTES),
        ("A=1 ls", SETS),
        ("A=1", SETS),
        ("env A=1 ls", SETS),
        ("timeout 5 env 1=2 ls", SETS),
        ("$X ls", VARIES),
        ("/bin/l? x", VARIES),
        ("env -S 'rm x'", WRAPS),
        ("time -o file ls", WRAPS),
        ("ionice -p 1", WRAPS),
    ],
)
def test_what_only_a_shell_knows_is_a_doubt(line: str, doubt: str) -> None:
    assert read_line(line).doubt == doubt


@pytest.mark.parametrize(
    ("line", "spelled"),
    [
        ("'rm' x", "rm x"),
        ("r\\m x", "rm x"),
        ('r"m" x', "rm x"),
        ('"rm" "a\\"b"', 'rm a"b'),
        ("timeout 5 rm x", "timeout 5 rm x"),
        ("'timeout' 5 rm x", "rm x"),
        ("env 1=2 rm x", "rm x"),
        ("ls $(rm x)", "rm x"),
        ("ls `rm x`", "rm x"),
        ('ls "$(rm x)"', "rm x"),
        ("if true; then rm x; fi", "rm x"),
        ("(rm x)", "rm x"),
    ],
)
def test_command_is_found_however_it_is_written(line: str, spelled: str) -> None:
    found = [s for command in read_line(line).commands for s in command.spellings]

    assert spelled in found


SHELLS = [shell for shell in ("/bin/sh", "/bin/bash") if Path(shell).exists()]

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(st.lists(st.lists(words, min_size=1, max_size=4), min_size=1, max_size=4), st.data())
def test_quoted_words_come_back_as_they_were(lines: list[list[str]], data: st.DataObject) -> None:
    separator = data.draw(st.sampled_from(["&&", "||", ";", "|", "&", "\n"]))
    line = f" {separator} ".join("cmd " + shlex.join(each) for each in lines)

    read = read_line(line)

    assert read.doubt == ""
    assert [[word.bare for word in c.words] for c in read.commands] == [
        ["cmd", *each] for each in lines
    ]


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two commands of this test: `b` leaves a trace, and `a` does not."""
    folder = tmp_path_factory.mktemp("commands")
    for name, program in {"a": ":", "b": ': >"$TRACE"'}.items():
        (folder / name).write_text(f"#!/bin/sh\n{program}\n")
        (folder / name).chmod(0o755)
    return folder


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("ab '\"\\#;&|\n$", max_size=14).map("a {}".format))
@example("a #'\nb\n#'")
@example("a \\\nb")
@example("a $'\\'' ; b #'")
@example('a "\\\\" ; b')
def test_no_shell_runs_what_was_not_found(shells: Path, line: str) -> None:
    """Where the reading has no doubt and finds nothing but `a`, a shell runs nothing but `a`."""
    read = read_line(line)
    if read.doubt or any(command.words[0].bare != "a" for command in read.commands):
        return
    trace = shells / "trace"

    for shell in SHELLS:
        subprocess.run(
            [shell, "-c", f"{line}\nwait"],
            env={"PATH": str(shells), "TRACE": str(trace)},
            cwd=shells,
            check=False,
            capture_output=True,
        )

    assert not trace.exists()


def test_every_wrapper_takes_an_unknown_option_for_a_doubt() -> None:
    assert {read_line(f"{name} --no-such-option ls").doubt for name in WRAPPERS} == {WRAPS}
