"""Runs DAGs in real Airflow, in this process."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from workflow_automation_provider.testing import LocalService

EXAMPLES = Path(__file__).parents[2] / "example_dags"

PREAMBLE = """\
from __future__ import annotations
from pathlib import Path
import pendulum
from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, Asset, ObjectStoragePath, chain, task, task_group
from workflow_automation_provider.notifications.flows import FlowNotifier
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once

"""


@dataclass
class DagRunResult:
    """A finished DAG run: its state, and each task instance's state and XComs."""

    dag_run: Any

    def ti(self, task_id: str, map_index: int = -1) -> Any:
        return self.dag_run.get_task_instance(task_id, map_index=map_index)

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """
        Read an XCom as it is stored.

        For a pull outside of a task would make a number of "1001".
        """
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        of_task = {"dag_id": self.dag_run.dag_id, "run_id": self.dag_run.run_id, "task_id": task_id}
        with create_session() as session:
            query = session.query(XComModel).filter_by(**of_task, key=key, map_index=map_index)
            if not (row := query.one_or_none()):
                return None
            return json.loads(row.value) if isinstance(row.value, bytes) else row.value

    def asset_events(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the asset events of its tasks, each as the asset's URI and the extra, in order."""
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session

        with create_session() as session:
            query = session.query(AssetEvent).filter_by(
                source_dag_id=self.dag_run.dag_id, source_run_id=self.dag_run.run_id
            )
            return [(event.asset.uri, event.extra) for event in query.order_by(AssetEvent.id)]


@contextlib.contextmanager
def _caused_by(cause: DagRunResult | None) -> Iterator[None]:
    """Have the next DAG run consume the events of another, as the scheduler does."""
    from airflow.models.asset import AssetEvent
    from airflow.models.dagrun import DagRun
    from sqlalchemy import event
    from sqlalchemy.orm import Session

    def consume(session: Session, *_: object) -> None:
        for created in session.new:
            if cause and isinstance(created, DagRun):
                with session.no_autoflush:
                    events = (
                        session.query(AssetEvent)
                        .filter_by(source_run_id=cause.dag_run.run_id)
                        .all()
                    )
                created.consumed_asset_events = events

    event.listen(Session, "before_flush", consume)
    yield
    event.remove(Session, "before_flush", consume)


@pytest.fixture(scope="session", autouse=True)
def _one_execution_api(airflow_home: Path) -> None:
    """
    Have Airflow 3.1 and 3.2 keep their in-process execution API for all tasks, as 3.3 does.

    It takes seconds.
    """
    from airflow.sdk.execution_time import supervisor

    if not hasattr(supervisor.in_process_api_server, "cache_info"):
        supervisor.in_process_api_server = functools.cache(supervisor.in_process_api_server)


@pytest.fixture
def service(
    workflow_automation_service: LocalService, workflow_automation_connection: str
) -> LocalService:
    """A local service, which the default connection points at."""
    return workflow_automation_service


@pytest.fixture
def run_dag(
    airflow_home: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., DagRunResult]]:
    """
    Run a DAG given as the text of its file (after a preamble), or as the name of an example.

    Expect how it ends.

    Of a file with several DAGs, ``dag_id`` says which; ``cause`` is the DAG run whose asset events
    started it. Each first text of ``replaced`` becomes the second one.
    """
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # before Airflow 3.2
        from airflow.models.dagbag import DagBag  # type: ignore[no-redef]  # the same class in its older place

    folder = airflow_home / "dags"

    def run(
        source: str,
        *replaced: tuple[str, str],
        ends: str = "success",
        preamble: str = PREAMBLE,
        dag_id: str | None = None,
        cause: DagRunResult | None = None,
        **options: Any,
    ) -> DagRunResult:
        name, text = f"{request.node.name.partition('[')[0]}.py", preamble + textwrap.dedent(source)
        if source.endswith(".py"):
            # Alone: for each DAG run, Airflow reads the whole folder.
            name, text = source, (EXAMPLES / source).read_text()
            shutil.copytree(EXAMPLES / "data", folder / "data", dirs_exist_ok=True)
        for before, after in replaced:
            assert before in text
            text = text.replace(before, after)
        path = folder / name
        path.write_text(text)
        bag = DagBag(dag_folder=str(path))
        assert not bag.import_errors, "\n".join(bag.import_errors.values())
        (dag,) = (dag for dag in bag.dags.values() if dag_id in (None, dag.dag_id))
        with _caused_by(cause):
            result = DagRunResult(dag.test(**options))
        assert result.dag_run.state == ends
        return result

    yield run
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture
def task_errors(airflow_home: Path) -> Iterator[list[BaseException]]:
    """The exceptions that tasks ended with, as Airflow hands them to listeners."""
    from airflow.listeners import hookimpl

    try:
        listeners = importlib.import_module("airflow.sdk.listener")
    except ImportError:  # before Airflow 3.2
        listeners = importlib.import_module("airflow.listeners.listener")

    errors: list[BaseException] = []

    class Listener:
        @hookimpl
        def on_task_instance_failed(self, error: BaseException) -> None:
            errors.append(error)

    listener = Listener()
    plugins = listeners.get_listener_manager().pm
    plugins.register(listener)
    yield errors
    plugins.unregister(listener)
