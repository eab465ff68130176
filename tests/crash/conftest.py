"""One real Airflow and one local service for all the crash tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import trustme

from workflow_automation_provider.testing import DEMO_KEY, LocalService

HERE = Path(__file__).parent
# The tests are imported without these on the path.
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

from deployment import Deployment  # noqa: E402
from processes import inhabitants  # noqa: E402

_notes: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _notes:
        terminalreporter.section("what was killed or faulted, and what came of it")
        for line in _notes:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def note() -> Callable[[str], None]:
    """Add a line to the summary at the end."""
    return _notes.append


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
    authority, certificate, trusted = trustme.CA(), folder / "cert.pem", folder / "ca.pem"
    authority.issue_cert("another.example").private_key_and_cert_chain_pem.write_to_path(certificate)
    authority.cert_pem.write_to_path(trusted)
    with LocalService(journal=folder / "journal.jsonl", certfile=str(certificate)) as service:
        yield service, trusted


@pytest.fixture(scope="session")
def deployment(service: LocalService, misnamed_service: tuple[LocalService, Path]) -> Iterator[Deployment]:
    """Airflow, running."""
    if not find_spec("airflow.models.task_state_store"):
        pytest.skip("Before Airflow 3.3 there is no task state store, so nothing outlives a try")
    misnamed, trusted = misnamed_service

    def connection(host: str, **extra: str) -> dict[str, object]:
        return {
            "conn_type": "workflow_automation",
            "host": host,
            "password": DEMO_KEY.value,
            "extra": {"flow_id": DEMO_KEY.flow_id, **extra},
        }

    connections = {
        "workflow_automation_default": connection(service.base_url),
        "wrong_host": connection(misnamed.base_url, ca_bundle=str(trusted)),
        "no_such_host": connection("https://service.invalid/api"),
    }
    deployment = Deployment(HERE / "dags", connections)
    try:
        deployment.start()
        yield deployment
    finally:
        deployment.stop()
    assert not inhabitants(deployment.home)
