"""
The time in ``execute``, taken inside of the task, and the peak memory.

For the DAG files of the benchmarks.
"""

from __future__ import annotations

import json
import os
import resource
import time
from typing import Any

began = 0.0


def before(_: Any) -> None:
    """Note when ``execute`` begins."""
    global began
    began = time.perf_counter()


def after(context: Any, _: Any) -> None:
    """Append what the task took to the file that the benchmark reads."""
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    name = f"{context['run_id']} {context['ti'].task_id}"
    with open(os.environ["BENCH_TIMES"], "a") as times:  # noqa: PTH123 - before pathlib is imported
        times.write(json.dumps([name, seconds, peak]) + "\n")


TIMED = {"pre_execute": before, "post_execute": after}
