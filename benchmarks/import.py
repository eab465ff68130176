"""
Measure what importing an operator adds to the parsing of a DAG file, after ``airflow.sdk``.

``make bench-import``.

Each import runs in a fresh interpreter, the contenders in turn, and medians are compared with
HttpOperator's. The aim: at most 10 modules, none that is heavy, and under 5 % of HttpOperator's CPU
time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from common import pick, report

ROUNDS = pick(15, 1)

CONTENDERS = {
    "TriggerFlowOperator, UploadFilesOperator": "workflow_automation_provider.operators.flows",
    "HttpOperator": "airflow.providers.http.operators.http",
}

HEAVY = {
    "aiohttp",
    "asgiref",
    "httpx",
    "numpy",
    "pandas",
    "pydantic",
    "requests",
    "sqlalchemy",
    "tenacity",
}

# What any DAG file has imported before its operators.
PROBE = """
import json, sys, time
from airflow.sdk import DAG, BaseOperator, BaseOperatorLink, task
import airflow.providers.common.compat.sdk
before = set(sys.modules)
began = time.process_time()
__import__({module!r})
seconds = time.process_time() - began
print(json.dumps([seconds, sorted(set(sys.modules) - before)]), file=sys.stderr)
"""


def measure(module: str) -> tuple[float, list[str]]:
    """Import ``module`` in a fresh interpreter; return its CPU seconds and the modules it added."""
    probe = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE.format(module=module)],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, modules = json.loads(probe.stderr.splitlines()[-1])
    return seconds, modules


def main() -> None:
    """Print the table."""
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    modules: dict[str, list[str]] = {}
    for _ in range(ROUNDS + 1):
        for name, module in CONTENDERS.items():
            seconds, modules[name] = measure(module)
            times[name].append(seconds)
    # The first warms the disk.
    medians = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    theirs = medians["HttpOperator"]
    heavy = {
        name: sorted({m.partition(".")[0] for m in modules[name]} & HEAVY) for name in CONTENDERS
    }
    rows = [
        [name, str(len(modules[name])), ", ".join(heavy[name]) or "none", f"{seconds / theirs:.3f}"]
        for name, seconds in medians.items()
    ]
    report(["operator", "modules added", "heavy ones", "CPU time, HttpOperator = 1"], rows, texts=4)


if __name__ == "__main__":
    main()
