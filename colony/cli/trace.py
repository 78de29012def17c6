"""Commands about traces: `trace`, `traces`, `cancel`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from colony.cli.options import asks_colony, formatted

if TYPE_CHECKING:
    from colony.access import Access
    from colony.config import Config
    from colony.records import HopRecord
    from colony.traces import State, Trace

STATES: Final = ("open", "quiet", "ended")
BODY_CHARS: Final = 120


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

    With --format json bodies are always shown, as far as the tree's trace_bodies keeps them.
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
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True)
@formatted
@asks_colony
def traces(config: "Config", state: "State | None", limit: int, output: str) -> None:
    """List traces, the newest first."""
    from colony.cli.screen import moment, table, write_json
    from colony.cli.session import look

    found = look(config, lambda access: _newest(access, state, limit))
    if output == "json":
        write_json([trace.to_json() for trace in found])
    elif found:
        rows = [("id", "began", "sent to", "is", "why")]
        rows += [
            (
                t.id,
                moment(t.created_at),
                t.entry,
                t.cause or t.state,
                t.reason or t.error_code or "",
            )
            for t in found
        ]
        table(rows)
    else:
        click.echo("no traces")


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


def headline(trace: "Trace", hops: int, *, waits: bool = False) -> str:
    """A trace in one line; `waits` where an older one of its session is to end first."""
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
    if waits:
        parts.append("waiting for an older trace of its session")
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
    from colony.cli.screen import age, faint, pairs

    head = record.head
    parts = [f"{head.sender} → {head.target}", faint(f"ttl {head.ttl}")]
    if head.hop:
        parts.append(pairs(head.hop))
    if record.condition:
        parts.append(faint(f"[{' '.join(record.condition.split())}]"))
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


async def _newest(access: "Access", state: "State | None", limit: int) -> list["Trace"]:
    wanted: tuple[State, ...] = STATES if state is None else (state,)
    # A trace that changes its state in between is found twice, the second time as it is.
    found = {t.id: t for s in wanted for t in await access.trace_list.newest(s, limit=limit)}
    return sorted(found.values(), key=lambda trace: trace.created_at, reverse=True)[:limit]


async def _show(access: "Access", trace_id: str, output: str, bodies: bool) -> None:
    from colony.access.hop_tree import hop_trees
    from colony.cli.screen import write_json

    found = await access.traces.get(trace_id)
    records = await access.traces.log(trace_id)
    waits = await access.sessions.waits(trace_id)
    if output == "json":
        hops = [node.to_json() for node in hop_trees(records)]
        write_json({"record": {**found.to_json(), "waits": waits}, "hops": [*hops]})
        return
    click.echo(headline(found, len(records), waits=waits))
    _write(tree_lines(records, bodies=bodies))


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
            speech.end()
            _write([_line(item, start)])
            _write(f"    {line}" for line in (_body_lines(item) if bodies else ()))
    found = await access.traces.get(trace_id)
    if output == "json":
        write_json_line({"record": found.to_json()})
    else:
        speech.end()
        click.echo(headline(found, seen))


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
