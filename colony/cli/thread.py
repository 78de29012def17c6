"""Commands about a question: `thread`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click
from pydantic import JsonValue

from colony.cli.options import asks_colony, formatted

if TYPE_CHECKING:
    from colony.access import Access
    from colony.access.threads import QuestionThread, RecordedRow
    from colony.config import Config
    from colony.requests import SentRequest

# What of a request is shown otherwise than as one of its settings.
_SHOWN: Final = frozenset({"messages", "system", "tools"})
# What a terminal would obey is shown as a program writes it: a model is shown what others say.
_OBEYED: Final = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\n\t"}


@click.command()
@click.argument("question", metavar="QUESTION")
@click.option("--iter", "iteration", type=click.IntRange(min=0), help="Only this round, from 0.")
@click.option("--cell", metavar="PATH", help="Whose request.  [default: the one that asked first]")
@click.option("--view", "part", flag_value="view", default=True, help="What the model was sent.")
@click.option("--record", "part", flag_value="record", help="The rows that the stores hold.")
@click.option("--raw", is_flag=True, help="Print the bytes of the request, and nothing else.")
@formatted
@asks_colony
def thread(
    config: "Config",
    question: str,
    iteration: int | None,
    cell: str | None,
    part: str,
    raw: bool,
    output: str,
) -> None:
    """Show what a model was sent for a question, or what the record of it holds.

    QUESTION is a turn_id or the id of a trace. By default it is the newest request.
    """
    from colony.cli.session import look

    if part == "record":
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


async def _chosen(
    access: "Access", question: str, iteration: int | None, cell: str | None
) -> tuple["QuestionThread", "SentRequest", bytes]:
    found = await access.thread(question)
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

    found, request, body = await _chosen(access, question, iteration, cell)
    write_json(
        {
            "request": request.to_json(),
            "body": _parsed(body),
            "beside": [other.to_json() for other in found.beside(request)],
        }
    )


async def _show_view(
    access: "Access", question: str, iteration: int | None, cell: str | None
) -> None:
    found, request, body = await _chosen(access, question, iteration, cell)
    _write(_head(request))
    for other in found.beside(request):
        _write(f"  beside: {line}" for line in _head(other))
    _write(_view(body))


async def _show_record(access: "Access", question: str, iteration: int | None, output: str) -> None:
    from colony.cli.screen import write_json
    from colony.errors import ThreadNotFound

    found = await access.thread(question)
    rows = [row for row in found.rows if iteration in (None, row.values.get("iter"))]
    if not rows:
        what = "no row" if iteration is None else f"no row of round {iteration}"
        raise ThreadNotFound(what=what, question=question)
    if output == "json":
        write_json([row.to_json() for row in rows])
        return
    for row in rows:
        _write(_row(row))


def _head(request: "SentRequest") -> Iterator[str]:
    """A request in one line."""
    from colony.cli.screen import heading, moment

    calls = f"attempt {request.attempt}" + (f", sent {request.sent} times" * (request.sent > 1))
    yield (
        f"{heading(request.cell)}  iter {request.iteration}  {request.provider} {request.model}  "
        f"{calls}  {request.size} bytes  {moment(request.at)}"
    )


def _view(body: bytes) -> Iterator[str]:
    """A request for people: its settings, what is said before the messages, each message."""
    from colony.cli.screen import faint, heading, pairs

    request = _parsed(body)
    if not isinstance(request, dict):
        yield _legible(body.decode(errors="replace"))
        return
    yield faint(pairs({name: value for name, value in request.items() if name not in _SHOWN}))
    tools = request.get("tools")
    if isinstance(tools, list):
        yield faint(f"tools: {', '.join(map(_tool_name, tools))}")
    if "system" in request:
        yield f"\n{heading('system')}"
        yield from _content(request["system"])
    messages = request.get("messages")
    messages = messages if isinstance(messages, list) else []
    for number, message in enumerate(messages):
        yield from _message(number, message)


def _message(number: int, message: JsonValue) -> Iterator[str]:
    from colony.cli.screen import faint, heading

    told = message if isinstance(message, dict) else {"content": message}
    name = [_legible(str(told[key])) for key in ("tool_call_id", "id") if key in told]
    title = heading(_legible(str(told.get("role") or told.get("origin") or "?")))
    # As it is sent: without a space, and with the letters as they are.
    size = len(
        json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    )
    yield "\n" + "  ".join([faint(f"[{number}]"), title, *name, faint(f"{size} bytes")])
    yield from _content(told.get("content"))
    calls = told.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        yield _call(call)
    plain = {"role", "content", "tool_calls", "tool_call_id"}
    rest = {key: value for key, value in told.items() if key not in plain}
    if rest:
        yield _json(rest)


def _content(content: JsonValue) -> Iterator[str]:
    """What a message says: a text, or blocks of which those that are texts are shown as such."""
    if isinstance(content, str):
        yield _legible(content)
    elif isinstance(content, list):
        for block in content:
            is_text = isinstance(block, dict) and block.keys() == {"type", "text"}
            said = str(block["text"]) if isinstance(block, dict) and is_text else _json(block)
            yield _legible(said)
    elif content is not None:
        yield _json(content)


def _call(call: JsonValue) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return _json(call)
    return _legible(f"→ {function.get('name')} {call.get('id')}  {function.get('arguments')}")


def _tool_name(tool: JsonValue) -> str:
    function: JsonValue = tool.get("function", tool) if isinstance(tool, dict) else tool
    return str(function.get("name")) if isinstance(function, dict) else _json(tool)


def _row(row: "RecordedRow") -> Iterator[str]:
    """A row of the record: where it lies and whose it is, and then its text unchanged."""
    from colony.cli.screen import faint, heading

    values: Mapping[str, JsonValue] = row.values
    role = str(values.get("role"))
    boundary = f"up to and with round {values.get('iter')}"
    parts = [
        faint(f"{row.store}:{row.table} {row.number}"),
        f"iter {values.get('iter')}" if role != "summary" else boundary,
        heading(role),
        *([str(values["call_id"])] if values.get("call_id") else []),
        *([f"fired {values['fired']}"] if values.get("fired") is not None else []),
        faint(f"{row.size} bytes"),
    ]
    yield "  ".join(parts)
    turn = values.get("turn")
    yield _legible(turn if isinstance(turn, str) else _json(turn))


def _parsed(body: bytes) -> JsonValue:
    """The JSON in a body, or its text where it is none."""
    try:
        value: JsonValue = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")
    return value


def _legible(text: str) -> str:
    return text.translate(_OBEYED)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
