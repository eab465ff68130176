"""Renew constraints/: for each Airflow, and for other targets of make, the package versions that were seen to work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent


# Each Airflow, and the day before which its packages were released: newer ones break Airflow's old releases. Of 3.4, uv
# takes the newest pre-release for as long as there is no release.
AIRFLOWS = {"3.1": "2026-05-01", "3.2": "2026-06-15", "3.3": None, "3.4": None}

# Beside what pyproject.toml asks for. Airflow's Celery provider cannot import celery 5.7.
ALWAYS = ("apache-airflow-providers-standard", "celery<5.7")


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


def main() -> None:
    """Renew all files."""
    for airflow, before in AIRFLOWS.items():
        limit = ("--exclude-newer", before) if before else ()
        wanted = (f"apache-airflow=={airflow}.*", *ALWAYS)
        compile_constraints(f"airflow-{airflow}", "--group", "dev", *limit, requirements=wanted)
    newest = ("--constraint", "constraints/airflow-3.3.txt")
    compile_constraints("system", *newest, "tests/system/requirements.txt")
    for group in ("mutants", "docs", "dist"):
        compile_constraints(group, *newest, "--group", group)


if __name__ == "__main__":
    main()
