"""
pytest fixtures for DAG authors.

Load them in a ``conftest.py``:

.. code-block:: python

    pytest_plugins = ["workflow_automation_provider.testing.pytest_plugin"]

The plugin turns Airflow's secrets backends off for the whole test session: Airflow asks them before
the environment, and a connection from there would reach a real service.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from workflow_automation_provider.testing import DEMO_KEY, CallbackEndpoint, LocalService
from workflow_automation_provider.testing.context import StateStore, has_state_store, make_context

if TYPE_CHECKING:
    from workflow_automation_provider.testing.context import Task
    from workflow_automation_provider.testing.scripted import Key

__all__ = [
    "CONNECTION_ID",
    "Connect",
    "MakeContext",
    "pytest_configure",
    "pytest_unconfigure",
    "workflow_automation_callback_base_url",
    "workflow_automation_connect",
    "workflow_automation_connection",
    "workflow_automation_context",
    "workflow_automation_flows",
    "workflow_automation_keys",
    "workflow_automation_service",
]

CONNECTION_ID = "workflow_automation_default"
"""The default connection of the operators."""

_BACKENDS = ("AIRFLOW__SECRETS__BACKEND", "AIRFLOW__WORKERS__SECRETS_BACKEND")
_environment = pytest.MonkeyPatch()


def pytest_configure() -> None:
    """Turn the secrets backends of Airflow off, those from ``airflow.cfg`` included."""
    for name in _BACKENDS:
        _environment.setenv(name, "")


def pytest_unconfigure() -> None:
    """Restore the environment."""
    _environment.undo()


class Connect(Protocol):
    """The type of the fixture ``workflow_automation_connect``."""

    def __call__(
        self,
        conn_id: str = CONNECTION_ID,
        key: Key | None = None,
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Point a connection at the service; return its id."""


class MakeContext(Protocol):
    """The type of the fixture ``workflow_automation_context``."""

    def __call__(self, task: Task, *, try_number: int = 1, **more: Any) -> dict[str, Any]:
        """Return the context of one try of a task."""


class _Connector:
    def __init__(self, service: LocalService, environment: pytest.MonkeyPatch) -> None:
        self._service = service
        self._environment = environment
        self._extra: dict[str, Any] = {}
        self._connected: dict[str, tuple[Key | None, Mapping[str, Any]]] = {}

    def __call__(
        self,
        conn_id: str = CONNECTION_ID,
        key: Key | None = None,
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        own = dict(extra or {})
        connection = self._service.airflow_connection(key, self._extra | own)
        self._environment.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))
        self._connected[conn_id] = (key, own)
        _check_connection(conn_id, connection["host"])
        return conn_id

    def add_extra(self, **extra: Any) -> None:
        """Add extras to all connections, also to those that were made before."""
        self._extra |= extra
        for conn_id, (key, own) in [*self._connected.items()]:
            self(conn_id, key, extra=own)


@pytest.fixture
def workflow_automation_keys() -> Sequence[Key]:
    """Return the API keys that the service accepts; override this fixture for your own flows."""
    return [DEMO_KEY]


@pytest.fixture
def workflow_automation_flows() -> Sequence[str] | None:
    """Return the flows that can be started by path, besides those of the keys; None for any."""
    return None


@pytest.fixture
def workflow_automation_service(
    workflow_automation_keys: Sequence[Key],
    workflow_automation_flows: Sequence[str] | None,
    tmp_path: Path,
) -> Iterator[LocalService]:
    """Run a fresh local service that accepts ``workflow_automation_keys``."""
    with LocalService(
        keys=workflow_automation_keys,
        journal=tmp_path / "workflow-automation-journal.jsonl",
        flows=workflow_automation_flows,
    ) as service:
        yield service


@pytest.fixture
def workflow_automation_connect(
    workflow_automation_service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> Connect:
    """
    Return a function that points a connection at the local service, for the duration of the test.

    Its arguments are the connection's id, the key (by default the first of
    ``workflow_automation_keys``) and ``extra``, such as ``{"timeout": 5}``. It returns the id.

    In a test with this fixture, ``dag.test()`` retries a task without its ``retry_delay``, and
    Airflow has no object store of an earlier test.
    """
    _retry_at_once(monkeypatch)
    # By the id of its connection, which leads elsewhere in each test.
    stores = importlib.import_module("airflow.sdk.io.store")
    monkeypatch.setattr(stores, "_STORE_CACHE", {})
    for name, module in list(sys.modules.items()):
        is_store = name.startswith("workflow_automation_provider.hooks.mailboxes.")
        if is_store and hasattr(module, "open_client"):
            module.open_client.cache_clear()

    return _Connector(workflow_automation_service, monkeypatch)


@pytest.fixture
def workflow_automation_connection(workflow_automation_connect: Connect) -> str:
    """Point the default connection at the local service, with the first key; return its id."""
    return workflow_automation_connect()


@pytest.fixture
def workflow_automation_callback_base_url(
    workflow_automation_connect: _Connector, workflow_automation_service: LocalService
) -> Iterator[str]:
    """
    Serve Airflow's callback endpoint; return its URL, the connections' ``callback_base_url``.

    It writes to Airflow's database, so that tasks which wait for the end of a run continue in
    ``dag.test()``. The connections are the default one and those of
    ``workflow_automation_connect``. A test fails if no callback matches a run that could call the
    endpoint: script ``callbacks.add(None)`` for one that never does.
    """
    callbacks = workflow_automation_service.callbacks
    with CallbackEndpoint() as endpoint:
        workflow_automation_connect.add_extra(callback_base_url=endpoint.url)
        callbacks.endpoint = endpoint.url
        callbacks.missing.clear()
        yield endpoint.url

    if callbacks.missing:
        pytest.fail(callbacks.missing[0], pytrace=False)


@pytest.fixture
def workflow_automation_context() -> MakeContext:
    """
    Return a function that makes a context to execute an operator without Airflow's database.

    Each context is that of a new task instance. With ``try_number=2`` or more it is that of a
    retry: it shares the task state store (Airflow 3.3+) of the last context for the same
    ``task_id``. Further arguments, such as ``ds``, are variables for templates.
    """
    stores: dict[str, StateStore] = {}

    def make(task: Task, *, try_number: int = 1, **more: Any) -> dict[str, Any]:
        if getattr(task, "wait_for_completion", False):
            raise ValueError(
                f"Task {task.task_id} waits for the end of its run: test it with dag.test()."
            )

        if try_number == 1:
            stores.pop(task.task_id, None)
        store = None
        if has_state_store():
            store = stores.setdefault(task.task_id, StateStore())
        return make_context(task, try_number=try_number, store=store, **more)

    return make


def _retry_at_once(environment: pytest.MonkeyPatch) -> None:
    """Have ``dag.test()`` set the ``retry_delay`` of all tasks to zero."""
    dag_class = importlib.import_module("airflow.sdk").DAG
    run_test = dag_class.test

    def run_without_delay(dag: Any, *args: Any, **kwargs: Any) -> Any:
        for task in dag.tasks:
            environment.setattr(task, "retry_delay", timedelta())
        return run_test(dag, *args, **kwargs)

    environment.setattr(dag_class, "test", run_without_delay)


def _check_connection(conn_id: str, host: str) -> None:
    """Fail the test if Airflow reads another connection than that of the environment."""
    sdk = importlib.import_module("airflow.providers.common.compat.sdk")
    if sdk.BaseHook.get_connection(conn_id).host != host:
        pytest.fail(
            f"Airflow reads the connection {conn_id!r} from a secrets backend, not from the "
            "environment, so the test could reach a real service. "
            f"Set {' and '.join(_BACKENDS)} to an empty value before Airflow is imported.",
            pytrace=False,
        )
