"""`jobs`: the processes that take the jobs of cells with `isolation: job`."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from colony.cli.options import ROOT, reaches_rq, runs_colony
from colony.cli.roles import import_from, serve

if TYPE_CHECKING:
    from colony.config import Config
    from colony.serving import Service


@click.command()
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="How many; each does one job at a time.",
)
@click.option(
    "--root",
    type=ROOT,
    help="The tree on this host: its folders, its .env and its Python modules are used.",
)
@click.option("--cron", is_flag=True, help="Order sweeps and reports at intervals as well.")
@click.option("--with-parent", is_flag=True, hidden=True, help="Be one, until standard input ends.")
@reaches_rq
@runs_colony
def jobs(
    config: "Config", processes: int, root: Path | None, cron: bool, with_parent: bool
) -> None:
    """Run processes that take jobs, until SIGTERM; a job that runs is given the drain time."""
    from colony.errors import ConfigError
    from colony.sentinel import names_sentinels
    from colony.servers import server_of

    url = server_of(config)
    rq_url = config.rq or url
    if names_sentinels(rq_url):
        raise ConfigError(detail="jobs need a server without sentinels: name one with --rq-url")
    if with_parent:
        _take_jobs(config, rq_url, root)
        return
    from colony.worker_processes import WorkerProcesses

    services: list[Service] = [WorkerProcesses(config, url, root, processes, role="jobs")]
    if cron:
        from colony.jobs.cron import Cron
        from colony.keys import Keys

        services.append(Cron(rq_url, Keys(config.name)))
    serve(*services)


def _take_jobs(config: "Config", rq_url: str, root: Path | None) -> None:
    from redis import Redis

    from colony.jobs import horse
    from colony.jobs.order import queue_of
    from colony.jobs.place import Place
    from colony.jobs.process import JobWorker, log_as_ours
    from colony.topology.substitution import variables

    place = Place.of(config)
    if root is not None:
        import_from(root)
        place.root = root
        place.environment = variables(root, os.environ)
    horse.here = place
    log_as_ours()
    worker = JobWorker([queue_of(place.keys)], connection=Redis.from_url(rq_url))
    threading.Thread(target=_end_with_input, daemon=True).start()
    worker.work(logging_level="WARNING")
    if not worker.asked_to_stop:
        # It gives up where its server is away; whoever started it starts another one.
        sys.exit(1)


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
