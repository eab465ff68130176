"""Every setting of a connection, in each way that Airflow knows, and each one that is wrong."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import traceback
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates import issue_certificate
from raw_server import response
from workflow_automation_provider.client.redaction import CALLBACK_PATH, WITHHELD
from workflow_automation_provider.client.settings import FIELDS, Settings
from workflow_automation_provider.exceptions import BusyError, InvalidRequestError, NotSentError
from workflow_automation_provider.testing import Key, LocalService

# The base URL -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connection", "base_url"),
    [
        (":SOME-KEY@service.example:8443/api/v2/", "https://service.example:8443/api/v2"),
        (
            ":SOME-KEY@https%3A%2F%2Fservice.example%3A8443%2Fapi/",
            "https://service.example:8443/api",
        ),
        (":SOME-KEY@https%3A%2F%2Fservice.example%2Fapi:8443", "https://service.example:8443/api"),
        (":SOME-KEY@[::1]:8080/api", "https://[::1]:8080/api"),
        ("http://:SOME-KEY@localhost:8443/api", "http://localhost:8443/api"),
        ({"host": " service.example/api/ "}, "https://service.example/api"),
        ({"host": "https://service.example/api", "port": 8443}, "https://service.example:8443/api"),
        (
            {"host": "service.example", "port": 8443, "schema": "api"},
            "https://service.example:8443/api",
        ),
        ({"host": "[::1]", "port": 8443}, "https://[::1]:8443"),
    ],
)
def test_base_url(connect, connection, base_url):
    is_uri = isinstance(connection, str)
    hook = connect(f"workflow-automation://{connection}") if is_uri else connect(**connection)
    assert hook.get_conn().base_url == base_url


@pytest.mark.parametrize("is_uri", [False, True])
@pytest.mark.parametrize(
    ("path", "base"),
    [
        ("/api/trigger", "/api"),
        ("/trigger/", ""),
        ("/api/flows", "/api"),
        ("/api/flows/demo-flow", "/api"),
        ("/api/flows/demo-flow/trigger", "/api"),
        ("/v1/flows/demo-flow/trigger", "/v1"),
        ("/api/public/upload/", "/api"),
    ],
)
def test_base_url_that_is_that_of_an_operation(connect, is_uri, path, base):
    if is_uri:
        hook = connect(f"workflow-automation://:API_KEY@service.example{path}")
    else:
        hook = connect(host=f"https://service.example{path}")
    with pytest.raises(InvalidRequestError, match=f"expected https://service.example{base}, "):
        hook.get_conn()


@pytest.mark.parametrize(
    "path", ["/flows/api", "/my-trigger", "/trigger/api", "/public/api", "/flows/a/api"]
)
def test_base_url_that_only_looks_like_that_of_an_operation(connect, path):
    assert connect(host=f"service.example{path}").get_conn().base_url.endswith(path)


# The extras ---------------------------------------------------------------------------------------

GOOD: dict[str, list[tuple[Any, Any]]] = {
    "flow_id": [(7, "7"), (" demo ", "demo")],
    "timeout": [("5", 5.0), (0.5, 0.5)],
    "key_expires_on": [("2027-01-31", date(2027, 1, 31))],
    "file_format": [
        ("base64", "base64"),
        ('{"n": "name"}', {"n": "name"}),
        ({"b": "base64", "a": "size"}, {"b": "base64", "a": "size"}),
    ],
    "verify": [(False, False), ("0", False), ("true", True)],
    "ca_bundle": [("/a/ca.pem", "/a/ca.pem")],
    "client_cert": [("/a.pem", "/a.pem"), (["a", "b"], ("a", "b")), ('["a", "b"]', ("a", "b"))],
    "proxy": [
        ("http://proxy.example:3128", "http://proxy.example:3128"),
        ("u:p@proxy.example:3128", "http://u:p@proxy.example:3128"),
        (" None ", "none"),
    ],
    "headers": [({"X-A": "b", "X-N": 5}, {"X-A": "b", "X-N": "5"}), ('{"X-A": "b"}', {"X-A": "b"})],
    "allow_http": [(True, True), ("true", True)],
    "callback_base_url": [
        (" https://airflow.example:8443/team/a/ ", "https://airflow.example:8443/team/a"),
        ("http://airflow:8080/", "http://airflow:8080"),
        (" s3://aws_default@reports/call/backs/ ", "s3://aws_default@reports/call/backs"),
        ("s3://reports", "s3://reports"),
        ("file:///tmp/mail%20boxes", "file:///tmp/mail%20boxes"),
    ],
    "busy_statuses": [
        (503, {503}),
        (" 429, 503 ", {429, 503}),
        (["408", 599], {408, 599}),
        ([], set()),
    ],
}


@pytest.mark.parametrize(
    ("name", "written", "read"), [(n, w, r) for n, cases in GOOD.items() for w, r in cases]
)
def test_extra(connect, name, written, read):
    document = json.dumps({name: written})
    hooks = {
        "JSON": connect(conn_id="a", extra={name: written}),
        "JSON, extra as text": connect(conn_id="b", extra=document),
        "URI, __extra__": connect(
            f"workflow-automation://service.example/?__extra__={quote(document)}", conn_id="c"
        ),
    }
    if not isinstance(written, bool):
        text = written if isinstance(written, str) else json.dumps(written)
        query = urlencode({name: text})
        hooks["URI"] = connect(f"workflow-automation://service.example/?{query}", conn_id="d")
    assert {way: getattr(hook.extra, name) for way, hook in hooks.items()} == dict.fromkeys(
        hooks, read
    )


def test_every_extra_is_tested():
    assert GOOD.keys() == WRONG.keys() == FIELDS.keys()


@pytest.mark.parametrize("empty", [None, "  "])
def test_null_and_empty_are_not_set(connect, empty):
    assert connect(extra=dict.fromkeys(GOOD, empty)).extra == Settings()


WRONG: dict[str, list[Any]] = {
    "flow_id": [["hush-1"], True],
    "timeout": ["hush-1", 0, [1]],
    "key_expires_on": ["hush-1", 1801353600],
    "file_format": ["hush-1", "{hush-1", {}],
    "verify": ["hush-1", ["x"]],
    "ca_bundle": [["hush-1"], "/nowhere/hush-1", "hush-1\n-----BEGIN", "hush-1" * 1000],
    "client_cert": [["hush-1"], "[hush-1", "/nowhere/hush-1", ["/nowhere/hush-1", "x"]],
    "proxy": [
        "http:/hush-1",
        "https://hush-1:3128",
        "http://u:hush-1/x@proxy.example:3128",
        "http://u:hush-1@[x",
        ["x"],
    ],
    "headers": [
        *("hush-1", {"X-A": ["hush-1"]}, {"X-A": "hush-1\u00e9"}),
        *({name: "hush-1"} for name in ("X A", "Content-Type", "Host")),
    ],
    "allow_http": ["hush-1"],
    "callback_base_url": [
        ["hush-1"],
        "https://me:hush-1@airflow.example",
        "ftp://hush-1/folder",
        "s3://",
        "s3://aws_default@/hush-1",
        "s3://key:hush-1@bucket",
        "s3://bucket/hush-1?x=1",
        "s3://bucket/hush 1",
        "s3://team/hush-1@bucket/folder",
        "s3://bucket/folder/../hush-1",
        "file:///",
        "file://hush-1/folder",
        "file:hush-1://",
    ],
    "busy_statuses": ["429,hush-1", {"hush-1": 503}, True, 200, 503.0, [[503]]],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_wrong_extra_is_named_and_not_shown(connect, name, value):
    with pytest.raises(InvalidRequestError) as caught:
        connect(password="some-key", extra={name: value}).get_conn()
    assert "Connection: wa_test" in str(caught.value)
    assert name in str(caught.value)
    assert "hush-1" not in "".join(traceback.format_exception(caught.value, chain=True))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("hush-1", "extra"),
        ('"hush-1"', "extra"),
        ('{"time_out": "hush-1"}', "'time_out'.* timeout,"),
    ],
)
def test_extra_that_is_no_json_object_or_has_an_unknown_field(extra, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        Settings.read(extra)
    assert "hush-1" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"host": "https://service.example/hush-hush", "password": "hush-hush"}, "API key"),
        *(
            ({"password": key}, "The API key")
            for key in ("hush 1", "hush\n1", "hüsh-hush", "hush\x00")
        ),
    ],
)
def test_a_key_at_a_wrong_place_or_that_no_header_can_carry(connect, fields, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        connect(**fields).get_conn()
    assert "sh-" not in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("flow_id", "extra"), [("hush-hush", {}), (None, {"flow_id": "workflow hush-hush"})]
)
def test_a_flow_id_with_the_key_in_it(connect, flow_id, extra):
    with pytest.raises(InvalidRequestError, match="flow_id") as caught:
        connect(password=" hush-hush\n", extra=extra).trigger_flow({}, flow_id)
    assert "hush" not in f"{caught.value}{vars(caught.value)}"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(300, 700)
    | st.floats()
    | st.text()
    | st.text("0123456789,[] -."),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.sampled_from([*FIELDS, "busy_statuses"]), VALUES | VALUES.map(json.dumps))
def test_any_value_of_an_extra_is_read_or_is_an_error_of_that_extra(name, value):
    read, problem = Settings(), ""
    try:
        read = Settings.read(json.dumps({name: value}))
    except InvalidRequestError as error:
        problem = str(error)
    assert f"extra {name!r}" in problem or not problem
    assert {other for other in FIELDS if getattr(read, other) != getattr(Settings(), other)} <= {
        name
    }
    assert read.busy_statuses <= {*range(400, 600)}


# What they do -------------------------------------------------------------------------------------


def test_busy_status_of_the_connection_is_sent_again(connect, service):
    service.faults.add("reject", status=503)
    with pytest.raises(BusyError):
        connect(**service.airflow_connection(extra={"busy_statuses": "503"})).trigger_flow({})


@pytest.mark.parametrize(
    ("days", "said"), [(-1, "expired on"), (0, "expires on"), (14, "expires on"), (15, "")]
)
def test_last_day_of_the_key(connect, service, log, days, said):
    """A trigger by path takes no key."""
    day = datetime.now(UTC).date() + timedelta(days=days)
    hook = connect(**service.airflow_connection(extra={"key_expires_on": str(day)}))
    run_id = hook.trigger_flow({}, "demo-flow").run_id
    assert "expire" not in log()
    for send in (lambda: hook.trigger_flow({}), lambda: hook.upload_files(run_id, {"a": 1})):
        if days < 0:
            with pytest.raises(InvalidRequestError, match=f"(?s){said} {day}.*Connection: wa_test"):
                send()
            assert f"{said} {day}" in hook.test_connection()[1]
        else:
            send()
            assert f"{said} {day}" in log() if said else "expire" not in log()
    assert sum(request.key_sent for request in service.journal.requests()) == (
        2 if days >= 0 else 0
    )


# The way to the service ---------------------------------------------------------------------------


def test_certificate_that_is_not_verified_and_key_that_is_percent_encoded(connect, tmp_path):
    issued = issue_certificate("other.example", tmp_path)
    keys, journal = [Key("a/b+c@d-e/f", "demo-flow")], tmp_path / "journal.jsonl"
    with LocalService(keys, journal, certfile=issued.certfile) as service:
        uri = (
            f"workflow-automation://:a%2Fb%2Bc%40d-e%2Ff@127.0.0.1:{service.port}/api?verify=false"
        )
        assert connect(uri).trigger_flow({}).run_id == "1001"


@pytest.fixture
def tunnel(tmp_path):
    """A proxy that is also the service, for one request, and what each of the two was sent."""
    service = issue_certificate("service.example", tmp_path)
    client = issue_certificate("worker.example", tmp_path, "client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(service.certfile)
    context.load_verify_locations(client.ca_bundle)
    context.verify_mode = ssl.CERT_OPTIONAL
    listener = socket.create_server(("127.0.0.1", 0))
    tunnel = SimpleNamespace(
        port=listener.getsockname()[1], client_cert=str(client.certfile), sent=b""
    )
    tunnel.ca_bundle = str(service.ca_bundle)

    def serve():
        connection, _ = listener.accept()
        tunnel.connect = connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with context.wrap_socket(connection, server_side=True) as tls:
            tunnel.client = tls.getpeercert()
            while not tunnel.sent.endswith(b"}}"):
                tunnel.sent += tls.recv(65536)
            tls.sendall(response("7"))

    threading.Thread(target=serve, daemon=True).start()
    with listener:
        yield tunnel


@pytest.mark.parametrize("files", [1, 2])
def test_proxy_and_headers_and_client_certificate(connect, tunnel, files):
    """The file of the certificate has its key as well."""
    extra = {
        "ca_bundle": tunnel.ca_bundle,
        "client_cert": tunnel.client_cert if files == 1 else [tunnel.client_cert] * 2,
        "headers": {"Authorization": "Bearer hush-1234", "X-Team": "data"},
        "proxy": f"http://user:p%40ss-9876@127.0.0.1:{tunnel.port}",
    }
    hook = connect(password="some-key", extra=extra)
    assert hook.trigger_flow({}).run_id == "7"
    assert tunnel.connect.startswith(b"CONNECT service.example:443 ")
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNzLTk4NzY=" in tunnel.connect
    assert b"some-key" not in tunnel.connect
    assert b"Authorization: Bearer hush-1234\r\nX-Team: data\r\n" in tunnel.sent
    assert b"proxy-authorization" not in tunnel.sent.lower()
    assert "Bearer hush-1234" in hook.extra.secrets()
    assert "hush" not in repr(hook.extra)
    assert "worker.example" in str(tunnel.client)


def test_this_machine_is_beyond_no_proxy_of_the_environment(hook, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert hook.trigger_flow({}).run_id == "1001"


def test_proxy_of_the_environment_that_is_not_there_is_named(connect, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    hook = connect(password="some-key")
    with pytest.raises(NotSentError, match="not sent via the proxy from the environment"):
        hook.trigger_flow({})
    assert "from the environment" in hook.test_connection()[1]


def test_certificates_of_the_environment_that_are_missing_are_named(connect, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/ca.pem")
    hook = connect(password="some-key")
    with pytest.raises(InvalidRequestError, match=r"REQUESTS_CA_BUNDLE(?s:.)*Connection: wa_test"):
        hook.trigger_flow({})
    is_valid, message = hook.test_connection()
    assert not is_valid
    assert "The environment variable REQUESTS_CA_BUNDLE cannot be" in message


def test_password_of_the_environments_proxy_is_redacted(connect, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://u:hush-1234@proxy.example")
    assert "hush" not in connect().get_conn().redactor.text("You are u:hush-1234")


@pytest.mark.parametrize(
    "encode",
    [str, lambda url: quote(url, safe=""), lambda url: base64.b64encode(url.encode()).decode()],
)
def test_callback_of_any_task_is_redacted(connect, encode):
    """The service may return it to another task than the one that made its token."""
    redactor = connect(password="some-key").get_conn().redactor
    text = encode(f"https://airflow.example/team{CALLBACK_PATH}?token=hush-1234")
    assert redactor.text(f"inputs: {text}") == WITHHELD
    assert redactor.has_key(text)
    assert redactor.text(f"The workflow automation called back at {CALLBACK_PATH}.") != WITHHELD


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("X-Team", "data-engineering", False),
        ("X-Team", "the bearer of bad news", False),
        ("X-Team", "Basically fine", False),
        ("X-Session", "hush-1234", True),
        ("X-Upstream", "Bearer hush-1234", True),
        ("X-Upstream", "basic  aHVzaDoxMjM0", True),
        ("Via", "BEARER hush-1234", True),
    ],
)
def test_headers_that_are_secrets(connect, name, value, is_secret):
    """By its name or by its value: a gateway may want its credentials in a header of its own."""
    client = connect(password="some-key", extra={"headers": {name: value}}).get_conn()
    shown = client.redactor.text(f"no such id: {value.split()[-1]}")
    assert shown.startswith("(withheld") is is_secret


def test_broken_proxy_of_the_environment_is_named_as_such(connect, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "ftp://u:hush-1@proxy.example")
    with pytest.raises(InvalidRequestError, match="HTTPS_PROXY") as caught:
        connect().get_conn()
    assert "hush-1" not in str(caught.value)
