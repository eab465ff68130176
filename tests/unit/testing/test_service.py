from __future__ import annotations

import ssl
import sys
import time

import httpx
import pytest

from workflow_automation_provider.testing import JournalError, LocalService

from .conftest import Caller

COMMAND = [sys.executable, "-m", "workflow_automation_provider.testing"]


def test_start_and_stop_are_quick(tmp_path):
    service = LocalService(journal=tmp_path / "journal.jsonl")
    started = time.monotonic()
    service.start()
    assert httpx.get(f"{service.url}/", trust_env=False).status_code == 200
    between = time.monotonic()
    service.stop()
    assert time.monotonic() - between < 0.3
    assert between - started < 1


def test_stopped_and_started_again_it_keeps_its_port(service, call):
    call.by_path()
    url = service.url
    service.stop()
    with pytest.raises(httpx.ConnectError):
        call.by_path()
    service.stop()
    service.start()
    assert service.url == url
    assert call.by_path().json()["run_id"] == "1002"


def test_base_url(service):
    assert service.base_url == f"http://127.0.0.1:{service.port}/api"


def test_it_cannot_be_started_twice(service):
    with pytest.raises(RuntimeError):
        service.start()


def test_a_taken_port_is_an_error_and_leaves_the_journal_free(service, tmp_path):
    journal = tmp_path / "second.jsonl"
    with pytest.raises(OSError, match="in use"):
        LocalService(port=service.port, journal=journal).start()
    with LocalService(journal=journal):
        pass


def test_a_rejected_journal_leaves_the_port_free(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a journal\n")
    service = LocalService(journal=path)
    with pytest.raises(JournalError):
        service.start()
    path.unlink()
    with service, httpx.Client(base_url=service.url, trust_env=False) as http:
        assert Caller(http).by_path().status_code == 201


def test_a_bad_certificate_is_an_error_of_start(tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("x")
    with pytest.raises(ssl.SSLError):
        LocalService(journal=tmp_path / "j", certfile=str(bad), keyfile=str(bad)).start()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    trustme = pytest.importorskip("trustme")
    folder = tmp_path_factory.mktemp("certificate")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return folder


def test_https_with_faults(certificate, tmp_path):
    service = LocalService(
        journal=tmp_path / "journal.jsonl",
        certfile=str(certificate / "cert.pem"),
        keyfile=str(certificate / "key.pem"),
    )
    context = ssl.create_default_context(cafile=str(certificate / "authority.pem"))
    with service, httpx.Client(base_url=service.url, verify=context, trust_env=False) as http:
        call = Caller(http)
        assert call.by_path().json()["run_link"].startswith("https://127.0.0.1:")
        for kind in ("drop_after", "reset_after", "truncate"):
            service.faults.add(kind)
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                call.by_path()
        service.faults.add("stale")
        assert call.by_path().status_code == 201
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            call.by_path()
        assert len(service.runs) == 5


def test_many_requests_at_once(service):
    from concurrent.futures import ThreadPoolExecutor

    with (
        httpx.Client(base_url=service.url, trust_env=False) as http,
        ThreadPoolExecutor(8) as pool,
    ):
        call = Caller(http)
        ids = list(pool.map(lambda _: call.by_path().json()["run_id"], range(100)))
    assert len(set(ids)) == 100
    assert len(service.runs) == 100


def test_service_without_a_journal_path_has_one_of_its_own():
    with LocalService() as one, LocalService() as two:
        assert one.journal.path != two.journal.path
        assert one.journal.path.exists()
