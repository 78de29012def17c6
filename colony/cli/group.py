"""The group of all commands. A command's module is imported when that command is called."""

import importlib
import os
from importlib.metadata import version
from typing import Any, Final

import click

from colony.cli.failures import told

# Module, attribute and summary; in the order of a newcomer's first hour.
COMMANDS: Final = {
    "demo": ("demo", "demo", "Ask a question about a folder of documents."),
    "new": ("new", "new", "Write a runnable tree with one tool in Python."),
    "validate": ("tree", "validate", "Report everything that is wrong with a tree."),
    "doctor": ("doctor", "doctor", "Try all that a tree needs."),
    "graph": ("tree", "graph", "Draw a tree as Mermaid or DOT."),
    "up": ("up", "up", "Validate a tree, apply it and run every role."),
    "apply": ("tree", "apply", "Publish a tree; whatever runs follows it live."),
    "router": ("roles", "router", "Run a router with its keeper."),
    "worker": ("roles", "worker", "Run a worker that hosts cells."),
    "jobs": ("jobs", "jobs", "Run processes that take jobs."),
    "api": ("roles", "api", "Run the HTTP interface."),
    "token": ("token", "token", "Make a token for somebody who uses the HTTP interface."),
    "chat": ("chat", "chat", "Talk with an agent."),
    "runs": ("runs", "runs", "Look at runs of agents; watch, cancel, retry them."),
    "asks": ("asks", "asks", "List and answer what agents ask."),
    "send": ("send", "send", "Send a message to a cell."),
    "trace": ("trace", "trace", "Show the hops of a trace as a tree."),
    "traces": ("trace", "traces", "List traces, the newest first."),
    "thread": ("thread", "thread", "Show what a model was sent for a question, or its record."),
    "document": ("document", "document", "Print a long result that is kept whole."),
    "cancel": ("trace", "cancel", "End a trace."),
    "rounds": ("status", "rounds", "Show the rounds that wait for results."),
    "status": ("status", "status", "Show a colony on one screen."),
    "dead-letters": ("dead_letters", "dead_letters", "Read, replay or drop dead letters."),
}


class Commands(click.Group):
    """A group whose help imports no command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in a useful order."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"colony.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what goes wrong is one line and an exit status, never a traceback."""
        with told():
            return super().invoke(ctx)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("colony-broker"), message="colony %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Multi-tool LLM agents as a message topology, on Redis."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
