"""Renew constraints/: for each Airflow, and for other targets of make, the package versions that were seen to work."""

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
        newer=(
            "apache-airflow-providers-common-compat=2026-01-01",
            # Contracts against circles came with import-linter 2.6.
            "grimp=2026-01-01",
            "import-linter=2026-01-01",
        ),
        also=("universal-pathlib<0.3",),
    ),
    "3.1": Pins(before="2026-05-01"),
    "3.2": Pins(before="2026-06-15"),
    "3.3": Pins(),
    # uv takes the newest pre-release for as long as there is no release.
    "3.4": Pins(),
}

# Beside what pyproject.toml asks for. Airflow's Celery provider cannot import celery 5.7.
ALWAYS = ("apache-airflow-providers-common-compat>=1.10", "apache-airflow-providers-standard", "celery<5.7")


def compile_constraints(name: str, *options: str, requirements: tuple[str, ...] = ()) -> None:
    """
    Write one file, good for all supported Pythons.

    :param name: of the file, without its ending.
    :param options: of uv's command.
    :param requirements: beside those of pyproject.toml.
    """
    output = Path("constraints", f"{name}.txt")
    print(output, flush=True)
    command = ["sh", "scripts/uv.sh", sys.prefix, "pip", "compile", "--quiet", "--upgrade", "--universal"]
    command += ["--python-version", "3.11", "--extra", "testing", "--no-annotate", "--no-emit-index-url"]
    command += ["--custom-compile-command", "make constraints", "--output-file", str(output)]
    subprocess.run(
        [*command, *options, "pyproject.toml", "-"],
        cwd=PROJECT,
        check=True,
        input="\n".join(requirements),
        text=True,
        stdout=subprocess.DEVNULL,
    )


def compile_airflow(airflow: str, pins: Pins) -> None:
    """Write the file of one Airflow."""
    options = ["--group", "dev"]
    if pins.before:
        options += ["--exclude-newer", pins.before]
    for package in pins.newer:
        options += ["--exclude-newer-package", package]
    requirements = (f"apache-airflow=={airflow}.*", *ALWAYS, *pins.also)
    compile_constraints(f"airflow-{airflow}", *options, requirements=requirements)


def main() -> None:
    """Renew all files, or those of the named Airflows."""
    if unknown := set(sys.argv[1:]) - set(AIRFLOWS):
        sys.exit(f"No such Airflow: {', '.join(sorted(unknown))}. There are: {', '.join(AIRFLOWS)}")
    for airflow in sys.argv[1:] or AIRFLOWS:
        compile_airflow(airflow, AIRFLOWS[airflow])
    if not sys.argv[1:]:
        newest = ("--constraint", "constraints/airflow-3.3.txt")
        compile_constraints("system", *newest, "tests/system/requirements.txt")
        compile_constraints("mutants", *newest, "--group", "mutants")
        compile_constraints("docs", *newest, "--group", "docs")
        compile_constraints("dist", *newest, "--group", "dist")


if __name__ == "__main__":
    main()
