"""Celery: chords of two no-op tasks with a callback, prefork, Redis as broker and result backend.

Usage: python chord.py CHORDS, with CHORD_REDIS_URL set. Prints chords per second. It does less than
a round of colony: no thread is kept, nothing is routed, a chord that loses a part never ends.
"""

import os
import subprocess
import sys
import time

from celery import Celery, chord

URL = os.environ["CHORD_REDIS_URL"]
app = Celery("chord", broker=URL, backend=URL)
app.conf.update(worker_prefetch_multiplier=16, task_ignore_result=False, result_expires=3600)


@app.task(name="tool")
def tool(number):
    return number


@app.task(name="join")
def join(results):
    return sum(results)


def measure(chords: int) -> float:
    started = time.perf_counter()
    waiting = [chord([tool.s(1), tool.s(2)])(join.s()) for _ in range(chords)]
    for result in waiting:
        if result.get(timeout=120) != 3:
            raise SystemExit("a chord came to something else")
    return chords / (time.perf_counter() - started)


def main() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "--quiet", "-A", "chord", "worker", "-P", "prefork",
         "-c", "2", "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"],
        cwd=os.path.dirname(os.path.abspath(__file__)),
    )  # fmt: skip
    try:
        measure(20)
        figure = measure(int(sys.argv[1]))
    finally:
        worker.terminate()
        worker.wait()
    print(figure)


if __name__ == "__main__":
    sys.modules["chord"] = sys.modules["__main__"]
    main()
