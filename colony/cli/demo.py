"""`demo`: one question about a folder of documents, answered by a colony made for it."""

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from colony.cli.failures import NOT_AS_HOPED
from colony.cli.options import formatted

if TYPE_CHECKING:
    from colony.demo import Answered

NEXT = (
    "`colony new notes` writes an agent of your own, `colony up notes` runs it; "
    "README.md goes on under “Your own colony”"
)


@click.command()
@click.argument("question", required=False)
@click.option(
    "--corpus",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of documents; otherwise some about lighthouses.",
)
@formatted
def demo(question: str | None, corpus: Path | None, output: str) -> None:
    """Ask a QUESTION about a folder of documents.

    Starts a server and the research colony, asks, prints the answer and how it came about, and
    removes everything. A model that only quotes answers, unless OPENAI_API_KEY or COLONY_BASE_URL
    (and COLONY_MODEL) name a real one.
    """
    from colony import log
    from colony.cli.screen import faint, write_json
    from colony.demo import QUESTION, demonstrate, environment_of, model_of

    log.configure("error")
    # So that what was started is removed then, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = QUESTION if question is None else question
    if not asked.strip():
        raise click.UsageError("the question is empty")
    environment = environment_of(os.environ, corpus)
    if output != "json":
        model = model_of(environment)
        click.echo(faint(f"model: {model}{', which only quotes' * (model == 'extractive')}"))
        click.echo(faint(f"asking: {asked}\n"))
    answered = demonstrate(asked, environment)
    if output == "json":
        write_json(answered.to_json())
    else:
        _write(answered)
    if answered.error is not None:
        click.echo(f"no answer: {answered.error}", err=True)
    if answered.trace.cause != "completed" or not answered.texts or answered.error is not None:
        raise click.exceptions.Exit(NOT_AS_HOPED)
    if output != "json":
        own = Path(sys.prefix) if sys.prefix != sys.base_prefix else None
        click.echo(faint(f"\n{onward(own, os.environ.get('PATH', ''), Path.cwd())}"))


def onward(venv: Path | None, path: str, folder: Path) -> str:
    """What to do next in a shell that is in `folder`: where `path` lacks the venv, activate it."""
    if venv is None or str(venv / "bin") in path.split(os.pathsep):
        return f"next: {NEXT}"
    script = venv / "bin" / "activate"
    named = script.relative_to(folder) if script.is_relative_to(folder) else script
    return f"next: `. {shlex.quote(str(named))}`, then {NEXT}"


def _write(answered: "Answered") -> None:
    from colony.cli.screen import counted, faint, heading
    from colony.cli.trace import folded_lines, headline

    for text in answered.texts:
        click.echo(f"{text}\n")
    click.echo(headline(answered.trace, len(answered.records)))
    for line in folded_lines(answered.records):
        click.echo(line)
    hops, rounds = counted(len(answered.records), "hop"), counted(answered.rounds, "round")
    seconds = f"{answered.seconds:.1f} s from question to answer"
    times = faint("(+ is since the first hop)")
    click.echo(f"\n{heading(rounds)} of tool calls, {hops}, {seconds} {times}")
