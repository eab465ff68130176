"""
Run tests on every Airflow and Python that the package supports.

All unit and integration tests run on the newest Airflow, as they do in ``make test`` on the one before it. On the
others, and with the lower bounds, those run that tell whether it works at all.

Two cells run side by side: while one waits, or makes its environment, the other works. The small ones are one process
each, which makes Airflow's database once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROJECT = Path(__file__).parent.parent

# Each Airflow and each Python at least once, that of `make test` aside; "lowest" has the lower bounds of pyproject.toml,
# as they are. What takes longest begins first.
CELLS = (
    ("3.4", "3.13"),
    ("lowest", "3.11"),
    ("3.2", "3.12"),
    ("3.1", "3.13"),
)
WHOLE, WITH_LIBRARIES = ("3.4", "3.13"), ("lowest", "3.11")

# What tells whether it works at all: imports, local files, the connection and its form, and each example DAG, with starts, uploads,
# batches and retries; but for what needs the task state store of Airflow 3.3.
SMOKE = (
    "tests/unit/hooks/test_file_sources.py",
    "tests/unit/hooks/test_workflow_automation.py",
    "tests/unit/plugins/test_airflow_plugin.py",
    "tests/unit/test_get_provider_info.py",
    "tests/unit/test_imports.py",
    "tests/integration/test_example_dags.py",
    "tests/integration/test_operators.py",
)
# What hardly depends on Airflow, but on Python and on the libraries.
WITHOUT_AIRFLOW = ("tests/unit/client", "tests/unit/testing/_server")


def find_python(version: str) -> str | None:
    """Return an interpreter of this version that runs: on the PATH, or among pyenv's."""
    candidates = [shutil.which(f"python{version}")]
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False).stdout.strip()
        candidates += sorted(str(path) for path in Path(root, "versions").glob(f"{version}*/bin/python"))
    probe = f"import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for python in candidates:
        if python and subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0:
            return python
    return None


def run_cell(airflow: str, version: str) -> str:
    """Run the tests of one cell, and print what they print once they have ended; return what came of it."""
    name, cell = f"Airflow {airflow}, Python {version}", (airflow, version)
    if not (python := find_python(version)):
        return f"FAILED: there is no Python {version}"
    print(f"=== {name} begins", flush=True)
    tests = [*SMOKE, *WITHOUT_AIRFLOW] if cell == WITH_LIBRARIES else [*SMOKE]
    options = ["-n", "0", "-m", "'not since_3_3'"]
    if cell == WHOLE:
        tests, options = ["tests/unit", "tests/integration"], ["-n", "2", "--dist", "worksteal"]
    arguments = [*tests, *options, "-q", "-p", "no:cacheprovider", "--hypothesis-profile=matrix"]
    command = ["make", "--no-print-directory", "test", f"AIRFLOW={airflow}", f"PYTHON={python}"]
    command += [f"VENV=.venv-{airflow}-py{version}", f"ARGS={' '.join(arguments)}"]
    # Each is started by make itself, whose flags and variables must not reach into the next.
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS")}
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=PROJECT,
        env=environment,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(f"=== {name}\n{done.stdout}", flush=True)
    return f"{'FAILED' if done.returncode else 'passed'} in {time.monotonic() - began:.0f} s"


def main() -> int:
    """Run the cells named as arguments (such as 3.2-py3.12), or all; return 1 if one failed."""
    cells = {f"{airflow}-py{version}": (airflow, version) for airflow, version in CELLS}
    if unknown := set(sys.argv[1:]) - set(cells):
        sys.exit(f"No such cell: {', '.join(sorted(unknown))}. There are: {', '.join(cells)}")
    chosen = sys.argv[1:] or [*cells]
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(chosen, pool.map(lambda cell: run_cell(*cells[cell]), chosen), strict=True))
    print()
    for cell, result in results.items():
        print(f"{cell:15} {result}")
    return int(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
