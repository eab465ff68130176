"""The tests of the callback endpoint on PostgreSQL, which locks rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from airflow_launcher.airflow import temporary_home
from airflow_launcher.databases import PostgreSQL

PROJECT = Path(__file__).parents[2]


def test_on_postgresql() -> None:
    names = ("callback_endpoint", "claims", "claim_races")
    tests = [f"tests/unit/plugins/test_{name}.py" for name in names]
    with temporary_home("callbacks") as home:
        database = PostgreSQL(home)
        try:
            database.start()
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
                cwd=PROJECT,
                env={**os.environ, "TEST_DATABASE": database.url},
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            database.stop()
    assert done.returncode == 0, done.stdout[-10_000:]
    assert " passed" in done.stdout
