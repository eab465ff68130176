"""
A web page that is open in a browser cannot reach the service.

Not by a name of its own, not across sites.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workflow_automation_provider.testing._server.app import Guard

from ..conftest import JSON

LOOPBACK = ["LocalHost:80", "localhost.:1", "127.0.0.1", "127.0.0.2:65535", "[::1]", "[::1]:8070"]
FOREIGN = [
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.localhost",
    "localhost:80@evil.example",
]
FOREIGN += ["user@localhost", "[2001:db8::1]:80", "localhost:", "localhost:x", ""]


@pytest.mark.parametrize(
    ("guard", "answered", "refused"),
    [
        (Guard("127.0.0.1"), LOOPBACK, FOREIGN),
        (Guard("0.0.0.0"), ["192.0.2.1:80", "localhost", "[2001:db8::1]"], ["evil.example"]),
        (
            Guard("::1", "http://Service.test:8070/"),
            ["service.test:80", "127.0.0.1"],
            ["a.service.test"],
        ),
        (Guard("127.0.0.1", "https://[2001:db8::1]"), ["[2001:db8:0::1]"], ["[2001:db8::2]"]),
    ],
)
def test_host(guard, answered, refused):
    assert [host for host in answered if not guard.answers_to(host)] == []
    assert [host for host in refused if guard.answers_to(host)] == []


def test_foreign_host_is_rejected_on_every_path(service, http):
    """Whatever the size of the body, which a client may still be sending."""
    for path in ("/", "/_control/journal", "/api/trigger"):
        response = http.post(path, content=b"x" * 3_000_000, headers={"Host": "evil.example"})
        assert response.status_code == 421
    assert service.journal.requests() == []


PORTS = st.one_of(st.just(""), st.integers(0, 65535).map(lambda port: f":{port}"))


@given(
    st.one_of(
        st.text(), st.from_regex(r"[a-z0-9-]{1,9}(\.[a-z0-9-]{1,9}){0,3}\.?", fullmatch=True)
    ),
    PORTS,
)
def test_any_other_name_is_foreign(name, port):
    assume(name.rstrip(".").lower() != "localhost")
    assume(not re.match(r"127\.|\[", name))
    assert not Guard("127.0.0.1").answers_to(name + port)


@given(st.ip_addresses(), PORTS)
def test_addresses(address, port):
    written = f"[{address}]" if address.version == 6 else str(address)
    for host in ("127.0.0.1", "::1"):
        assert Guard(host).answers_to(written + port) == address.is_loopback
    for host in (str(address), "0.0.0.0", "::"):
        assert Guard(host).answers_to(written + port)


@pytest.mark.parametrize("content_type", ["text/plain", "text/plain; application/json", ""])
def test_fault_that_is_not_sent_as_json(service, http, content_type):
    headers = {"Content-Type": content_type}
    response = http.post("/_control/faults", content=b'{"kind": "reject"}', headers=headers)
    assert response.status_code == 415
    assert service.faults.all() == []


@pytest.mark.parametrize("name", ["faults", "callbacks"])
@pytest.mark.parametrize("body", [b"", b"[]", b'{"kind": "nonsense"}', b'{"x": 1}', b"\xff"])
def test_json_that_makes_no_sense(service, http, name, body):
    response = http.post(f"/_control/{name}", content=body, headers=JSON)
    assert (response.status_code, bool(response.json()["error"])) == (400, True)
    assert service.faults.all() == service.callbacks.all() == []
    assert http.post("/_control/others", content=body, headers=JSON).status_code == 404


@pytest.mark.parametrize("path", ["/_control/faults", "/api/trigger"])
def test_browsers_are_not_allowed_across_sites(http, path):
    """What a browser asks before it sends JSON or DELETE to another site."""
    asks = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    response = http.options(path, headers=asks)
    assert not response.is_success
    assert not [name for name in response.headers if name.startswith("access-control-")]
