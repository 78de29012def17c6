"""`asks`: what agents wait for an answer to."""

import json
from typing import TYPE_CHECKING, Any

import click

from colony.cli.options import asks_colony, formatted

if TYPE_CHECKING:
    from colony.agent.asks import Decision, Verdict
    from colony.config import Config
    from colony.engine import Engine
    from colony.runs.asks import PendingAsk


class Arguments(click.ParamType[dict[str, Any]]):
    """The arguments of a call, as a JSON object."""

    name = "json"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        """The arguments."""
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.fail(f"{value!r} is not a JSON object", param, ctx)
        return found


@click.group()
def asks() -> None:
    """List and answer what agents ask: calls they make only when somebody lets them."""


@asks.command("list")
@click.option("--session", metavar="ID", help="Only those of this session.")
@formatted
@asks_colony
def list_asks(config: "Config", session: str | None, output: str) -> None:
    """List the asks that wait, whole, those that are due first first."""
    from colony.cli.agents import with_engine
    from colony.cli.screen import write_json

    found = with_engine(config, lambda engine: engine.asks(session))
    if output == "json":
        write_json([ask.to_json() for ask in found])
    elif found:
        _write(found)
    else:
        click.echo("nothing waits for an answer")


@asks.command()
@click.argument("ask_id")
@click.argument("verdict", type=click.Choice(["allow_once", "allow_always", "deny"]))
@click.option("--reason", default="", help="What the model is told where it is denied.")
@click.option("--args", type=Arguments(), help="Other arguments for a call that is allowed once.")
@formatted
@asks_colony
def answer(
    config: "Config",
    ask_id: str,
    verdict: "Verdict",
    reason: str,
    args: dict[str, Any] | None,
    output: str,
) -> None:
    """Answer an ask; the first answer counts."""
    from colony.cli.agents import actor, with_engine
    from colony.cli.screen import write_json
    from colony.errors import AskNotPending

    async def talk(engine: "Engine") -> "Decision":
        for asked in await engine.asks():
            if asked.ask.id == ask_id:
                return await engine.resolve(
                    asked.session_id, asked.run_id, ask_id, verdict, reason, args=args,
                    actor=actor(),
                )  # fmt: skip
        raise AskNotPending(ask_id=ask_id)

    decision = with_engine(config, talk)
    if output == "json":
        write_json({"ask_id": ask_id, **decision.model_dump(mode="json")})
        return
    click.echo(decision.verdict)
    if verdict == "allow_always" and not decision.learned:
        click.echo("this once: nothing tells this call from others", err=True)


def _write(found: "list[PendingAsk]") -> None:
    import time

    from colony.cli.asking import ask_lines
    from colony.cli.screen import age, faint

    now = time.time_ns() // 1_000_000
    for asked in found:
        due = age(max(0, asked.ask.deadline - now))
        click.echo(f"{asked.ask.id}  {faint(f'session {asked.session_id}, due in {due}')}")
        for line in ask_lines(asked.ask.model_dump(mode="json")):
            click.echo(f"  {line}")
