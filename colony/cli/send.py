"""`send`: a message to a cell, and what comes of it."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from colony.cli.failures import NOT_AS_HOPED
from colony.cli.options import asks_colony, formatted

if TYPE_CHECKING:
    from pydantic import JsonValue

    from colony.access import Access
    from colony.body import Body
    from colony.config import Config

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
@click.option("--ttl", type=click.IntRange(1, MAX_TTL), help="Hops it may take.")
@click.option(
    "--timeout", type=Seconds(0.001, MAX_TIMEOUT_S), help="End the trace after so many s."
)
@click.option("--wait", type=Seconds(min=0), help="Wait so many seconds for its end.")
@formatted
@asks_colony
def send(
    config: "Config",
    target: str,
    text: str | None,
    file: Any,
    hop: tuple[tuple[str, "JsonValue"], ...],
    context: tuple[tuple[str, "JsonValue"], ...],
    ttl: int | None,
    timeout: float | None,
    wait: float | None,
    output: str,
) -> None:
    """Send TEXT, or a whole body, to the cell TARGET.

    Prints the id of the trace. With --wait, prints what came of it, the id on standard error, and
    ends with 1 where it did not complete in time.
    """
    from colony.cli.screen import write_json
    from colony.cli.session import ask
    from colony.traces import error_of

    body = _body(text, file)

    async def talk(access: "Access") -> dict[str, Any]:
        birth = await access.admission.admit(
            target, body, context=dict(context), hop=dict(hop), ttl=ttl, timeout_s=timeout
        )
        told = {"message_id": birth.trace_id, "trace_id": birth.trace_id}
        if wait is not None and output != "json":
            # First, so that it is there after Ctrl-C as well.
            click.echo(f"trace {birth.trace_id}", err=True)
        if wait is None or not await access.endings.wait(birth.trace_id, wait):
            return told
        trace = await access.traces.get(birth.trace_id)
        return {
            **told,
            "state": trace.state,
            "cause": trace.cause,
            "reason": trace.reason or trace.error_code,
            "outputs": [*await access.traces.outputs(birth.trace_id)],
        }

    told = ask(config, talk)
    if output == "json":
        write_json(told)
    else:
        _write(told)
    for why in filter(None, map(error_of, told.get("outputs", []))):
        click.echo(f"no answer: {why}", err=True)
    if wait is not None and told.get("cause") != "completed":
        trace_id = told["trace_id"]
        why = f"{told['cause']}: {told['reason']}" if "cause" in told else f"not after {wait:g} s"
        click.echo(f"trace {trace_id} did not complete: {why}", err=True)
        raise click.exceptions.Exit(NOT_AS_HOPED)


def texts(output: "JsonValue") -> list[str]:
    """What an output says, entry by entry."""
    body = output.get("body") if isinstance(output, dict) else None
    messages = body.get("messages") if isinstance(body, dict) else None
    entries = messages if isinstance(messages, list) else []
    found = [entry.get("text") for entry in entries if isinstance(entry, dict)]
    return [text for text in found if isinstance(text, str)]


def _write(told: dict[str, Any]) -> None:
    if "outputs" not in told:
        click.echo(told["trace_id"])
        return
    for output in told["outputs"]:
        for text in texts(output) or [json.dumps(output["body"], ensure_ascii=False)]:
            click.echo(text)


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
