"""`dead-letters`: what nobody will handle, to be read, replayed and dropped."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from colony.cli.failures import REFUSED, complain
from colony.cli.options import asks_colony, formatted
from colony.cli.when import When

if TYPE_CHECKING:
    from colony.access import Access
    from colony.access.bulk import Tally
    from colony.config import Config
    from colony.dead_letters import Buried, Which
    from colony.errors import ColonyError

P = ParamSpec("P")
T = TypeVar("T")

_FILTERS: Final = (
    click.option("--code", help="Only letters with this code."),
    click.option(
        "--to", "to_path_prefix", metavar="PATH", help="Only what died or was going there."
    ),
    click.option(
        "--from", "from_path_prefix", metavar="PATH", help="Only what was sent from there."
    ),
    click.option("--trace", "trace_id", metavar="ID", help="Only letters of this trace."),
    click.option(
        "--since", type=When(), help="Only what died since: 90s, 15min, 2h, 3d or a date."
    ),
    click.option("--until", type=When(), help="Only what had died by then, likewise."),
)


def _filtered(command: Callable[Concatenate["Which", P], T]) -> Callable[..., T]:
    """A command about some of the letters: it is given which."""

    @wraps(command)
    def wrapper(*arguments: Any, **given: Any) -> T:
        from colony.dead_letters import Which

        names = ("code", "to_path_prefix", "from_path_prefix", "trace_id", "since", "until")
        which = Which(**{name: given.pop(name) for name in names})
        return command(which, *arguments, **given)

    for option in reversed(_FILTERS):
        wrapper = option(wrapper)
    return wrapper


def _many(command: Callable[..., T]) -> Callable[..., T]:
    """A command that acts on the letters it is given, or on all that the filters leave."""
    for option in (
        click.option("--yes", is_flag=True, help="With filters or --all: do it, do not only tell."),
        click.option("--limit", type=click.IntRange(min=1), help="Only so many, the oldest."),
        click.option("--all", "every", is_flag=True, help="Every letter that the filters leave."),
        click.argument("letter_ids", metavar="[ID...]", nargs=-1),
    ):
        command = option(command)
    return command


@click.group("dead-letters")
def dead_letters() -> None:
    """Read, replay or drop dead letters."""


@dead_letters.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--before", metavar="ID", help="Only letters older than this one.")
@_filtered
@formatted
@asks_colony
def list_(config: "Config", which: "Which", limit: int, before: str | None, output: str) -> None:
    """List the letters, newest first. PATH stands for itself and all below it."""
    from dataclasses import replace

    from colony.cli.screen import counted, write_json
    from colony.cli.session import look

    async def talk(access: "Access") -> tuple[list["Buried"], int]:
        letters = access.dead_letters
        wanted = replace(which, before=before)
        return await letters.newest(wanted, limit=limit), await letters.count()

    found, count = look(config, talk)
    if output == "json":
        write_json([letter.to_json() for letter in found])
        return
    if not found:
        click.echo("no dead letters" if not count else f"none of {counted(count, 'letter')}")
        return
    _write(found)
    older = f"; --before {found[-1].id} goes on" if len(found) == limit < count else ""
    click.echo(f"{len(found)} of {counted(count, 'letter')}, the newest first{older}")


@dead_letters.command()
@click.argument("letter_id", metavar="ID")
@formatted
@asks_colony
def show(config: "Config", letter_id: str, output: str) -> None:
    """Show one letter with its whole envelope."""
    from colony.cli.screen import moment, pairs, write_json
    from colony.cli.session import look

    letter = look(config, lambda access: access.dead_letters.get(letter_id))
    told = letter.to_json()
    if output == "json":
        write_json(told)
        return
    for key, value in told.items():
        if key not in ("message", "edges") and value is not None:
            shown = moment(value) if key.endswith("_at") and isinstance(value, int) else value
            click.echo(f"{key}: {shown}")
    edges: Any = told.get("edges") or []
    for edge in edges:
        click.echo(f"edge: {pairs(edge, width=200)}")
    if letter.hollow:
        click.echo("message: none, there is no envelope")
        return
    click.echo("message:")
    write_json(told["message"])


@dead_letters.command()
@_many
@_filtered
@formatted
@asks_colony
def replay(
    config: "Config",
    which: "Which",
    letter_ids: tuple[str, ...],
    every: bool,
    limit: int | None,
    yes: bool,
    output: str,
) -> None:
    """Send the envelopes of letters again. Repeating it sends nothing.

    An envelope of a trace that has ended travels in a new one. With filters or --all, only tells
    how many letters there are that were never replayed, unless --yes is given.
    """
    from colony.cli.screen import write_json
    from colony.cli.session import ask

    if _in_bulk(letter_ids, which, every, limit):
        tally = ask(config, lambda a: a.replay_all(which, limit=limit, dry_run=not yes))
        _tell(tally, output)
        return

    async def talk(access: "Access") -> tuple[dict[str, str], list["ColonyError"]]:
        return await _each(letter_ids, access.replay)

    traces, refused = ask(config, talk)
    if output == "json":
        write_json([{"id": letter, "trace_id": trace} for letter, trace in traces.items()])
    else:
        for letter, trace in traces.items():
            click.echo(f"{letter} travels in trace {trace}")
    _refuse(refused)


@dead_letters.command()
@_many
@_filtered
@formatted
@asks_colony
def drop(
    config: "Config",
    which: "Which",
    letter_ids: tuple[str, ...],
    every: bool,
    limit: int | None,
    yes: bool,
    output: str,
) -> None:
    """Forget letters. With filters or --all, only tells how many, unless --yes is given."""
    from colony.cli.screen import counted, write_json
    from colony.cli.session import ask

    if _in_bulk(letter_ids, which, every, limit):
        tally = ask(config, lambda a: a.drop_all(which, limit=limit, dry_run=not yes))
        _tell(tally, output)
        return

    async def talk(access: "Access") -> tuple[dict[str, "Buried"], list["ColonyError"]]:
        return await _each(letter_ids, access.dead_letters.drop)

    found, refused = ask(config, talk)
    if output == "json":
        write_json({"dropped": True, "letters": [letter.to_json() for letter in found.values()]})
    else:
        _write([*found.values()])
        click.echo(f"{counted(len(found), 'letter')} dropped")
    _refuse(refused)


def _in_bulk(letter_ids: tuple[str, ...], which: "Which", every: bool, limit: int | None) -> bool:
    """Whether a command is about all letters of a kind; refuses what is neither or both."""
    from colony.dead_letters import ALL

    filtered = every or which != ALL
    if bool(letter_ids) == filtered or (letter_ids and limit is not None):
        raise click.UsageError("give either IDs, or filters, or --all")
    return filtered


def _tell(tally: "Tally", output: str) -> None:
    from colony.cli.screen import counted, table, write_json
    from colony.topology.model import QUIET

    if output == "json":
        write_json(tally.to_json())
    else:
        rows = [("letters", "code", "cell")]
        rows += [(str(n), code, cell) for (code, cell), n in tally.counts.most_common()]
        if tally.counts:
            table(rows)
        more = "" if tally.next is None else "; there are more"
        told = f"would be {tally.verb}; add --yes to do it" if tally.dry_run else tally.verb
        click.echo(f"{counted(len(tally.ids), 'letter')} {told}{more}")
        if tally.passed_over:
            click.echo(
                f"{counted(tally.passed_over, 'letter')} of the quiet lane passed over: each "
                "stands in for a message, which would be answered twice; "
                f"--from {QUIET} replays them"
            )
    _refuse([*tally.refused.values()])


async def _each(
    letter_ids: tuple[str, ...], act: Callable[[str], Awaitable[T]]
) -> tuple[dict[str, T], list["ColonyError"]]:
    """What `act` came to for each letter, and what kept it from acting on the others."""
    from colony.access.bulk import REFUSALS

    done: dict[str, T] = {}
    refused: list[ColonyError] = []
    for letter_id in dict.fromkeys(letter_ids):
        try:
            done[letter_id] = await act(letter_id)
        except REFUSALS as error:
            refused.append(error)
    return done, refused


def _refuse(refused: list["ColonyError"]) -> None:
    for error in refused:
        complain(error.code, str(error))
    if refused:
        raise click.exceptions.Exit(REFUSED)


def _write(found: list["Buried"]) -> None:
    from colony.cli.screen import moment, shortened, table

    def fact(letter: "Buried", name: str) -> str:
        return str(letter.facts.get(name) or "")

    def why(letter: "Buried") -> str:
        # Of what is gone there is nothing but this.
        detail = fact(letter, "detail")
        return detail if letter.hollow else shortened(detail, 60)

    rows = [("id", "died", "code", "from", "to", "trace", "replayed into", "why")]
    rows += [
        (
            letter.id,
            moment(letter.died_at),
            letter.code,
            fact(letter, "sender_path"),
            fact(letter, "resolved_target"),
            letter.trace_id,
            letter.replayed_into or "",
            why(letter),
        )
        for letter in found
    ]
    if found:
        table(rows)
