"""Commands about a colony as a whole: `status`, `rounds`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from colony.cli.options import asks_colony, formatted, reaches_rq

if TYPE_CHECKING:
    from colony.access import Access
    from colony.access.rounds import Round
    from colony.access.status import Backlog, Status
    from colony.config import Config

SESSION_CHARS: Final = 60


@click.command()
@formatted
@reaches_rq
@asks_colony
def status(config: "Config", output: str) -> None:
    """Show a colony on one screen: processes, cells, backlog, rounds, dead letters.

    Where a cell runs as a job, job processes as well, by the queue on the server of --rq-url.
    """
    from colony.cli.screen import write_json
    from colony.cli.session import look

    async def talk(access: "Access") -> tuple["Status", str | None]:
        found = await access.status()
        return found, await _jobs(access, config.rq, found)

    found, jobs = look(config, talk)
    if output == "json":
        write_json(found.to_json() | ({} if jobs is None else {"jobs": jobs}))
    else:
        _write_status(found, jobs)


@click.command()
@click.argument("turn_id", required=False)
@formatted
@asks_colony
def rounds(config: "Config", turn_id: str | None, output: str) -> None:
    """Show the rounds that wait for results, the oldest first; those of one question by TURN_ID."""
    from colony.cli.screen import write_json
    from colony.cli.session import look

    found = look(config, lambda access: access.rounds(turn_id=turn_id))
    if output == "json":
        write_json([round_.to_json() for round_ in found])
    elif found:
        _write_rounds(found, limit=len(found))
    else:
        click.echo("no round is open")


async def _jobs(access: "Access", rq_url: str | None, found: "Status") -> str | None:
    """Who takes jobs, in a sentence; None where no cell runs as one."""
    from colony.errors import ServerUnavailable
    from colony.jobs.waiting import Jobs

    if all(cell.spec.cell.isolation != "job" for cell in found.cells):
        return None
    jobs = Jobs(rq_url or access.link.url, access.keys)
    try:
        count = await jobs.processes()
    except ServerUnavailable as error:
        return f"RQ: {error}"
    finally:
        await jobs.close()
    if not count:
        return f"no process takes those of the queue {jobs.queue}: `colony jobs` is one"
    return f"{count} process{'' if count == 1 else 'es'} on the queue {jobs.queue}"


def _write_status(found: "Status", jobs: str | None) -> None:
    from colony.cli.screen import age, bad, counted, heading, shortened, table

    version = f"version {found.version}" if found.version else "no tree applied"
    click.echo(
        f"{heading(found.name)}  {version}  {found.digest if found.version else ''}".rstrip()
    )
    for problem in found.problems:
        click.echo(bad(problem))
    if found.processes:
        click.echo(heading("\nprocesses"))
        table(
            [
                (f"{p.role}-{p.slot}", str(p.about.get("host", "")), f"pid {p.about.get('pid')}")
                for p in found.processes
            ],
            indent="  ",
        )
    if jobs is not None:
        click.echo(f"\n{heading('jobs')}  {jobs}")
    if found.cells:
        click.echo(heading("\ncells"))
        rows = [("", "type", "hosts", "waiting", "oldest")]
        rows += [
            (
                cell.spec.path,
                cell.spec.cell.type + ("" if cell.active else " (inactive)"),
                str(len(cell.hosts)),
                *_waiting(found.backlogs[cell.spec.path]),
            )
            for cell in found.cells
        ]
        table([*rows, ("to be routed", "", "", *_waiting(found.routing))], indent="  ")
    refusing = bad("  new messages are refused") if found.refusing else ""
    click.echo(f"\n{heading('backlog')}  {found.waiting} of at most {found.backlog_max}{refusing}")
    unended = found.open_traces + found.quiet_traces
    oldest = f", the oldest for {age(found.oldest_trace_ms)}" if unended else ""
    click.echo(heading("\ntraces"))
    click.echo(
        f"  {found.open_traces} open, {found.quiet_traces} quiet{oldest}; "
        f"{found.ended_traces} ended and kept"
    )
    if found.waiting_sessions:
        sessions = counted(found.waiting_sessions, "session")
        click.echo(f"  {counted(found.waiting_traces, 'trace')} of {sessions} waiting their turn")
        for held in found.held_sessions:
            turn = f", for {held.turn} to end" if held.turn else ""
            session = shortened(held.session, SESSION_CHARS)
            click.echo(f"    session {session}: {counted(held.traces, 'trace')}{turn}")
        more = found.waiting_sessions - len(found.held_sessions)
        if more > 0:
            click.echo(f"    and {counted(more, 'session')} more")
    click.echo(heading("\nrounds"))
    if found.rounds:
        _write_rounds(found.rounds, limit=5, indent="  ")
    else:
        click.echo("  none open")
    letters = str(found.dead_letters)
    click.echo(f"\n{heading('dead letters')}  {bad(letters) if found.dead_letters else letters}")
    repairs = [f"{name} {count}" for name, count in found.repairs.items() if count]
    if repairs:
        click.echo(f"{heading('repairs')}  {', '.join(repairs)}")


def _write_rounds(rounds: Sequence["Round"], *, limit: int, indent: str = "") -> None:
    from colony.cli.screen import age, table

    rows = [("question", "round", "expected", "received", "missing", "age", "store")]
    for found in rounds[:limit]:
        rows.append(
            (
                str(found.key.get("turn_id")),
                str(found.key.get("iter")),
                str(len(found.expected)),
                str(len(found.received)),
                ", ".join(found.missing) or "none",
                age(found.age_ms),
                f"{found.store}:{found.table}",
            )
        )
    table(rows, indent=indent)
    if len(rounds) > limit:
        click.echo(f"{indent}and {len(rounds) - limit} more")


def _waiting(backlog: "Backlog") -> tuple[str, str]:
    from colony.cli.screen import age

    return str(backlog.waiting), age(backlog.oldest_ms) if backlog.waiting else ""
