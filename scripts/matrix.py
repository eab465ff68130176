"""
Run tests on every Airflow and Python that the package supports.

All unit and integration tests run on the newest Airflow, as they do in ``make test`` on the one before it. On the
others, and with the lower bounds, those run that tell whether it works at all. Two cells run side by side: while one
waits, or makes its environment, the other works.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROJECT = Path(__file__).parent.parent

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
# In one process, which makes Airflow's database once.
SOME = ("-n", "0", "-m", "'not since_3_3'")

# Each Airflow and each Python at least once, that of `make test` aside; "lowest" has the lower bounds of pyproject.toml,
# as they are. What takes longest begins first.
CELLS = {
    "3.4-py3.13": ("-n", "2", "--dist", "worksteal", "tests/unit", "tests/integration"),
    "lowest-py3.11": (*SOME, *SMOKE, *WITHOUT_AIRFLOW),
    "3.2-py3.12": (*SOME, *SMOKE),
    "3.1-py3.13": (*SOME, *SMOKE),
}


def run_cell(cell: str) -> str:
    """Run the tests of one cell, and print what they print once they have ended; return what came of it."""
    print(f"=== {cell} begins", flush=True)
    airflow, _, version = cell.partition("-py")
    arguments = " ".join((*CELLS[cell], "-q", "-p", "no:cacheprovider", "--hypothesis-profile=matrix"))
    command = ["make", "--no-print-directory", "test", f"AIRFLOW={airflow}", f"PYTHON=python{version}"]
    command += [f"VENV=.venv-{cell}", f"ARGS={arguments}"]
    # Each is started by make itself, whose flags and variables must not reach into the next.
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS")}
    environment["PYENV_VERSION"] = version
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
    print(f"=== {cell}\n{done.stdout}", flush=True)
    return f"{'FAILED' if done.returncode else 'passed'} in {time.monotonic() - began:.0f} s"


def main() -> int:
    """Run the cells named as arguments, or all; return 1 if one failed."""
    chosen = sys.argv[1:] or [*CELLS]
    if not {*chosen} <= {*CELLS}:
        sys.exit(f"Expected some of: {', '.join(CELLS)}")
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(chosen, pool.map(run_cell, chosen), strict=True))
    print()
    for cell, result in results.items():
        print(f"{cell:15} {result}")
    return int(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
