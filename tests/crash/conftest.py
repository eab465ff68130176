"""One real Airflow and one local service for all the crash tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_launcher.airflow import temporary_home
from airflow_launcher.processes import inhabitants
from case import PLAYS, Case, Played
from deployment import Deployment
from mailbox_stores import STORES
from s3_bucket import Bucket, s3_server
from store_proxy import StoreProxy
from workflow_automation_provider.testing import DEMO_KEY, LocalService

# More at once only wait for one another.
AT_ONCE = 12


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """The service, whose journal is what counts."""
    with LocalService(
        keys=[DEMO_KEY], journal=tmp_path_factory.mktemp("service") / "journal.jsonl"
    ) as service:
        yield service


@pytest.fixture(scope="session")
def store() -> Iterator[StoreProxy]:
    """Start a stand-in for S3, behind a proxy."""
    with s3_server() as port, StoreProxy(port).running() as proxy:
        yield proxy


@pytest.fixture(scope="session")
def deployment(service: LocalService, store: StoreProxy) -> Iterator[Deployment]:
    """Airflow, running."""
    bucket = Bucket("ends")
    with temporary_home("crash") as home:
        connections = {
            "workflow_automation_default": service.airflow_connection(extra={"timeout": 120}),
            bucket.conn_id: bucket.connection(store.port),
        }
        folders = {"s3": bucket.url("callbacks")}
        with contextlib.ExitStack() as running:
            for name, start in STORES.items():
                folders[name], more = running.enter_context(start(home))
                connections.update(more)
            for name, folder in folders.items():
                extra = {"timeout": 120, "callback_base_url": folder}
                connections[f"mailboxes_{name}"] = service.airflow_connection(extra=extra)

            deployment = running.enter_context(Deployment(home, connections))
            deployment.bucket, deployment.store = bucket, store
            yield deployment

        assert not inhabitants(home)


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """
    What starts an Airflow of its own comes last.

    The plays go on side by side, and wait for their tasks.
    """
    items.sort(key=lambda item: item.function not in PLAYS)


@pytest.fixture(scope="session")
def played(
    request: pytest.FixtureRequest, deployment: Deployment, service: LocalService
) -> Iterator[Played]:
    """Play what the tests ask for, each in a DAG run of its own."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found: Played = {}
        for item in request.session.items:
            assert isinstance(item, pytest.Function)
            test = item.function
            if test in PLAYS and item.get_closest_marker("skip") is None:
                dag_id = str(item.callspec.params["dag_id"])
                run_id = f"{item.originalname.removeprefix('test_').replace('_', '-')}-{dag_id}"
                case = Case(deployment, service, dag_id, run_id)
                found[test, dag_id] = pool.submit(PLAYS[test], case)
        yield found
