"""`dead-letters`: what nobody will handle, to be read, replayed and dropped."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from colony.cli.failures import REFUSED, complain
from colony.cli.options import asks_colony, formatted

if TYPE_CHECKING:
    from colony.access import Access
    from colony.config import Config
    from colony.dead_letters import Buried
    from colony.errors import ColonyError

T = TypeVar("T")

code = click.option("--code", help="Only letters with this code.")
TOLD: Final = 20


@click.group("dead-letters")
def dead_letters() -> None:
    """Read, replay or drop dead letters."""


@dead_letters.command("list")
@code
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--before", metavar="ID", help="Only letters older than this one.")
@formatted
@asks_colony
def list_(config: "Config", code: str | None, limit: int, before: str | None, output: str) -> None:
    """List the letters, newest first."""
    from colony.cli.screen import counted, write_json
    from colony.cli.session import ask

    async def talk(access: "Access") -> tuple[list["Buried"], int]:
        letters = access.dead_letters
        return await letters.newest(code=code, before=before, limit=limit), await letters.count()

    found, count = ask(config, talk)
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
    from colony.cli.session import ask

    letter = ask(config, lambda access: access.dead_letters.get(letter_id))
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
    click.echo("message:")
    write_json(told["message"])


@dead_letters.command()
@click.argument("letter_ids", metavar="ID...", nargs=-1, required=True)
@formatted
@asks_colony
def replay(config: "Config", letter_ids: tuple[str, ...], output: str) -> None:
    """Send the envelopes of letters again. Repeating it sends nothing.

    An envelope of a trace that has ended travels in a new one.
    """
    from colony.cli.screen import write_json
    from colony.cli.session import ask

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
@click.argument("letter_ids", metavar="ID...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Drop every letter, or every one of --code.")
@click.option("--yes", is_flag=True, help="With --all: do it, do not only tell.")
@code
@formatted
@asks_colony
def drop(
    config: "Config",
    letter_ids: tuple[str, ...],
    every: bool,
    yes: bool,
    code: str | None,
    output: str,
) -> None:
    """Forget letters. With --all, only tells how many and the newest, unless --yes is given."""
    from colony.cli.screen import counted, write_json
    from colony.cli.session import ask

    if bool(letter_ids) == every:
        raise click.UsageError("give either IDs or --all")
    if every:
        count, shown = ask(config, lambda access: _drop_all(access, code, really=yes))
        if output == "json":
            write_json({"dropped": yes, "count": count})
            return
        _write(shown)
        told = "dropped" if yes else "would be dropped; add --yes to do it"
        click.echo(f"{counted(count, 'letter')} {told}")
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


async def _drop_all(
    access: "Access", code: str | None, *, really: bool
) -> tuple[int, list["Buried"]]:
    """How many letters there were, and what is to be shown of them."""
    from colony.errors import DeadLetterNotFound

    letters = access.dead_letters
    found = await letters.newest(code=code, limit=await letters.count())
    for letter in found if really else ():
        # Somebody else may have dropped it meanwhile.
        with suppress(DeadLetterNotFound):
            await letters.drop(letter.id)
    return len(found), [] if really else found[:TOLD]


async def _each(
    letter_ids: tuple[str, ...], act: Callable[[str], Awaitable[T]]
) -> tuple[dict[str, T], list["ColonyError"]]:
    """What `act` came to for each letter, and what kept it from acting on the others."""
    from colony.errors import DeadLetterNotFound, EnvelopeError

    done: dict[str, T] = {}
    refused: list[ColonyError] = []
    for letter_id in dict.fromkeys(letter_ids):
        try:
            done[letter_id] = await act(letter_id)
        except (DeadLetterNotFound, EnvelopeError) as error:
            refused.append(error)
    return done, refused


def _refuse(refused: list["ColonyError"]) -> None:
    for error in refused:
        complain(error.code, str(error))
    if refused:
        raise click.exceptions.Exit(REFUSED)


def _write(found: list["Buried"]) -> None:
    from colony.cli.screen import moment, table

    def fact(letter: "Buried", name: str) -> str:
        return str(letter.facts.get(name) or "")

    rows = [("id", "died", "code", "from", "to", "trace", "why")]
    rows += [
        (
            letter.id,
            moment(letter.died_at),
            letter.code,
            fact(letter, "sender_path"),
            fact(letter, "resolved_target"),
            letter.trace_id,
            fact(letter, "detail")[:60],
        )
        for letter in found
    ]
    if found:
        table(rows)
