"""Commands about traces: `trace`, `traces`, `cancel`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from colony.cli.options import asks_colony, formatted, named

if TYPE_CHECKING:
    from pydantic import JsonValue

    from colony.access import Access
    from colony.access.trace_list import ListedTrace
    from colony.blobs import Blobs
    from colony.config import Config
    from colony.dead_letters import Buried
    from colony.records import HopRecord
    from colony.traces import State, Trace

STATES: Final = ("open", "quiet", "ended")
BODY_CHARS: Final = 120
DETAIL_CHARS: Final = 400
CONDITION_CHARS: Final = 60
SESSION_CHARS: Final = 20
QUESTION_CHARS: Final = 50


@click.command()
@click.argument("trace_id", metavar="ID")
@click.option("--follow", is_flag=True, help="Print hops and text as they come, to its end.")
@click.option("--bodies", is_flag=True, help="Show what each hop carried, shortened.")
@click.option("--outputs", is_flag=True, help="Print only what came of it, in full.")
@formatted
@asks_colony
def trace(
    config: "Config", trace_id: str, follow: bool, bodies: bool, outputs: bool, output: str
) -> None:
    """Show the hops of a trace as a tree: ttl left, hop headers, edge, time.

    With --format json bodies are always shown, as far as the tree's trace_bodies keeps them, and
    conditions of edges in full.
    """
    from colony.cli.session import look

    if outputs:
        if follow or bodies:
            raise click.UsageError("--outputs goes with neither --follow nor --bodies")
        look(config, lambda access: _show_outputs(access, trace_id, output))
        return
    show = _follow if follow else _show
    look(config, lambda access: show(access, trace_id, output, bodies))


@click.command()
@click.option("--state", type=click.Choice(STATES), help="Only these.")
@click.option("--session", callback=named, help="Only those of this conversation.")
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True)
@formatted
@asks_colony
def traces(
    config: "Config", state: "State | None", session: str | None, limit: int, output: str
) -> None:
    """List traces, the newest first, with the session and the beginning of what they were asked."""
    from colony.cli.screen import table, write_json
    from colony.cli.session import look

    found, complete = look(config, lambda access: _listed(access, state, session, limit))
    if output == "json":
        write_json([listed.to_json() for listed in found])
    elif found:
        table([("id", "began", "sent to", "is", "why", "session", "question"), *map(_row, found)])
    else:
        click.echo("no traces")
    if not complete:
        click.echo("older traces of the session may be kept: only so many are looked at", err=True)


@click.command()
@click.argument("trace_id", metavar="ID")
@formatted
@asks_colony
def cancel(config: "Config", trace_id: str, output: str) -> None:
    """End a trace: what it still has under way is dropped."""
    from colony.cli.screen import write_json
    from colony.cli.session import ask

    cause = ask(config, lambda access: access.traces.end(trace_id, "cancelled", "cancelled"))
    if output == "json":
        write_json({"trace_id": trace_id, "cause": cause})
    else:
        before = "" if cause == "cancelled" else " before"
        click.echo(f"{trace_id} is {cause}{before}")


def headline(trace: "Trace", hops: int, *, waits_for: str | None = None) -> str:
    """A trace in one line; `waits_for` is an older one of its session that is to end first."""
    from colony.cli.screen import age, bad, counted, heading

    parts: list[str] = [trace.state]
    if trace.cause is not None:
        reason = trace.reason or trace.error_code
        told = trace.cause + (f" ({reason})" if reason else "")
        parts = [told if trace.cause == "completed" else bad(told)]
    if trace.ended_at is not None:
        parts.append(f"after {age(trace.ended_at - trace.created_at)}")
    parts += [counted(hops, "hop"), counted(trace.outputs, "output")]
    if trace.dead:
        parts.append(bad(counted(trace.dead, "dead letter")))
    if trace.live:
        parts.append(f"{trace.live} under way")
    if waits_for is not None:
        parts.append(f"waiting for {waits_for}, an older trace of its session")
    return f"{heading(trace.id)} {', '.join(parts)}"


def tree_lines(records: Sequence["HopRecord"], *, bodies: bool = False) -> Iterator[str]:
    """The hops as a tree, one line each; with `bodies`, what each carried in lines below it."""
    from colony.access.hop_tree import chains, hop_trees
    from colony.cli.screen import faint

    start = records[0].at if records else 0
    for chain in chains(hop_trees(records)):
        stem = chain.first
        for record in chain.records:
            yield faint(stem) + _line(record, start)
            stem = chain.rest
            for line in _body_lines(record) if bodies else ():
                yield faint(f"{stem}    {line}")


def letter_lines(letters: Sequence["Buried"]) -> Iterator[str]:
    """What died, a line for each letter."""
    from colony.cli.screen import bad, shortened

    for letter in letters:
        detail = shortened(letter.facts.get("detail"), DETAIL_CHARS)
        yield f"{bad(letter.code)} at {letter.cell}  {detail}  {letter.id}"


def folded_lines(records: Sequence["HopRecord"]) -> Iterator[str]:
    """The hops as a tree, one line for each chain of them."""
    from colony.access.hop_tree import chains, hop_trees
    from colony.cli.screen import age, faint

    start = records[0].at if records else 0
    for chain in chains(hop_trees(records)):
        first, last = chain.records[0], chain.records[-1]
        path = " → ".join([first.head.sender, *(str(r.head.target) for r in chain.records)])
        ttl = f"ttl {first.head.ttl}" + (f"…{last.head.ttl}" if last is not first else "")
        yield f"{faint(chain.first)}{path}  {faint(f'{ttl}  +{age(last.at - start)}')}"


def _line(record: "HopRecord", start: int) -> str:
    from colony.cli.screen import age, faint, pairs, shortened

    head = record.head
    parts = [f"{head.sender} → {head.target}", faint(f"ttl {head.ttl}")]
    if head.hop:
        parts.append(pairs(head.hop))
    if record.condition:
        parts.append(faint(f"[{shortened(record.condition, CONDITION_CHARS)}]"))
    return "  ".join([*parts, faint(f"+{age(record.at - start)}")])


def _body_lines(record: "HopRecord") -> list[str]:
    """A line for each entry a hop carried; one for a body that is something else."""
    from colony.cli.screen import pairs, shortened

    body = record.body
    if not isinstance(body, dict):
        return []
    entries = body.get("messages")
    if not isinstance(entries, list):
        return [pairs(body, width=BODY_CHARS)]
    return [
        f"{entry.get('origin')} {entry.get('type')}: {shortened(entry.get('text'), BODY_CHARS)}"
        if isinstance(entry, dict) and "origin" in entry
        else shortened(entry, BODY_CHARS)
        for entry in entries
    ]


def _row(listed: "ListedTrace") -> tuple[str, ...]:
    from colony.cli.screen import moment, shortened

    trace = listed.trace
    state = trace.cause or trace.state
    return (
        trace.id,
        moment(trace.created_at),
        trace.entry,
        state if listed.waits_for is None else f"waits for {listed.waits_for}",
        trace.reason or trace.error_code or "",
        shortened(trace.session or "", SESSION_CHARS),
        shortened(listed.question or "", QUESTION_CHARS),
    )


async def _listed(
    access: "Access", state: "State | None", session: str | None, limit: int
) -> tuple[list["ListedTrace"], bool]:
    """The newest traces, and whether none of the session may have been passed over."""
    wanted: tuple[State, ...] = STATES if state is None else (state,)
    # A trace that changes its state in between is found twice, the second time as it is.
    found: dict[str, Trace] = {}
    complete = True
    for each in wanted:
        if session is None:
            traces = await access.trace_list.newest(each, limit=limit)
        else:
            page = await access.trace_list.of_session(session, each, limit=limit)
            traces, complete = page.traces, complete and page.complete
        found |= {trace.id: trace for trace in traces}
    newest = sorted(found.values(), key=lambda trace: trace.created_at, reverse=True)[:limit]
    return await access.described(newest), complete


async def _show(access: "Access", trace_id: str, output: str, bodies: bool) -> None:
    from colony.access.hop_tree import hop_trees
    from colony.cli.screen import write_json

    found = await access.traces.get(trace_id)
    records = await access.traces.log(trace_id)
    turn = await access.sessions.waits_for(trace_id, found.session)
    letters = await _letters(access, found)
    if output == "json":
        hops = [node.to_json() for node in hop_trees(records)]
        record = {**found.to_json(), "waits_for": turn}
        dead: list[JsonValue] = [letter.told() for letter in letters]
        write_json({"record": record, "hops": [*hops], "dead_letters": dead})
        return
    if bodies:
        records = [await _with_blob(access.blobs, record) for record in records]
    click.echo(headline(found, len(records), waits_for=turn))
    _write(tree_lines(records, bodies=bodies))
    _write(letter_lines(letters))


async def _letters(access: "Access", trace: "Trace") -> list["Buried"]:
    """The letters of a trace that are still kept, oldest first."""
    from colony.dead_letters import Which

    if not trace.dead:
        return []
    which = Which(trace_id=trace.id, since=trace.created_at)
    return await access.dead_letters.list(which, limit=trace.dead)


async def _show_outputs(access: "Access", trace_id: str, output: str) -> None:
    from colony.cli.answers import Speech, write_texts
    from colony.cli.screen import write_json

    found = await access.traces.get(trace_id)
    outputs = await access.traces.outputs(trace_id)
    if output == "json":
        write_json([*outputs])
    elif outputs:
        write_texts(outputs, after=Speech())
    else:
        click.echo(f"nothing has come of {trace_id}, which is {found.state}", err=True)


async def _follow(access: "Access", trace_id: str, output: str, bodies: bool) -> None:
    from colony.cli.answers import Speech
    from colony.cli.screen import write_json_line
    from colony.records import HopRecord

    start: int | None = None
    seen = 0
    speech = Speech()
    async for item in access.feed.watch_trace(trace_id):
        if not isinstance(item, HopRecord):
            if output == "json":
                write_json_line({"delta": item.to_json()})
            else:
                speech.go_on(item)
            continue
        start = item.at if start is None else start
        seen += 1
        if output == "json":
            write_json_line(item.to_json())
        else:
            shown = await _with_blob(access.blobs, item) if bodies else item
            speech.end()
            _write([_line(shown, start)])
            _write(f"    {line}" for line in (_body_lines(shown) if bodies else ()))
    found = await access.traces.get(trace_id)
    if output == "json":
        write_json_line({"record": found.to_json()})
    else:
        speech.end()
        click.echo(headline(found, seen))
        _write(letter_lines(await _letters(access, found)))


async def _with_blob(blobs: "Blobs", record: "HopRecord") -> "HopRecord":
    """The record with the beginnings of a body that is kept apart, while that is there."""
    from dataclasses import replace

    from colony.errors import BlobUnavailable
    from colony.records import beginnings

    if record.blob_id is None:
        return record
    try:
        return replace(record, body=beginnings(await blobs.get(record.blob_id)))
    except BlobUnavailable:
        return record


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
