"""`send`: a message to a cell, and what comes of it."""

import asyncio
import json
import math
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from colony.cli.failures import NOT_AS_HOPED
from colony.cli.options import asks_colony, formatted, named

if TYPE_CHECKING:
    from pydantic import JsonValue

    from colony.access import Access
    from colony.body import Body
    from colony.cli.answers import Speech
    from colony.config import Config
    from colony.live import LiveEvent

MAX_TTL: Final = 2**32 - 1
MAX_TIMEOUT_S: Final = 30 * 24 * 60 * 60


class Header(click.ParamType["tuple[str, JsonValue]"]):
    """`key=text`, or `key:=json` for a value that is no text."""

    name = "k=v"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, "JsonValue"]:
        """The key and the value."""
        key, equals, text = str(value).partition("=")
        if not equals or not key.removesuffix(":"):
            self.fail(f"{value!r} is not k=v", param, ctx)
        if not key.endswith(":"):
            return key, text
        try:
            return key[:-1], _json(text)
        except (ValueError, RecursionError):
            return self.fail(f"{text!r} is not JSON", param, ctx)


class Seconds(click.FloatRange):
    """A number of seconds; what is no number is none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, in its range."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number", param, ctx)
        return seconds


@click.command()
@click.argument("target")
@click.argument("text", required=False)
@click.option(
    "--json",
    "file",
    type=click.File("rb"),
    help="Take the body from a JSON file, - for standard input.",
)
@click.option("--hop", type=Header(), multiple=True, help="Hop header; k:=JSON for no text.")
@click.option("--context", type=Header(), multiple=True, help="Context header, likewise.")
@click.option("--session", callback=named, help="Conversation it belongs to, by any name.")
@click.option("--ttl", type=click.IntRange(1, MAX_TTL), help="Hops it may take.")
@click.option(
    "--timeout", type=Seconds(0.001, MAX_TIMEOUT_S), help="End the trace after so many s."
)
@click.option("--wait", type=Seconds(min=0), help="Wait so many seconds for its end.")
@click.option("--follow", is_flag=True, help="Print text as it comes, to the end of the trace.")
@formatted
@asks_colony
def send(
    config: "Config",
    target: str,
    text: str | None,
    file: Any,
    hop: tuple[tuple[str, "JsonValue"], ...],
    context: tuple[tuple[str, "JsonValue"], ...],
    session: str | None,
    ttl: int | None,
    timeout: float | None,
    wait: float | None,
    follow: bool,
    output: str,
) -> None:
    """Send TEXT, or a whole body, to the cell TARGET.

    Prints the id of the trace. With --wait or --follow, prints what came of it, the id on standard
    error, and ends with 1 where it did not complete in time, or with an error for an answer.
    """
    from colony.cli.answers import Speech
    from colony.cli.session import ask
    from colony.traces import error_of

    body, speech = _body(text, file), Speech()
    headers = _headers(dict(context), session)

    async def admit(access: "Access", trace_id: str | None = None) -> str:
        birth = await access.admission.admit(
            target,
            body,
            context=headers,
            hop=dict(hop),
            ttl=ttl,
            trace_id=trace_id,
            timeout_s=timeout,
        )
        if (follow or wait is not None) and output != "json":
            # First, so that it is there after Ctrl-C as well.
            click.echo(f"trace {birth.trace_id}", err=True)
        return birth.trace_id

    async def talk(access: "Access") -> dict[str, Any]:
        if follow:
            say = _write_event if output == "json" else speech.go_on
            trace_id, ended = await _followed(access, admit, say, wait)
        else:
            trace_id = await admit(access)
            ended = wait is not None and await access.endings.wait(trace_id, wait)
        told = {"message_id": trace_id, "trace_id": trace_id}
        return {**told, **await _what_came_of(access, trace_id)} if ended else told

    told = ask(config, talk)
    _write(told, speech, "lines" if follow and output == "json" else output)
    errors = [why for why in map(error_of, told.get("outputs", [])) if why is not None]
    for why in errors:
        click.echo(f"no answer: {why}", err=True)
    if (follow or wait is not None) and told.get("cause") != "completed":
        trace_id = told["trace_id"]
        why = f"{told['cause']}: {told['reason']}" if "cause" in told else f"not after {wait:g} s"
        click.echo(f"trace {trace_id} did not complete: {why}", err=True)
        raise click.exceptions.Exit(NOT_AS_HOPED)
    if errors:
        raise click.exceptions.Exit(NOT_AS_HOPED)


def _headers(context: dict[str, "JsonValue"], session: str | None) -> dict[str, "JsonValue"]:
    """The context of the message; a session_id that would be none, or two of them, are refused."""
    other = context.get("session_id", session)
    if "session_id" in context and (not isinstance(other, str) or not other):
        detail = f"--context: session_id names a conversation only as a text, not as {other!r}"
        raise click.UsageError(detail)
    if session is not None and other != session:
        raise click.UsageError(f"--session {session} and --context session_id={other} disagree")
    return context if session is None else {**context, "session_id": session}


async def _followed(
    access: "Access",
    admit: Callable[["Access", str], Awaitable[str]],
    say: Callable[["LiveEvent"], None],
    limit_s: float | None,
) -> tuple[str, bool]:
    """The id of a new trace, and whether it ended in time; `say` has had all that cells told."""
    from colony.envelope import new_id
    from colony.live import LiveEvent

    trace_id = new_id()
    limit = asyncio.timeout(None)

    async def begin() -> None:
        await admit(access, trace_id)
        if limit_s is not None:
            limit.reschedule(asyncio.get_running_loop().time() + limit_s)

    try:
        async with limit, aclosing(access.feed.watch_trace(trace_id, begin=begin)) as items:
            async for item in items:
                if isinstance(item, LiveEvent):
                    say(item)
    except TimeoutError:
        return trace_id, False
    return trace_id, True


async def _what_came_of(access: "Access", trace_id: str) -> dict[str, Any]:
    trace = await access.traces.get(trace_id)
    return {
        "state": trace.state,
        "cause": trace.cause,
        "reason": trace.reason or trace.error_code,
        "outputs": [*await access.traces.outputs(trace_id)],
    }


def _write_event(event: "LiveEvent") -> None:
    from colony.cli.screen import write_json_line

    write_json_line({"delta": event.to_json()})


def _write(told: dict[str, Any], speech: "Speech", output: str) -> None:
    from colony.cli.answers import write_texts
    from colony.cli.screen import write_json, write_json_line

    if output == "json":
        write_json(told)
    elif output == "lines":
        write_json_line(told)
    elif "outputs" in told:
        write_texts(told["outputs"], after=speech)
    else:
        speech.end()
        click.echo(told["trace_id"])


def _body(text: str | None, file: Any) -> "Body":
    from colony.body import Body, Entry
    from colony.errors import BodyError

    if (text is None) == (file is None):
        raise click.UsageError("give either TEXT or --json FILE")
    if text is not None:
        return Body.of(Entry.say("user", text))
    try:
        return Body.parse(_json(file.read()))
    except (ValueError, RecursionError) as error:
        raise BodyError(detail=f"{_name(file)} is not JSON: {error}") from None


def _json(text: str | bytes) -> "JsonValue":
    value: JsonValue = json.loads(text, parse_constant=_finite, parse_float=_finite)
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number")
    return number


def _name(file: Any) -> str:
    return "standard input" if file is sys.stdin.buffer else Path(file.name).name
