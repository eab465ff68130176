"""One real Airflow and one local service for all the crash tests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_launcher.airflow import temporary_home
from airflow_launcher.processes import inhabitants
from case import PLAYS, Case, Played
from deployment import Deployment
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
        mailboxes = {"callback_base_url": (home / "mailboxes").as_uri()}
        connections = {
            "workflow_automation_default": service.airflow_connection(extra={"timeout": 120}),
            "mailboxes": service.airflow_connection(extra={"timeout": 120, **mailboxes}),
            bucket.conn_id: bucket.connection(store.port),
            "s3_mailboxes": service.airflow_connection(
                extra={"timeout": 120, "callback_base_url": bucket.url("callbacks")}
            ),
        }
        with Deployment(home, connections) as deployment:
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
            test = item.function  # type: ignore[attr-defined]  # all are functions
            if test in PLAYS:
                dag_id, happens = PLAYS[test]
                run_id = item.name.removeprefix("test_").replace("_", "-")
                found[test] = pool.submit(happens, Case(deployment, service, dag_id, run_id))
        yield found
