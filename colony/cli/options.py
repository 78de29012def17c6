"""Options that many commands share: which colony, how to print, how to log."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from colony.config import Config

P = ParamSpec("P")
R = TypeVar("R")

ROOT: Final = click.Path(exists=True, file_okay=False, path_type=Path)

formatted = click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print.",
)

_COLONY: Final = (
    click.option("--name", metavar="NAME", help="Name of the colony.  [default: colony]"),
    click.option("--redis", metavar="URL", help="Server to use; otherwise the one of `colony up`."),
    click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        help="Where the server of `colony up` keeps its data.",
    ),
    click.option(
        "--config",
        "config_file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Settings in a TOML file.",
    ),
)
_LOG: Final = (
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"])),
    click.option("--log-format", type=click.Choice(["console", "json"])),
)

serves_grpc = click.option(
    "--grpc-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve agents over gRPC as well, on this port beside the HTTP interface.",
)
reaches_rq = click.option(
    "--rq-url", metavar="URL", help="Server of RQ, for jobs.  [default: that of the colony]"
)


def asks_colony(command: Callable[Concatenate["Config", P], R]) -> Callable[..., R]:
    """A command about a colony: it is given the settings, and logs only what is wrong."""
    return _decorated(command, _COLONY, quiet=True)


def runs_colony(command: Callable[Concatenate["Config", P], R]) -> Callable[..., R]:
    """A command that runs a part of a colony: it is given the settings, and logs as they say."""
    return _decorated(command, _COLONY + _LOG, quiet=False)


def named(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """What an option names; an empty text is refused."""
    if value == "":
        raise click.BadParameter("it is empty", ctx, param)
    return value


def _decorated(
    command: Callable[Concatenate["Config", P], R],
    options: tuple[Callable[[Any], Any], ...],
    *,
    quiet: bool,
) -> Callable[..., R]:
    @wraps(command)
    def wrapper(*arguments: Any, **given: Any) -> R:
        from colony import faults, log
        from colony.config import Config

        flags = {
            "name": given.pop("name"),
            "redis_url": given.pop("redis"),
            "rq_url": given.pop("rq_url", None),
            "data": given.pop("data"),
            "log_level": given.pop("log_level", None),
            "log_format": given.pop("log_format", None),
            "api": given.pop("api_address", None),
            "grpc_port": given.pop("grpc_port", None),
        }
        config = Config.load(flags, file=given.pop("config_file") or _named_file())
        log.configure("error" if quiet else config.log_level, config.log_format)
        if not quiet:
            faults.arm(os.environ.get(faults.VARIABLE, ""))
        return command(config, *arguments, **given)

    for option in reversed(options):
        wrapper = option(wrapper)
    return wrapper


def _named_file() -> Path | None:
    named = os.environ.get("COLONY_CONFIG")
    return Path(named) if named else None
