"""Commands about a question: `thread`."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from colony.cli.failures import REFUSED, complain
from colony.cli.options import asks_colony, formatted

if TYPE_CHECKING:
    from colony.access import Access
    from colony.access.threads import QuestionThread
    from colony.config import Config
    from colony.requests import SentRequest


@click.command()
@click.argument("question", metavar="QUESTION")
@click.option("--iter", "iteration", type=click.IntRange(min=0), help="Only this round, from 0.")
@click.option("--cell", metavar="PATH", help="Whose request.  [default: the one that asked first]")
@click.option("--view", is_flag=True, help="What the model was sent.  [default]")
@click.option("--record", is_flag=True, help="The rows that the stores hold, and the answer.")
@click.option("--raw", is_flag=True, help="Print the bytes of the request, and nothing else.")
@formatted
@asks_colony
def thread(
    config: "Config",
    question: str,
    iteration: int | None,
    cell: str | None,
    view: bool,
    record: bool,
    raw: bool,
    output: str,
) -> None:
    """Show what a model was sent for a question, or what the record of it holds.

    QUESTION is a turn_id or the id of a trace. By default it is the newest request.

    With --record long texts are shortened; --format json has them in full.
    """
    from colony.cli.session import look

    if view and record:
        raise click.UsageError("--view and --record are two ways to look at it: give one")
    if record:
        if raw or cell:
            raise click.UsageError("--raw and --cell go with --view")
        look(config, lambda access: _show_record(access, question, iteration, output))
        return
    if raw:
        if output == "json":
            raise click.UsageError("--raw is bytes, and no JSON is written around them")
        look(config, lambda access: _show_raw(access, question, iteration, cell))
    elif output == "json":
        look(config, lambda access: _show_json(access, question, iteration, cell))
    else:
        look(config, lambda access: _show_view(access, question, iteration, cell))


async def _found(access: "Access", question: str) -> "QuestionThread":
    """What is kept of a question; where nothing is, where to look for its id is told."""
    from colony.errors import ThreadNotFound

    try:
        return await access.thread(question)
    except ThreadNotFound as error:
        complain(error.code, f"{error}; `colony traces` lists the traces that are kept")
        raise click.exceptions.Exit(REFUSED) from None


async def _chosen(
    access: "Access", question: str, iteration: int | None, cell: str | None
) -> tuple["QuestionThread", "SentRequest", bytes]:
    found = await _found(access, question)
    request = found.chosen(iteration, cell)
    return found, request, await access.threads.body(request)


async def _show_raw(
    access: "Access", question: str, iteration: int | None, cell: str | None
) -> None:
    _, _, body = await _chosen(access, question, iteration, cell)
    click.echo(body, nl=False)


async def _show_json(
    access: "Access", question: str, iteration: int | None, cell: str | None
) -> None:
    from colony.cli.screen import write_json
    from colony.cli.thread_view import parsed

    found, request, body = await _chosen(access, question, iteration, cell)
    write_json(
        {
            "request": request.to_json(),
            "body": parsed(body),
            "beside": [other.to_json() for other in found.beside(request)],
        }
    )


async def _show_view(
    access: "Access", question: str, iteration: int | None, cell: str | None
) -> None:
    from colony.cli.thread_rows import summaries
    from colony.cli.thread_view import rounds, view

    found, request, body = await _chosen(access, question, iteration, cell)
    _write(_head(request))
    for other in found.beside(request):
        _write(f"  beside: {line}" for line in _head(other))
    _write([rounds(found, request)])
    _write(view(body, summaries(found.rows)))


async def _show_record(access: "Access", question: str, iteration: int | None, output: str) -> None:
    from colony.cli.screen import write_json
    from colony.cli.thread_rows import answer_lines, row_lines
    from colony.errors import ThreadNotFound

    found = await _found(access, question)
    rows = [row for row in found.rows if iteration in (None, row.values.get("iter"))]
    answers = [*found.answers] if iteration is None else []
    if not rows and not answers:
        what = "no row" if iteration is None else f"no row of round {iteration}"
        waits = "" if found.waits_for is None else f": it waits for {found.waits_for}"
        raise ThreadNotFound(what=what, question=f"{question}{waits}")
    if output == "json":
        write_json([row.to_json() for row in (*rows, *answers)])
        return
    for row in rows:
        _write(row_lines(row))
    if iteration is None:
        outputs = [] if found.answers else await access.threads.outputs(found)
        _write(answer_lines(found.answers, outputs))
        if not found.answers and not found.traces:
            click.echo("what came of it is told by the id of its trace", err=True)


def _head(request: "SentRequest") -> Iterator[str]:
    """A request in one line."""
    from colony.cli.screen import heading, moment

    calls = f"attempt {request.attempt}" + (f", sent {request.sent} times" * (request.sent > 1))
    yield (
        f"{heading(request.cell)}  iter {request.iteration}  {request.provider} {request.model}  "
        f"{calls}  {request.size} bytes  {moment(request.at)}"
    )


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
