"""
The servers.

The local service, and the callback endpoint, whose responses are tested in tests/unit/plugins.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.execution.record.callback import new_token
from workflow_automation_provider.testing import (
    DEMO_KEY,
    CallbackEndpoint,
    JournalError,
    Key,
    LocalService,
)
from workflow_automation_provider.testing._server.server import listen

from .conftest import Caller


def test_stopped_and_started_again_it_keeps_its_port(service, call):
    assert service.base_url == f"http://127.0.0.1:{service.port}/api"
    call.by_path()
    url = service.url
    with pytest.raises(RuntimeError, match="running already"):
        service.start()
    service.stop()
    with pytest.raises(httpx.ConnectError):
        call.by_path()
    service.stop()
    service.start()
    assert service.url == url
    assert call.by_path().json()["run_id"] == "1002"


def test_a_start_that_fails_keeps_nothing(service, tmp_path):
    """Neither the journal where the port is taken, nor the port where the journal is rejected."""
    path, bad = tmp_path / "second.jsonl", tmp_path / "bad.pem"
    with pytest.raises(OSError, match="in use"):
        LocalService(port=service.port, journal=path).start()
    bad.write_text("not a certificate\n")
    with pytest.raises(ssl.SSLError):
        LocalService(journal=path, certfile=str(bad), keyfile=str(bad)).start()
    path.write_text("not a journal\n")
    again = LocalService(journal=path)
    with pytest.raises(JournalError):
        again.start()
    path.unlink()
    with again, httpx.Client(base_url=again.url, trust_env=False, timeout=60) as http:
        assert Caller(http).by_path().status_code == 201


def test_https_with_faults(certificate):
    service = LocalService(certfile=certificate.certfile, keyfile=certificate.certfile)
    context = ssl.create_default_context(cafile=str(certificate.ca_bundle))
    with (
        service,
        httpx.Client(base_url=service.url, verify=context, trust_env=False, timeout=60) as http,
    ):
        call = Caller(http)
        assert call.by_path().json()["run_link"].startswith("https://127.0.0.1:")
        for kind in ("drop_after", "reset_after", "truncate"):
            service.faults.add(kind)
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                call.by_path()
        assert len(service.runs) == 4


def test_a_response_is_sent_at_once():
    """
    Without TCP_NODELAY, each on a kept connection would take the 40 ms of a delayed
    acknowledgement.
    """
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_exhausted_key_still_uploads_and_stays_exhausted_after_a_restart():
    """A service without a path for its journal has one of its own."""
    service = LocalService(keys=[Key("k", "f", max_runs=2)], public_url="http://localhost:99/")
    with (
        service,
        httpx.Client(base_url=service.url, trust_env=False, timeout=60) as http,
        LocalService() as other,
    ):
        assert service.journal.path != other.journal.path
        call = Caller(http)
        started = [call.by_key(key="k") for _ in range(3)]
        assert [response.status_code for response in started] == [201, 201, 403]
        assert started[0].json()["run_link"] == "http://localhost:99/runs/1001"
        assert call.by_path(flow_id="f").status_code == 201
        assert call.upload("1001", key="k", flow_id="f").status_code == 200
        service.stop()
        service.start()
        assert call.by_key(key="k").status_code == 403


@pytest.mark.parametrize("flows", [["a/b", "é"], [], ()])
def test_a_service_that_knows_its_flows(flows):
    """
    A flow_id by path that is mistyped gets 404, and nothing is started.

    Those of the keys are known.
    """
    service = LocalService(keys=[Key("k", "f")], flows=flows)
    with service, httpx.Client(base_url=service.url, trust_env=False, timeout=60) as http:
        call = Caller(http)
        for flow_id in flows:
            assert call.by_path(flow_id=quote(flow_id, safe="")).status_code == 201
        assert call.by_path(flow_id="f").status_code == 201
        assert call.by_key(key="k").status_code == 201
        service.faults.add("drop_after", flow_id="mistyped")
        response = call.by_path(flow_id="mistyped")
        assert (response.status_code, response.json()) == (404, {"error": "no such flow"})
        assert len(service.runs) == len(flows) + 2


def test_by_default_any_flow_can_be_started(service, call):
    assert call.by_path(flow_id="any").status_code == 201


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (LocalService, {"keys": "demo-key"}, "keys is str;"),
        (LocalService, {"keys": [DEMO_KEY, "demo-key"]}, "keys[1] is str;"),
        (
            LocalService,
            {"keys": [Key("same", "a"), Key("same", "b")]},
            "Two keys have the same value",
        ),
        (LocalService, {"keys": [Key("a", "same"), Key("b", "same")]}, "Two keys of one flow"),
        (LocalService, {"host": None}, "host is None;"),
        (LocalService, {"flows": "demo-flow"}, "flows is 'demo-flow';"),
        (LocalService, {"flows": [""]}, "flows[0] is '';"),
        (LocalService, {"port": "8070"}, "port is '8070';"),
        (LocalService, {"port": 65536}, "port is 65536;"),
        (LocalService, {"public_url": "http://["}, "public_url is 'http://[';"),
        (LocalService, {"keyfile": "key.pem"}, "keyfile needs a certfile"),
        (Key, {"value": "", "flow_id": "f"}, "value is str;"),
        (Key, {"value": "v", "flow_id": None}, "flow_id is None;"),
        (Key, {"value": "v", "flow_id": "f", "name": ""}, "name is '';"),
        (Key, {"value": "v", "flow_id": "f", "max_runs": -1}, "max_runs is -1;"),
    ],
)
def test_bad_arguments_are_named(make, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make(**options)


def test_an_airflow_connection_to_it():
    other = Key("other", "other-flow", name="other")
    service = LocalService(keys=[DEMO_KEY, other])
    plain = {"conn_type": "workflow_automation", "host": service.base_url}
    demo = {**plain, "password": "demo-key", "extra": {"flow_id": "demo-flow"}}
    assert service.airflow_connection() == service.airflow_connection(DEMO_KEY) == demo
    extra = {"flow_id": "mine", "timeout": 5}
    assert service.airflow_connection(other, extra) == {
        **plain,
        "password": "other",
        "extra": extra,
    }
    with pytest.raises(ValueError, match="keys of the service") as caught:
        service.airflow_connection(Key("s3cret", "x"))
    assert "s3cret" not in str(caught.value)
    assert LocalService(keys=[]).airflow_connection() == {**plain, "extra": {}}


@pytest.mark.parametrize(
    ("host", "certfile", "is_allowed"),
    [
        ("192.0.2.1", None, True),
        *((host, None, False) for host in ("0.0.0.0", "localhost", "::1")),
        ("192.0.2.1", "cert.pem", False),
    ],
)
def test_plain_http_beyond_this_machine_is_allowed_in_the_connection(host, certfile, is_allowed):
    found = LocalService(host=host, port=1, certfile=certfile).airflow_connection()["extra"]
    assert found == {"flow_id": "demo-flow", **({"allow_http": True} if is_allowed else {})}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_serves_the_endpoint_and_logs_no_token(caplog, monkeypatch, host):
    caplog.set_level(logging.DEBUG, logger="")
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("httpx"), "disabled", True)  # the test's own
    token = new_token(uuid4())
    with CallbackEndpoint(host=host) as endpoint, httpx.Client(trust_env=False, timeout=60) as http:
        assert endpoint.url == f"http://{f'[{host}]' if ':' in host else host}:{endpoint.port}"
        assert http.put(f"{endpoint.url}{CALLBACK_PATH}?token={token}").status_code == 405
    assert token not in caplog.text
