"""One real Airflow and one local service for all the crash tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_launcher.airflow import temporary_home
from airflow_launcher.connections import connection_to
from airflow_launcher.processes import inhabitants
from certificates import issue_certificate
from deployment import Deployment
from notes import note, pytest_terminal_summary
from workflow_automation_provider.testing import DEMO_KEY, LocalService

__all__ = ["note", "pytest_terminal_summary"]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """The service, whose journal is what counts."""
    with LocalService(
        keys=[DEMO_KEY], journal=tmp_path_factory.mktemp("service") / "journal.jsonl"
    ) as service:
        yield service


@pytest.fixture(scope="session")
def misnamed_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalService, Path]]:
    """A service whose certificate is another host's, and the CA to trust."""
    folder = tmp_path_factory.mktemp("misnamed")
    certificate = issue_certificate("another.example", folder)
    with LocalService(journal=folder / "journal.jsonl", certfile=str(certificate.certfile)) as service:
        yield service, certificate.ca_bundle


@pytest.fixture(scope="session")
def deployment(service: LocalService, misnamed_service: tuple[LocalService, Path]) -> Iterator[Deployment]:
    """Airflow, running."""
    misnamed, trusted = misnamed_service
    connections = {
        "workflow_automation_default": connection_to(service.base_url, timeout=120),
        # For requests that hang: a slow machine needs longer for any other.
        "hasty": connection_to(service.base_url, timeout=2),
        "wrong_host": connection_to(misnamed.base_url, ca_bundle=str(trusted)),
    }
    with temporary_home("crash") as home:
        with Deployment(home, connections) as deployment:
            yield deployment
        assert not inhabitants(home)
