"""docs/cli.md says what the command has: every command, option, setting and exit status."""

import re
from pathlib import Path

import click
import pytest

from colony.cli import failures, main
from colony.cli.group import COMMANDS
from colony.config import PREFIX, SECRETS, Config

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
ROWS = dict(re.findall(r"^\| `colony ([a-z-]+)([^`]*)` \|", PAGE, re.MULTILINE))
# Told once for all commands that have them.
SHARED = {"--format", "--name", "--redis", "--data", "--config", "--log-level", "--log-format"}
# Commands that have commands, and the section that tells of those.
GROUPS = {"dead-letters": "Dead letters", "runs": "Runs of agents", "asks": "Asks of agents"}


def group(name: str) -> click.Group:
    with click.Context(main) as ctx:
        command = main.get_command(ctx, name)
    assert isinstance(command, click.Group)
    return command


def test_every_command_is_documented_and_no_other() -> None:
    assert ROWS.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in GROUPS])
def test_every_option_is_documented_and_no_other(name: str) -> None:
    with click.Context(main) as ctx:
        command = main.get_command(ctx, name)
    assert command is not None
    known = [p.opts[0] for p in command.params if isinstance(p, click.Option) and not p.hidden]

    written = set(re.findall(r"--[a-z-]+", ROWS[name]))
    assert written - SHARED == set(known) - SHARED
    assert SHARED - {"--format"} <= set(re.findall(r"`(--[a-z-]+)`", PAGE))


@pytest.mark.parametrize("name", GROUPS)
def test_every_command_of_a_group_is_documented(name: str) -> None:
    assert set(ROWS[name].strip().split("·")) == set(group(name).commands)


@pytest.mark.parametrize("name", GROUPS)
def test_every_option_of_a_group_is_documented_and_no_other(name: str) -> None:
    commands = group(name).commands.values()
    options = [p for c in commands for p in c.params if isinstance(p, click.Option)]

    section = PAGE.partition(f"\n## {GROUPS[name]}")[2].partition("\n## ")[0]
    written = set(re.findall(r"--[a-z]+", section))
    assert written - SHARED == {option.opts[0] for option in options} - SHARED


def test_every_setting_is_documented_with_its_sources() -> None:
    [table] = re.findall(r"\| setting \|.*\n\|[-|]+\n((?:\|.*\n)*)", PAGE)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]

    assert [name.strip("`") for name, *_ in rows] == [*Config.model_fields]
    for name, variables, _, default in rows:
        setting = name.strip("`")
        expected = {f"{PREFIX}{setting.upper()}"}
        expected |= {f"{PREFIX}{setting.upper()}_FILE"} if setting in SECRETS else set()
        assert set(re.findall(r"`(\w+)`", variables)) == expected
        value = Config.model_fields[setting].default
        if value is not None:
            assert default.strip("`") == (f"{value:g}" if isinstance(value, float) else str(value))


def test_every_exit_status_is_documented() -> None:
    written = {int(status) for status in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}

    assert written == {
        0, failures.NOT_AS_HOPED, failures.REFUSED, failures.NO_SERVER, failures.NOT_NOW,
        failures.OUR_MISTAKE, failures.INTERRUPTED,
    }  # fmt: skip
