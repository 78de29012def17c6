"""`dead-letters`: what nobody will handle, to be read, replayed and dropped."""

from typing import TYPE_CHECKING, Any

import click

from colony.cli.options import asks_colony, formatted

if TYPE_CHECKING:
    from pydantic import JsonValue

    from colony.access import Access
    from colony.config import Config
    from colony.dead_letters import Buried

code = click.option("--code", help="Only letters with this code.")
limit = click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)


@click.group("dead-letters")
def dead_letters() -> None:
    """Read, replay or drop dead letters."""


@dead_letters.command("list")
@code
@limit
@formatted
@asks_colony
def list_(config: "Config", code: str | None, limit: int, output: str) -> None:
    """List the letters, oldest first."""
    from colony.cli.screen import write_json
    from colony.cli.session import ask

    found = ask(config, lambda access: access.dead_letters.list(code=code, limit=limit))
    if output == "json":
        write_json([letter.to_json() for letter in found])
    elif found:
        _write(found)
    else:
        click.echo("no dead letters")


@dead_letters.command()
@click.argument("letter_id", metavar="ID")
@formatted
@asks_colony
def show(config: "Config", letter_id: str, output: str) -> None:
    """Show one letter with its whole envelope."""
    from colony.cli.screen import pairs, write_json
    from colony.cli.session import ask

    letter = ask(config, lambda access: access.dead_letters.get(letter_id))
    told = letter.to_json()
    if output == "json":
        write_json(told)
        return
    for key, value in told.items():
        if key not in ("message", "edges") and value is not None:
            click.echo(f"{key}: {value}")
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

    async def talk(access: "Access") -> dict[str, "JsonValue"]:
        return {letter: await access.replay(letter) for letter in letter_ids}

    traces = ask(config, talk)
    if output == "json":
        write_json([{"id": letter, "trace_id": trace} for letter, trace in traces.items()])
        return
    for letter, trace in traces.items():
        click.echo(f"{letter} travels in trace {trace}")


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
    """Forget letters. With --all, only tells which, unless --yes is given."""
    from colony.cli.screen import counted, write_json
    from colony.cli.session import ask

    if bool(letter_ids) == every:
        raise click.UsageError("give either IDs or --all")
    dropping = not every or yes

    async def talk(access: "Access") -> list["Buried"]:
        letters = access.dead_letters
        if every:
            found = await letters.list(code=code, limit=await letters.count())
        else:
            found = [await letters.get(letter_id) for letter_id in letter_ids]
        for letter in found if dropping else ():
            await letters.drop(letter.id)
        return found

    found = ask(config, talk)
    if output == "json":
        write_json({"dropped": dropping, "letters": [letter.to_json() for letter in found]})
        return
    _write(found)
    told = "dropped" if dropping else "would be dropped; add --yes to do it"
    click.echo(f"{counted(len(found), 'letter')} {told}")


def _write(found: list["Buried"]) -> None:
    from colony.cli.screen import table

    def fact(letter: "Buried", name: str) -> str:
        return str(letter.facts.get(name) or "")

    rows = [("id", "code", "from", "to", "trace", "why")]
    rows += [
        (
            letter.id,
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
