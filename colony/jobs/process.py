"""The job process: a worker of RQ whose jobs cannot outlive their time, nor leave anything behind.

It takes the jobs of a colony and no others, reads JSON and no pickles, and runs each in a confined
process that it kills with everything in it one second after the job's timeout.
"""

import logging
import os
import shutil
import signal
import tempfile
import threading
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
from colony.confinement import kernel, supervision
from colony.confinement.folders import hold, remove_abandoned
from colony.confinement.limits import Limits
from colony.jobs import horse
from colony.jobs.order import BEAT_S, END, GRACE_S, INTERRUPTED, OVERDUE, WORK
from colony.jobs.place import Place
from colony.jobs.printing import Relay
from colony.log import get_logger

# What is called where a job says so: no other function, whatever lies in the queue.
FUNCTIONS: Final = frozenset({WORK, "colony.jobs.sweeps.sweep", "colony.jobs.sweeps.report"})
# A job process that RQ has not heard of for so long is gone, and one that hears nothing looks
# whether its server still is there.
GONE_S: Final = 60
# After this time what was asked to end is killed without being asked.
INSIST_S: Final = 5.0
_SCRATCH: Final = "colony-job-"

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
        self._watching = threading.RLock()
        self._watched = 0
        self._why = ""
        self.asked_to_stop = False

    def subscribe(self) -> None:
        """Listen to what RQ's own commands say to this process, and tell that it serves."""
        super().subscribe()  # type: ignore[no-untyped-call]
        remove_abandoned(_SCRATCH)
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
        self._why = ""
        parent, folder = os.getpid(), tempfile.mkdtemp(prefix=_SCRATCH)
        held = hold(Path(folder))
        relays = [Relay(number) for number in (1, 2)]
        pid = os.fork()
        if pid == 0:
            try:
                os.environ.update(RQ_WORKER_ID=self.name, RQ_JOB_ID=job.id)
                for relay in relays:
                    relay.become()
                self._become_horse(parent, folder)
                self.main_work_horse(job, queue)
            finally:
                os._exit(1)
        self._horse_pid = pid
        for relay in relays:
            relay.start()
        log.info("job_begun", job=job.id, cell=job.description, pid=pid)
        with self._watching:
            self._watched = pid
            self._folder, self._held, self._relays = folder, held, relays

    def monitor_work_horse(self, job: Job, queue: Queue, execution: Execution) -> None:
        """See the job to its end, and end it in time."""
        after_s = _timeout_s(job) + GRACE_S
        alarm = self._alarm(after_s, self.horse_pid, OVERDUE)
        try:
            super().monitor_work_horse(job, queue, execution)
        finally:
            alarm.cancel()
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._held)
            for relay in self._relays:
                relay.finish()

    def wait_for_horse(self) -> tuple[int | None, int | None, Any]:
        """How the job's process ended; nobody can mistake another one for it meanwhile."""
        # It is a zombie until it is reaped below, and no other process has its number so long.
        os.waitid(os.P_PID, self.horse_pid, os.WEXITED | os.WNOWAIT)
        with self._watching:
            self._watched = 0
        pid, status, used = cast(tuple[int, int, Any], super().wait_for_horse())
        # RQ does not look at a job whose process ended with 0. One that has left its job with that
        # must not be waited for until it counts as gone.
        return pid, status or None, used

    def handle_work_horse_killed(
        self, job: Job, retpid: int | None, ret_val: int | None, rusage: Any
    ) -> None:
        """Leave word of how the process ended, which can say nothing any more."""
        job.meta[END] = self._why or _told(ret_val or 0)
        job.save_meta()  # type: ignore[no-untyped-call]
        log.warning("job_killed", job=job.id, cell=job.description, end=job.meta[END])

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """Take no further job; the one that runs has the drain time."""
        self.asked_to_stop = True
        with self._watching:
            self._alarm(self.config.drain_s, self._watched, INTERRUPTED)
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]

    def request_force_stop(self, signum: int, frame: FrameType | None) -> None:
        """A second signal: the job that runs is interrupted now."""
        self._end(self._watched, INTERRUPTED)

    def _become_horse(self, parent: int, folder: str) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setpgrp()
        kernel.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        supervision.confine(Limits())
        tempfile.tempdir = folder
        # In a namespace of its own a process may bear the number of the one it was forked from, by
        # which a pool tells whose connections it holds. They are kept from being closed here.
        self._left_alone = vars(self.connection.connection_pool).copy()
        self.connection.connection_pool.reset()

    def _alarm(self, seconds: float, pid: int, why: str) -> threading.Timer:
        alarm = threading.Timer(seconds, self._end, (pid, why))
        alarm.daemon = True
        alarm.start()
        return alarm

    def _end(self, pid: int, why: str) -> None:
        """End the job's process and everything in it, if it still runs."""
        with self._watching:
            if not pid or self._watched != pid:
                return
            self._why = self._why or why
            os.kill(pid, signal.SIGTERM)
        self._insist(pid)

    def _insist(self, pid: int) -> None:
        def kill() -> None:
            with self._watching:
                if self._watched == pid:
                    os.kill(pid, signal.SIGKILL)

        alarm = threading.Timer(INSIST_S, kill)
        alarm.daemon = True
        alarm.start()


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
