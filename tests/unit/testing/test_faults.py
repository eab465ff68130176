from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx
import pytest
from starlette.responses import Response

from workflow_automation_provider.testing import Faults
from workflow_automation_provider.testing._server.server import BackgroundServer, listen
from workflow_automation_provider.testing.control_client import ControlClient

from .conftest import KEY, only_request, wait_for

REASON = {"why": "x"}


@pytest.mark.parametrize(
    ("kind", "options", "status", "body", "headers"),
    [
        ("reject", {}, 400, {"error": "the fault reject"}, {"content-type": "application/json"}),
        (
            "reject",
            {"status": 422, "body": REASON, "headers": {"X-A": "b"}},
            422,
            REASON,
            {"x-a": "b"},
        ),
        ("busy", {}, 429, ..., {"retry-after": None}),
        ("busy", {"status": 408, "retry_after": 0}, 408, ..., {"retry-after": "0"}),
        (
            "busy",
            {"status": 503, "retry_after": "Wed, 21 Oct"},
            503,
            ...,
            {"retry-after": "Wed, 21 Oct"},
        ),
        ("redirect", {"location": "http://a.test/"}, 307, ..., {"location": "http://a.test/"}),
        ("status_after", {"status": 502, "body": "oops"}, 502, "oops", {}),
        (
            "response",
            {"status": 202, "body": REASON, "headers": {"X-A": "b"}},
            202,
            REASON,
            {"x-a": "b"},
        ),
        (
            "response",
            {"status": 200, "headers": {"Content-Type": "a/b"}},
            200,
            ...,
            {"content-type": "a/b"},
        ),
        ("response", {"status": 204}, 204, "", {}),
        ("empty", {}, 201, "", {}),
        ("garbage", {}, 201, "<html>not JSON", {}),
    ],
)
def test_whole_responses(service, call, kind, options, status, body, headers):
    service.faults.add(kind, **options)
    response = call.by_key()
    assert response.status_code == status
    if body is not ...:
        assert (response.text if isinstance(body, str) else response.json()) == body
    assert {name: response.headers.get(name) for name in headers} == headers
    is_accepted = kind not in ("reject", "busy", "redirect")
    assert len(service.runs) == is_accepted
    request = only_request(service)
    assert (request.status, request.fault, request.run_id) == (
        status,
        kind,
        "1001" if is_accepted else None,
    )
    assert call.by_path().status_code == 201


@pytest.mark.parametrize(
    ("kind", "options", "error"),
    [
        ("drop", {}, httpx.RemoteProtocolError),
        ("hang", {"seconds": 0.05}, httpx.RemoteProtocolError),
        ("reset", {}, httpx.ReadError),
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_closed_without_a_response(service, call, kind, options, error, when):
    service.faults.add(f"{kind}_{when}", **options)
    started = time.monotonic()
    with pytest.raises(error):
        call.by_path()
    assert time.monotonic() - started >= options.get("seconds", 0)
    assert len(service.runs) == (when == "after")
    request = only_request(service)
    assert (request.status, request.fault, request.outcome) == (
        None,
        f"{kind}_{when}",
        "no response",
    )
    assert (request.run_id == "1001") is (when == "after")


def test_stopping_closes_hanging_requests_at_once(service, call):
    for kind in ("hang_before", "hang_after", "delay", "drip"):
        service.faults.add(kind, seconds=30)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call.by_path) for _ in range(4)]
        wait_for(lambda: all(fault.struck for fault in service.faults.all()))
        started = time.monotonic()
        service.stop()
        assert {type(call.exception()) for call in calls} == {httpx.RemoteProtocolError}
    assert time.monotonic() - started < 15
    assert len(service.runs) == 2


def test_delay_goes_on_even_if_the_client_left(service, http):
    service.faults.add("delay", seconds=0.5)
    with pytest.raises(httpx.ReadTimeout):
        http.post("/api/flows/f/trigger", json={"inputs": {}}, timeout=httpx.Timeout(10, read=0.05))
    wait_for(lambda: len(service.runs) == 1)


def test_drip(service, http):
    service.faults.add("drip", seconds=0.4)
    started = time.monotonic()
    with http.stream("POST", "/api/flows/f/trigger", json={"inputs": {}}) as response:
        parts = list(response.iter_raw())
    assert time.monotonic() - started >= 0.3
    assert len(parts) > 5
    assert json.loads(b"".join(parts))["run_id"] == "1001"


def test_echo_key(service, call):
    """Rejected, or accepted with the usual response."""
    value = KEY.value
    forms = [value, quote(value, safe=""), base64.b64encode(value.encode()).decode()]
    service.faults.add("echo_key")
    response = call.by_key()
    assert (response.status_code, response.json()["echo"]) == (400, forms)
    assert all(form in response.headers["x-echo"] for form in forms)
    assert service.runs == []
    service.faults.add("echo_key", status=201)
    response = call.by_key()
    assert response.json() == {
        "echo": forms,
        "run_id": "1001",
        "run_link": f"{service.url}/runs/1001",
    }
    service.faults.add("echo_key", status=200)
    assert value in call.upload("1001").json()
    assert (len(service.runs), len(service.uploads)) == (1, 1)


def test_stale(service, call):
    service.faults.add("stale")
    assert call.by_path().status_code == 201
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        call.by_path()
    first, second = service.journal.requests()
    assert (first.status, first.fault) == (201, "stale")
    assert (second.fault, second.outcome) == ("stale", "closed unread")
    assert len(service.runs) == 1


def test_client_that_leaves_within_its_body_is_counted(service, http):
    def leave():
        yield b"x" * 15
        raise EOFError

    with pytest.raises(EOFError):
        http.post("/api/trigger", content=leave(), headers={"Content-Length": "20"})
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


def test_narrowed_down(service, call):
    service.faults.add("reject", flow_id="other-flow", times=None)
    assert [call.by_path().status_code, call.by_path(flow_id="other-flow").status_code] == [
        201,
        400,
    ]
    assert [call.by_key({"case": {"a": 1}}).status_code, call.by_key(key="other").status_code] == [
        201,
        400,
    ]
    uploads = [{}, {"key": "wrong", "flow_id": "other-flow"}, {"key": "wrong"}]
    assert [call.upload("1001", **upload).status_code for upload in uploads] == [200, 400, 401]
    service.faults.add("reject", status=418, inputs={"case": {"a": 1}}, times=None)
    assert [call.by_path({"case": case}).status_code for case in ({"a": 2}, {"b": 1}, [1])] == [
        201
    ] * 3
    assert call.by_path({"case": {"a": 1, "b": 2}, "more": 1}).status_code == 418
    assert [call.upload(run_id).status_code for run_id in ("1001", "1002")] == [200, 418]


def test_what_is_not_struck(service, http, call):
    """
    An accepting fault waits for a request that would be accepted.

    None strikes other paths and methods.
    """
    service.faults.add("drop_after")
    assert http.post("/api/flows/f/trigger", json={}).status_code == 400
    with pytest.raises(httpx.RemoteProtocolError):
        call.by_path()
    service.faults.add("reject", status=418, times=None)
    assert [http.post("/api/nowhere").status_code, http.get("/api/trigger").status_code] == [
        404,
        405,
    ]
    assert http.get("/").status_code == 200


@pytest.mark.parametrize("end", ["", "/", "//", "/api", "/api/", " "])
def test_over_http(service, call, end):
    with ControlClient(f"{service.url}{end}") as control:
        assert control.healthy()
        added = control.add_fault("reject", status=418, times=2, inputs={"case": "x"})
        given = {"kind": "reject", "status": 418, "inputs": {"case": "x"}, "times": 2}
        assert added == {**given, "remaining": 2, "struck": 0}
        assert [call.by_path({"case": case}).status_code for case in "xy"] == [418, 201]
        assert control.faults() == [{**given, "remaining": 1, "struck": 1}]
        control.clear_faults()
        assert control.faults() == []
        with pytest.raises(ValueError, match="redirect needs a location"):
            control.add_fault("redirect")
        call.upload("1001", ["x"])
        journal = control.journal()
        assert journal["runs"][0]["inputs"] == {"case": "y"}
        operations = ["trigger_by_path", "trigger_by_path", "upload"]
        assert [request["operation"] for request in journal["requests"]] == operations
        assert control.add_fault("drop_before", times=None)["remaining"] is None
        service.stop()
        assert not control.healthy()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8070", "localhost", "http://", "ftp://a"])
def test_an_address_that_is_no_url_is_named(url):
    with pytest.raises(ValueError, match="expected a URL"):
        ControlClient(url)


def test_something_else_at_the_address_is_not_healthy():
    """A page that responds with 200, as of a router."""

    async def respond(scope, receive, send):
        await Response("<html>", 200)(scope, receive, send)

    sock = listen("127.0.0.1", 0)
    server = BackgroundServer(respond, sock, asyncio.Event())
    server.start()
    with ControlClient(f"http://127.0.0.1:{sock.getsockname()[1]}") as control:
        assert not control.healthy()
    server.stop()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("nonsense", {}, "kind is 'nonsense';"),
        ("redirect", {}, "redirect needs a location"),
        ("drop_after", {"status": 500}, "drop_after has no option 'status';"),
        ("reject", {"nonsense": None}, "reject has no option 'nonsense';"),
        ("reject", {"operation": "nonsense"}, "operation is 'nonsense';"),
        ("reject", {"times": 0}, "times is 0;"),
        ("reject", {"times": True}, "times is True;"),
        *(("reject", {"status": status}, f"status is {status!r};") for status in (101, "400")),
        ("reject", {"inputs": []}, "inputs is [];"),
        ("reject", {"headers": {"a": "b\r\nc: d"}}, "headers.a is 'b\\r\\nc: d';"),
        ("reject", {"headers": {"é": "b"}}, "headers.é.[key] is 'é';"),
        *(
            ("busy", {"retry_after": value}, f"retry_after is {value!r};")
            for value in (-1, 1.5, True, "a\nb")
        ),
        ("redirect", {"location": "a\nb"}, "location is 'a\\nb';"),
        *(("delay", {"seconds": value}, f"seconds is {value};") for value in (-1, float("inf"))),
    ],
)
def test_what_makes_no_sense_is_rejected_when_scripted(kind, options, message):
    faults = Faults()
    with pytest.raises(ValueError, match=re.escape(message)):
        faults.add(kind, **options)
    assert faults.all() == []
