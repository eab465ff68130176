"""Renew constraints/airflow-*.txt: for each Airflow, the package versions that were seen to work with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parent.parent


class Pins(NamedTuple):
    """What keeps one Airflow working."""

    before: str | None = None
    """Only packages released before this day: newer ones break Airflow's old releases."""

    newer: tuple[str, ...] = ()
    """Packages that may be newer than that, each up to its own day."""

    also: tuple[str, ...] = ()
    """Requirements of this Airflow alone."""


AIRFLOWS = {
    "2.11": Pins(before="2026-05-01"),
    # common-compat has airflow.providers.common.compat.sdk from 1.10 on.
    # Its ObjectStoragePath loses the connection with universal-pathlib 0.3.
    "3.0": Pins(
        before="2025-10-01",
        newer=("apache-airflow-providers-common-compat=2026-01-01",),
        also=("universal-pathlib<0.3",),
    ),
    "3.1": Pins(before="2026-05-01"),
    "3.2": Pins(before="2026-06-15"),
    "3.3": Pins(),
}

# Beside what pyproject.toml asks for. Airflow's Celery provider cannot import celery 5.7.
ALWAYS = ("apache-airflow-providers-common-compat>=1.10", "apache-airflow-providers-standard", "celery<5.7")


def compile_constraints(airflow: str, pins: Pins) -> None:
    """Write the file of one Airflow, good for all supported Pythons."""
    output = Path("constraints", f"airflow-{airflow}.txt")
    print(output, flush=True)
    command = ["sh", "scripts/uv.sh", sys.prefix, "pip", "compile", "--quiet", "--upgrade", "--universal"]
    command += ["--python-version", "3.11", "--extra", "testing", "--group", "dev"]
    command += ["--no-annotate", "--no-emit-index-url", "--custom-compile-command", "make constraints"]
    if pins.before:
        command += ["--exclude-newer", pins.before]
    for package in pins.newer:
        command += ["--exclude-newer-package", package]
    requirements = "\n".join((f"apache-airflow=={airflow}.*", *ALWAYS, *pins.also))
    subprocess.run(
        [*command, "--output-file", str(output), "pyproject.toml", "-"],
        cwd=PROJECT,
        check=True,
        input=requirements,
        text=True,
        stdout=subprocess.DEVNULL,
    )


def main() -> None:
    """Renew the files of the named Airflows, or of all."""
    for airflow in sys.argv[1:] or AIRFLOWS:
        compile_constraints(airflow, AIRFLOWS[airflow])


if __name__ == "__main__":
    main()
