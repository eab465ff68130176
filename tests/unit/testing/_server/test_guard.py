"""A web page that is open in a browser cannot reach the service: not by a name of its own, not across sites."""

from __future__ import annotations

import re

import httpx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workflow_automation_provider.testing import LocalService
from workflow_automation_provider.testing._server.app import Guard

PATHS = ["/", "/runs/1001", "/_control/journal", "/api/trigger"]
FAULT = b'{"kind": "reject"}'


def ask(service, path, host):
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60) as client:
        method = "POST" if path.startswith("/api/") else "GET"
        return client.request(
            method, path, headers={"Host": host}, content=b"{}" if method == "POST" else None
        )


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:80", "localhost.:1", "127.0.0.1", "127.0.0.2:65535", "[::1]", "[::1]:8070"],
)
def test_loopback_is_answered(service, host):
    assert {ask(service, path, host).status_code for path in PATHS} <= {200, 404, 415}


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8070",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.localhost",
        "localhost:80@evil.example",
        "user@localhost",
        "192.0.2.1",
        "[2001:db8::1]:80",
        "localhost:",
        "localhost:x",
        "",
    ],
)
def test_foreign_host(service, host):
    for path in PATHS:
        response = ask(service, path, host)
        assert response.status_code == 421
        assert "localhost" in response.json()["error"]
    assert service.journal.requests() == []


def test_large_upload_to_a_foreign_host_is_read_and_rejected(service, http):
    response = http.post("/api/public/upload", content=b"x" * 3_000_000, headers={"Host": "evil.example"})
    assert response.status_code == 421


@pytest.mark.parametrize(
    ("options", "answered", "refused"),
    [
        ({"host": "0.0.0.0"}, ["192.0.2.1:80", "localhost", "[2001:db8::1]"], ["evil.example"]),
        ({"host": "127.0.0.3"}, ["127.0.0.3", "localhost"], ["192.0.2.1"]),
        ({"host": "localhost"}, ["localhost"], ["192.0.2.1"]),
        (
            {"public_url": "http://Service.test:8070/"},
            ["service.test:8070", "service.test", "127.0.0.1"],
            ["a.service.test", "192.0.2.1"],
        ),
        ({"public_url": "https://[2001:db8::1]"}, ["[2001:db8:0::1]"], ["[2001:db8::2]"]),
    ],
)
def test_address_that_it_was_told(options, answered, refused):
    with LocalService(**options) as service:
        assert {ask(service, "/", host).status_code for host in answered} == {200}
        assert {ask(service, "/", host).status_code for host in refused} == {421}


PORTS = st.one_of(st.just(""), st.integers(0, 65535).map(lambda port: f":{port}"))


@given(
    st.one_of(st.text(), st.from_regex(r"[a-z0-9-]{1,9}(\.[a-z0-9-]{1,9}){0,3}\.?", fullmatch=True)), PORTS
)
def test_any_other_name_is_foreign(name, port):
    assume(name.rstrip(".").lower() != "localhost")
    assume(not re.match(r"127\.|\[", name))
    assert not Guard("127.0.0.1").answers_to(name + port)


@given(st.ip_addresses(), PORTS)
def test_addresses(address, port):
    written = f"[{address}]" if address.version == 6 else str(address)
    assert Guard("127.0.0.1").answers_to(written + port) == address.is_loopback
    assert Guard("::1").answers_to(written + port) == address.is_loopback
    assert Guard(str(address)).answers_to(written + port)
    assert Guard("0.0.0.0").answers_to(written + port)
    assert Guard("::").answers_to(written + port)


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "text/plain; application/json", None]
)
def test_fault_that_is_not_sent_as_json(service, http, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = http.post("/_control/faults", content=FAULT, headers=headers)
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]
    assert service.faults.all() == []


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=utf-8"])
def test_fault_that_is_sent_as_json(service, http, content_type):
    response = http.post("/_control/faults", content=FAULT, headers={"Content-Type": content_type})
    assert response.status_code == 201


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize("path", ["/_control/faults", "/_control/callbacks", "/api/trigger"])
def test_browsers_are_not_allowed_across_sites(http, path, method):
    """What a browser asks before it sends JSON or DELETE to another site."""
    response = http.options(
        path, headers={"Origin": "https://evil.example", "Access-Control-Request-Method": method}
    )
    assert not response.is_success
    assert not [name for name in response.headers if name.startswith("access-control-")]
