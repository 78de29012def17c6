"""The job process: a worker of RQ whose jobs cannot outlive their time, nor leave anything behind.

It takes the jobs of a colony and no others, reads JSON and no pickles, and runs each in a confined
process that it kills with everything in it one second after the job's timeout.
"""

import logging
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

from rq.exceptions import DeserializationError
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.worker import Worker

from colony.config import Config
from colony.confinement import supervision
from colony.confinement.folders import remove_abandoned
from colony.jobs import horse
from colony.jobs.order import BEAT_S, END, GRACE_S, INTERRUPTED, OVERDUE, WORK
from colony.jobs.place import Place
from colony.jobs.running import SCRATCH, RunningHorse
from colony.log import get_logger

# What is called where a job says so: no other function, whatever lies in the queue.
FUNCTIONS: Final = frozenset({WORK, "colony.jobs.sweeps.sweep", "colony.jobs.sweeps.report"})
# A job process that RQ has not heard of for so long is gone, and one that hears nothing looks
# whether its server still is there.
GONE_S: Final = 60

log = get_logger("colony.jobs")


class JobWorker(Worker):
    """Takes jobs one after the other until SIGTERM.

    A job that runs then is given the drain time of the settings, and is ordered again by its worker
    where it needs longer.
    """

    log_result_lifespan = False
    # In seconds: a server that is back is found this soon.
    max_connection_wait_time = 5.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Before there are threads: the way of confinement is tried by a fork.
        supervision.strongest()
        options.update(serializer=JSONSerializer, worker_ttl=GONE_S)
        super().__init__(*arguments, **options)
        self.job_monitoring_interval = BEAT_S
        self.config = Config.load({}, file=_settings())
        if horse.here is None:
            horse.here = Place.of(self.config)
        self._running: RunningHorse | None = None
        self.asked_to_stop = False

    def subscribe(self) -> None:
        """Listen to what RQ's own commands say to this process, and tell that it serves."""
        super().subscribe()  # type: ignore[no-untyped-call]
        remove_abandoned(SCRATCH)
        log.info("taking_jobs", queues=self.queue_names(), pid=os.getpid())

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a job of ours in a process of its own; any other fails unrun."""
        problem = _problem(job)
        if problem:
            log.error("job_refused", job=job.id, detail=problem)
            execution = self.prepare_execution(job)
            self.handle_job_failure(job, queue, exc_string=problem, execution=execution)
            return
        # At once: whoever waits for it takes a job that is in no queue and not begun for lost.
        job.set_status(JobStatus.STARTED)
        super().execute_job(job, queue)

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """Fork the process that does the job. It ends when this one does."""
        if job.func_name == WORK and horse.here is not None:
            horse.here.learn(int(job.kwargs["version"]))

        def work() -> None:
            os.environ.update(RQ_WORKER_ID=self.name, RQ_JOB_ID=job.id)
            self._leave_connections_alone()
            self.main_work_horse(job, queue)

        self._running = RunningHorse(work)
        self._horse_pid = self._running.pid
        log.info("job_begun", job=job.id, cell=job.description, pid=self.horse_pid)

    def monitor_work_horse(self, job: Job, queue: Queue, execution: Execution) -> None:
        """See the job to its end, and end it in time."""
        alarm = self._horse.end_after(_timeout_s(job) + GRACE_S, OVERDUE)
        try:
            super().monitor_work_horse(job, queue, execution)
        finally:
            alarm.cancel()
            self._horse.clear_up()

    def wait_for_horse(self) -> tuple[int | None, int | None, Any]:
        """How the job's process ended; nobody can mistake another one for it meanwhile."""
        self._horse.wait()
        pid, status, used = cast(tuple[int, int, Any], super().wait_for_horse())
        # RQ does not look at a job whose process ended with 0. One that has left its job with that
        # must not be waited for until it counts as gone.
        return pid, status or None, used

    def handle_work_horse_killed(
        self, job: Job, retpid: int | None, ret_val: int | None, rusage: Any
    ) -> None:
        """Leave word of how the process ended, which can say nothing any more."""
        job.meta[END] = self._horse.why or _told(ret_val or 0)
        job.save_meta()  # type: ignore[no-untyped-call]
        log.warning("job_killed", job=job.id, cell=job.description, end=job.meta[END])

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """Take no further job; the one that runs has the drain time."""
        self.asked_to_stop = True
        if self._running is not None:
            self._running.end_after(self.config.drain_s, INTERRUPTED)
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]

    def request_force_stop(self, signum: int, frame: FrameType | None) -> None:
        """A second signal: the job that runs is interrupted now."""
        if self._running is not None:
            self._running.end(INTERRUPTED)

    @property
    def _horse(self) -> RunningHorse:
        assert self._running is not None, "RQ asks for a horse once it has forked one"
        return self._running

    def _leave_connections_alone(self) -> None:
        # In a namespace of its own a process may bear the number of the one it was forked from, by
        # which a pool tells whose connections it holds. They are kept from being closed here.
        self._left_alone = vars(self.connection.connection_pool).copy()
        self.connection.connection_pool.reset()


class RqLog(logging.Handler):
    """What RQ logs, as lines of colony's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a line with the level it came with."""
        log.log(record.levelno, "rq", detail=record.getMessage(), exc_info=record.exc_info)


def log_as_ours() -> None:
    """RQ logs what goes wrong in the format of colony's log, and nothing else."""
    rq = logging.getLogger("rq")
    rq.handlers[:] = [RqLog()]
    rq.propagate = False


def _problem(job: Job) -> str:
    """Why a job is none of ours, which anybody who reaches the queue could have put there."""
    try:
        if job.func_name not in FUNCTIONS or job.instance is not None:
            return "not a function of ours"
        if job.func_name == WORK and not isinstance(job.kwargs.get("version"), int):
            return "not an order of ours"
    except (DeserializationError, ValueError, AttributeError) as error:
        return f"not readable as JSON: {error}"
    hooks = (
        job._success_callback_name,
        job._failure_callback_name,
        job._stopped_callback_name,
        job.webhooks,
    )
    return "no hooks are called" if any(hooks) else ""


def _timeout_s(job: Job) -> float:
    timeout_ms = job.kwargs.get("timeout_ms")
    return timeout_ms / 1000 if isinstance(timeout_ms, int) else float(job.timeout or 60)


def _told(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"an exit with {os.waitstatus_to_exitcode(status)}"


def _settings() -> Path | None:
    named = os.environ.get("COLONY_CONFIG")
    return Path(named) if named else None
