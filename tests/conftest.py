"""An Airflow of the tests' own: its home must be named before Airflow is first imported."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import certifi
import pytest
import trustme
from hypothesis import HealthCheck, settings
from packaging.version import Version

# What is imported until all tests are found stays: looking for garbage takes a quarter of that time.
gc.disable()

# No time limit per example, for machines are loaded. Few examples while one works, more with the
# coverage, and the same ones each time where a failure would stop others' work.
settings.register_profile("default", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.register_profile("ci", settings.get_profile("thorough"), derandomize=True)
# Of Airflow's versions: what is made up is tried whole on one of them.
settings.register_profile("matrix", settings.get_profile("ci"), max_examples=20)
# The tests run several times in one process.
settings.register_profile(
    "mutants", settings.get_profile("ci"), suppress_health_check=[HealthCheck.differing_executors]
)
settings.load_profile("ci" if os.environ.get("CI") else "default")

_HOME = Path(tempfile.mkdtemp(prefix="workflow-automation-tests-"))
# The tests of the callback endpoint also run on other databases: tests/system/test_callbacks.py.
_DATABASE = os.environ.get("TEST_DATABASE") or f"sqlite:///{_HOME}/airflow.db?timeout=60"

for name in [*os.environ]:
    if name.startswith("AIRFLOW_"):  # the user's own Airflow must not reach into the tests
        del os.environ[name]
os.environ |= {
    "AIRFLOW_HOME": str(_HOME),
    "AIRFLOW__CORE__DAGS_FOLDER": str(_HOME / "dags"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": _DATABASE,
}
(_HOME / "dags").mkdir()
# Not when pytest ends: in mutation testing, it runs again and again in one process and its forks,
# with this one Airflow.
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)

pytest_plugins = ["workflow_automation_provider.testing.pytest_plugin"]


def pytest_collection_finish() -> None:
    """
    Have the garbage collector leave out what all tests share.

    And look less often at the rest.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Begin with what needs an Airflow, which takes longer to start than a hundred tests.

    Of two processes of pytest-xdist, only the first then starts one: the other takes over what
    comes last.
    """
    quick_first = (
        "MUTANT_UNDER_TEST" in os.environ
    )  # mutation testing ends at the first test that fails
    slow = {"airflow_home", "dag", "world"}
    items.sort(
        key=lambda item: slow.isdisjoint(getattr(item, "fixturenames", ())) is not quick_first
    )


@pytest.fixture(scope="session", autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """
    Trust one authority, not the usual hundreds.

    Each client would read those, which takes longer than most tests.
    """
    bundle = tmp_path_factory.mktemp("authority") / "ca.pem"
    trustme.CA().cert_pem.write_to_path(bundle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certifi, "where", lambda: str(bundle))
        yield


@pytest.fixture(autouse=True)
def _forget_secrets() -> Iterator[None]:
    """
    Have Airflow forget what it masks.

    For each new secret, it compiles one expression of all that it has ever seen.
    """
    yield
    for name in ("airflow._shared", "airflow.sdk._shared"):
        if module := sys.modules.get(f"{name}.secrets_masker.secrets_masker"):
            module._secrets_masker().reset_masker()


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """Home of an Airflow with a migrated database, SQLite's by default."""
    if Version(version("apache-airflow")) >= Version("3.3.0.dev0"):
        from airflow.utils.db import upgradedb

        upgradedb()  # as `airflow db migrate` does in a process of its own, which takes longer to start
    else:  # before Airflow 3.3, whose migrations silence the logs of the process
        subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True
        )
    from airflow import settings
    from sqlalchemy import event

    if settings.engine.dialect.name == "sqlite":  # it need not survive a power failure
        event.listen(
            settings.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF")
        )
        settings.engine.dispose()
    return _HOME
