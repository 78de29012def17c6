"""Commands about a tree on disk: `validate`, `graph`, `apply`."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from colony.cli.failures import REFUSED, complain
from colony.cli.options import ROOT, asks_colony, formatted

if TYPE_CHECKING:
    from pydantic import JsonValue

    from colony.access import Access
    from colony.config import Config
    from colony.topology.findings import Finding
    from colony.topology.load import Loaded
    from colony.topology.model import TopologySpec

sinks = click.option(
    "--sink", "sinks", multiple=True, metavar="PATH", help="Put a sink at PATH; repeatable."
)


@click.command()
@click.argument("root", type=ROOT)
@click.option("--strict", is_flag=True, help="End with 1 where there are warnings.")
@sinks
@formatted
def validate(root: Path, strict: bool, sinks: tuple[str, ...], output: str) -> None:
    """Report everything that is wrong with a tree."""
    from colony.cli.screen import counted, write_json
    from colony.topology.findings import exit_status, strictly
    from colony.topology.load import load

    found = load(root, environment=os.environ, sinks=sinks).findings
    found = strictly(found) if strict else found
    errors = sum(finding.severity == "error" for finding in found)
    warnings = len(found) - errors
    if output == "json":
        listed: list[JsonValue] = [{**finding.to_json()} for finding in found]
        write_json({"findings": listed, "errors": errors, "warnings": warnings})
    else:
        write_findings(found)
        click.echo(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}")
    raise click.exceptions.Exit(exit_status(found, strict=strict))


@click.command()
@click.argument("root", type=ROOT)
@sinks
@click.option(
    "--format",
    "output",
    type=click.Choice(["mermaid", "dot", "json"]),
    default="mermaid",
    show_default=True,
    help="How to draw.",
)
def graph(root: Path, sinks: tuple[str, ...], output: str) -> None:
    """Draw a tree as Mermaid or DOT."""
    from colony.access.registry import graph as as_json
    from colony.cli.screen import write_json
    from colony.topology.graph import dot, mermaid
    from colony.topology.load import load
    from colony.topology.model import Topology

    loaded = load(root, environment=os.environ, sinks=sinks)
    if loaded.spec is None:
        refuse(loaded)
        return
    if output == "json":
        write_json(as_json(Topology.compile(loaded.spec)))
    else:
        click.echo((mermaid if output == "mermaid" else dot)(loaded.spec), nl=False)


@click.command()
@click.argument("root", type=ROOT)
@click.option(
    "--expect",
    type=click.IntRange(min=0),
    help="Refuse unless this version is newest, or the tree is published already.",
)
@sinks
@formatted
@asks_colony
def apply(
    config: "Config", root: Path, expect: int | None, sinks: tuple[str, ...], output: str
) -> None:
    """Publish a tree; whatever runs follows it live."""
    from colony.cli.screen import counted, write_json
    from colony.cli.session import ask

    spec = publishable(root, sinks)

    async def publish(access: "Access") -> int:
        return await access.publication.publish(spec, expected=expect)

    version = ask(config, publish)
    if output == "json":
        write_json({"name": config.name, "version": version, "digest": spec.digest()})
    else:
        cells = counted(len(spec.cells), "cell")
        click.echo(f"{config.name} is at version {version}: {cells}, digest {spec.digest()}")


def publishable(root: Path, sinks: tuple[str, ...], *, hosted: bool = False) -> "TopologySpec":
    """The tree at `root`, fit to be published; its findings are written to standard error.

    Where this host is to run its cells, `hosted`, they must be importable here. Ends the command
    where a finding is an error; raises VariableUnset where a variable is not set.
    """
    from colony.topology.findings import hosted_here
    from colony.topology.load import load

    loaded = load(root, environment=os.environ, sinks=sinks)
    if hosted:
        loaded = replace(loaded, findings=hosted_here(loaded.findings))
    if any(finding.severity == "error" for finding in loaded.findings):
        refuse(loaded)
    write_findings(loaded.findings, err=True)
    return loaded.publishable()


def refuse(loaded: "Loaded") -> None:
    """End the command with what is wrong with a tree."""
    from colony.cli.screen import counted

    write_findings(loaded.findings, err=True)
    errors = sum(finding.severity == "error" for finding in loaded.findings)
    code = loaded.refusal.code if loaded.refusal else "topology_invalid"
    complain(code, f"the tree has {counted(errors, 'error')}")
    raise click.exceptions.Exit(REFUSED)


def write_findings(found: Iterable["Finding"], *, err: bool = False) -> None:
    """One line for each finding."""
    for finding in found:
        colour = "red" if finding.severity == "error" else "yellow"
        kind = click.style(f"{finding.severity} {finding.code}", fg=colour)
        click.echo(f"{finding.file} {finding.json_path}: {kind}: {finding.sentence}", err=err)
