from __future__ import annotations

import base64
import json
import re
import socket
import time
from urllib.parse import quote, urlsplit

import httpx
import pytest

from workflow_automation_provider.testing import Faults
from workflow_automation_provider.testing.scripted import includes

from .conftest import KEY, only_request, wait_for

FAST = {"seconds": 0.05}


def connect(service):
    address = urlsplit(service.url)
    return socket.create_connection((address.hostname, address.port), timeout=10)


def raw_request(flow_id="demo-flow", body=b'{"inputs": {}}'):
    head = (
        f"POST /api/flows/{flow_id}/trigger HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    )
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def read_to_end(sock):
    received = b""
    while chunk := sock.recv(65536):
        received += chunk
    return received


def test_reject(service, call):
    service.faults.add("reject", status=422, body={"why": "x"}, headers={"X-Why": "y"})
    response = call.by_path()
    assert (response.status_code, response.json(), response.headers["x-why"]) == (422, {"why": "x"}, "y")
    assert response.headers["content-type"] == "application/json"
    assert service.runs == []
    assert (only_request(service).status, only_request(service).fault) == (422, "reject")
    service.faults.add("reject", body="<b>no", headers={"Content-Type": "text/html"})
    response = call.by_path()
    shown = (response.status_code, response.text, response.headers["content-type"])
    assert shown == (400, "<b>no", "text/html")
    assert call.by_path().status_code == 201


@pytest.mark.parametrize(
    ("status", "retry_after"),
    [(503, None), (429, "3"), (408, 0), (425, 5), (503, "Wed, 21 Oct 2026 07:28:00 GMT")],
)
def test_busy(service, call, status, retry_after):
    service.faults.add("busy", status=status, retry_after=retry_after)
    response = call.by_key()
    sent = None if retry_after is None else str(retry_after)
    assert (response.status_code, response.headers.get("retry-after")) == (status, sent)
    assert service.runs == []


def test_redirect(service, call):
    service.faults.add("redirect", location="http://elsewhere.test/", status=308)
    response = call.by_key()
    assert (response.status_code, response.headers["location"]) == (308, "http://elsewhere.test/")
    assert service.runs == []


@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "hang_before", "hang_after"])
def test_closed_without_a_response(service, kind):
    service.faults.add(kind, **(FAST if "hang" in kind else {}))
    with connect(service) as sock:
        started = time.monotonic()
        sock.sendall(raw_request())
        assert read_to_end(sock) == b""
        assert "hang" not in kind or time.monotonic() - started >= 0.05
    assert len(service.runs) == kind.endswith("after")
    request = only_request(service)
    assert (request.status, request.fault, request.outcome) == (None, kind, "no response")
    assert (request.run_id == "1001") is kind.endswith("after")


@pytest.mark.parametrize("kind", ["reset_before", "reset_after"])
def test_reset(service, kind):
    service.faults.add(kind)
    with connect(service) as sock:
        sock.sendall(raw_request())
        with pytest.raises(ConnectionResetError):
            read_to_end(sock)
    assert len(service.runs) == kind.endswith("after")
    assert only_request(service).outcome == "no response"


def test_hang_after_is_journalled_before_it_hangs(service, http):
    service.faults.add("hang_after", seconds=30)
    with pytest.raises(httpx.ReadTimeout):
        http.post("/api/flows/f/trigger", json={"inputs": {}}, timeout=0.1)
    wait_for(lambda: len(service.runs) == 1)


def test_stopping_closes_hanging_requests_at_once(service):
    for kind in ("hang_before", "hang_after", "delay", "drip"):
        service.faults.add(kind, seconds=30)
    with connect(service) as a, connect(service) as b, connect(service) as c, connect(service) as d:
        for sock in (a, b, c, d):
            sock.sendall(raw_request())
        wait_for(lambda: all(fault.struck for fault in service.faults.all()))
        started = time.monotonic()
        service.stop()
        assert time.monotonic() - started < 15
        for sock in (a, b, c):
            assert read_to_end(sock) == b""
    assert len(service.runs) == 2


def test_delay_goes_on_even_if_the_client_left(service, http, call):
    service.faults.add("delay", seconds=0.3, times=2)
    with pytest.raises(httpx.ReadTimeout):
        http.post("/api/flows/f/trigger", json={"inputs": {}}, timeout=0.05)
    assert service.runs == []
    wait_for(lambda: len(service.runs) == 1)
    started = time.monotonic()
    assert call.by_path().status_code == 201
    assert time.monotonic() - started >= 0.3


@pytest.mark.parametrize("status", [500, 502, 504])
def test_status_after(service, call, status):
    service.faults.add("status_after", status=status, body="oops")
    response = call.by_key()
    assert (response.status_code, response.text) == (status, "oops")
    assert len(service.runs) == 1
    assert (only_request(service).status, only_request(service).run_id) == (status, "1001")


def test_response(service, call):
    """It is the usual one but for what is scripted."""
    service.faults.add("response", status=202, body={"run_id": 7}, headers={"X-A": "b"})
    response = call.by_key()
    assert (response.status_code, response.json(), response.headers["x-a"]) == (202, {"run_id": 7}, "b")
    assert len(service.runs) == 1
    service.faults.add("response", status=200)
    response = call.by_key()
    assert (response.status_code, response.json()["run_id"]) == (200, "1002")


def test_drip(service, http):
    service.faults.add("drip", seconds=0.2)
    with http.stream("POST", "/api/flows/f/trigger", json={"inputs": {}}) as response:
        started = time.monotonic()
        parts = list(response.iter_raw())
    assert time.monotonic() - started >= 0.1
    assert len(parts) > 10
    assert json.loads(b"".join(parts))["run_id"] == "1001"


def test_truncate(service, call):
    service.faults.add("truncate")
    with pytest.raises(httpx.RemoteProtocolError, match="received 33 bytes, expected 66"):
        call.by_path()
    assert len(service.runs) == 1


@pytest.mark.parametrize(
    ("kind", "options", "status"),
    [("empty", {}, 201), ("empty", {"status": 204}, 204), ("response", {"status": 204}, 204)],
)
def test_empty(service, call, kind, options, status):
    service.faults.add(kind, **options)
    response = call.by_path()
    assert (response.status_code, response.content) == (status, b"")
    assert len(service.runs) == 1
    assert call.by_path().status_code == 201


def test_garbage(service, call):
    service.faults.add("garbage")
    response = call.by_path()
    assert response.status_code == 201
    with pytest.raises(ValueError, match="Expecting value"):
        response.json()
    assert len(service.runs) == 1


def test_endless_until_its_limit(service, call):
    service.faults.add("endless", limit=1_000_000)
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
        call.by_path()
    assert len(service.runs) == 1


def test_endless_until_the_client_closes(service, http):
    service.faults.add("endless", limit=10**15)
    received = 0
    with http.stream("POST", "/api/flows/f/trigger", json={"inputs": {}}) as response:
        for part in response.iter_raw():
            received += len(part)
            if received > 500_000:
                break
    # The thread that serves is free again.
    assert http.get("/_control/health", timeout=5).status_code == 200


def test_echo_key_rejecting(service, call):
    service.faults.add("echo_key")
    response = call.by_key()
    value = KEY.value
    forms = [value, quote(value, safe=""), base64.b64encode(value.encode()).decode()]
    assert response.status_code == 400
    assert response.json()["echo"] == forms
    for form in forms:
        assert form in response.headers["x-echo"]
    assert service.runs == []


def test_echo_key_accepting(service, call):
    service.faults.add("echo_key", status=201)
    response = call.by_key()
    assert response.json()["run_id"] == "1001"
    assert KEY.value in response.text
    service.faults.add("echo_key", status=200)
    response = call.upload("1001")
    assert isinstance(response.json(), str)
    assert KEY.value in response.json()
    assert (len(service.runs), len(service.uploads)) == (1, 1)


def test_stale(service):
    service.faults.add("stale")
    with connect(service) as sock:
        sock.sendall(raw_request())
        answered = b""
        while not answered.endswith(b'"}'):
            answered += sock.recv(65536)
        assert answered.startswith(b"HTTP/1.1 201 ")
        sock.sendall(raw_request())
        assert read_to_end(sock) == b""
    first, second = service.journal.requests()
    assert (first.status, first.fault) == (201, "stale")
    assert (second.fault, second.outcome) == ("stale", "closed unread")
    assert len(service.runs) == 1


def test_stale_strikes_pooled_connections_only(service, http, call):
    service.faults.add("stale")
    assert call.by_path().status_code == 201
    # Which of the two depends on whether the body is sent before or after the close.
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        call.by_path()
    assert call.by_path().status_code == 201
    assert len(service.runs) == 2


def test_client_that_leaves_within_its_body_is_counted(service):
    with connect(service) as sock:
        sock.sendall(raw_request(body=b"x" * 20)[:-5])
    wait_for(service.journal.requests)
    request = only_request(service)
    assert (request.outcome, request.status, request.size) == ("client left", None, 15)


def test_faults_strike_in_order_and_then_no_more(service, call):
    service.faults.add("reject", status=400)
    service.faults.add("reject", status=404, times=2)
    service.faults.add("reject", status=409, times=None, operation="upload")
    assert [call.by_path().status_code for _ in range(4)] == [400, 404, 404, 201]
    assert [call.upload("1001").status_code for _ in range(3)] == [409] * 3
    service.faults.clear()
    assert call.upload("1001").status_code == 200


def test_narrowed_down_to_a_flow(service, call):
    service.faults.add("reject", flow_id="other-flow", times=None)
    assert call.by_path().status_code == 201
    assert call.by_path(flow_id="other-flow").status_code == 400
    assert call.by_key().status_code == 201
    assert call.by_key(key="other").status_code == 400
    assert call.upload("1001", flow_id="demo-flow").status_code == 200
    assert call.upload("1001", key="wrong", flow_id="other-flow").status_code == 400
    assert call.upload("1001", key="wrong", flow_id="demo-flow").status_code == 401


def test_narrowed_down_to_inputs(service, call):
    service.faults.add("reject", status=418, inputs={"case": {"a": 1}}, times=None)
    assert call.by_path({"case": {"a": 2}}).status_code == 201
    assert call.by_path({"case": {"a": 1, "b": 2}, "more": 1}).status_code == 418
    service.faults.clear()
    call.by_key({"case": {"a": 1}})
    service.faults.add("reject", status=418, inputs={"case": {"a": 1}}, operation="upload")
    assert call.upload("1001").status_code == 200
    assert call.upload("1002").status_code == 418


def test_an_accepting_fault_waits_for_a_request_that_is_accepted(service, http, call):
    service.faults.add("drop_after")
    assert http.post("/api/flows/f/trigger", json={}).status_code == 400
    with pytest.raises(httpx.RemoteProtocolError):
        call.by_path()


def test_other_paths_and_methods_are_not_struck(service, http):
    service.faults.add("reject", status=418, times=None)
    assert http.post("/api/nowhere").status_code == 404
    assert http.get("/api/trigger").status_code == 405
    assert http.get("/").status_code == 200


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("nonsense", {}, "kind is 'nonsense';"),
        (["busy"], {}, "kind is ['busy'];"),
        ("redirect", {}, "redirect needs a location"),
        ("drop_after", {"status": 500}, "drop_after has no option 'status';"),
        ("delay", {"body": "x"}, "delay has no option 'body';"),
        ("reject", {"nonsense": 1}, "reject has no option 'nonsense';"),
        ("reject", {"nonsense": None}, "reject has no option 'nonsense';"),
        ("reject", {"operation": "nonsense"}, "operation is 'nonsense';"),
        ("reject", {"flow_id": 7}, "flow_id is 7;"),
        ("reject", {"times": 0}, "times is 0;"),
        ("reject", {"times": "2"}, "times is '2';"),
        ("reject", {"times": True}, "times is True;"),
        ("reject", {"status": 42}, "status is 42;"),
        ("reject", {"status": 101}, "status is 101;"),
        ("reject", {"status": "400"}, "status is '400';"),
        ("reject", {"inputs": []}, "inputs is [];"),
        ("reject", {"headers": {"a": "b\r\nc: d"}}, "headers.a is 'b\\r\\nc: d';"),
        ("reject", {"headers": {"é": "b"}}, "headers.é.[key] is 'é';"),
        ("reject", {"headers": ["a"]}, "headers is ['a'];"),
        ("busy", {"retry_after": "a\nb"}, "retry_after is 'a\\nb';"),
        *(("busy", {"retry_after": value}, f"retry_after is {value};") for value in (-1, 1.5, True)),
        ("redirect", {"location": "a\nb"}, "location is 'a\\nb';"),
        ("delay", {"seconds": -1}, "seconds is -1;"),
        ("delay", {"seconds": float("nan")}, "seconds is nan;"),
        ("delay", {"seconds": float("inf")}, "seconds is inf;"),
        ("endless", {"limit": "1"}, "limit is '1';"),
    ],
)
def test_what_makes_no_sense_is_rejected_when_scripted(kind, options, message):
    faults = Faults()
    with pytest.raises(ValueError, match=re.escape(message)):
        faults.add(kind, **options)
    assert faults.all() == []


def test_includes():
    assert includes({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}})
    assert includes({}, {})
    assert not includes({"a": 1}, {"a": 2})
    assert not includes({"a": 1}, {"b": None})
    assert not includes([1], {"a": 1})
    assert not includes({"a": [1, 2]}, {"a": [1]})
