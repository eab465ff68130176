"""Every setting of a connection, in each way that Airflow knows a connection, and each one that is wrong."""

from __future__ import annotations

import json
import select
import socket
import threading
import traceback
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raw_server import accepted
from workflow_automation_provider.client.files import DEFAULT_FILE_FORMAT
from workflow_automation_provider.client.settings import FIELDS, Settings
from workflow_automation_provider.exceptions import (
    BusyError,
    InvalidRequestError,
    NotSentError,
    RejectedError,
)

# The base URL -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "base_url"),
    [
        ("service.example/api", "https://service.example/api"),
        ("service.example:8443/api/v2/", "https://service.example:8443/api/v2"),
        ("service.example", "https://service.example"),
        ("https%3A%2F%2Fservice.example%3A8443%2Fapi/", "https://service.example:8443/api"),
        ("https%3A%2F%2Fservice.example%2Fapi:8443", "https://service.example:8443/api"),
        ("http%3A%2F%2F127.0.0.1:8080/api", "http://127.0.0.1:8080/api"),
        ("[::1]:8080/api", "https://[::1]:8080/api"),
        ("[2001:db8::1]/api", "https://[2001:db8::1]/api"),
    ],
)
def test_base_url_of_a_uri(connect, uri, base_url):
    assert connect(f"workflow-automation://:KEY@{uri}").get_conn().base_url == base_url


@pytest.mark.parametrize("start", ["https://:KEY@service.example", "http://:KEY@localhost"])
def test_base_url_of_a_uri_with_a_scheme_of_its_own(connect, start):
    base_url = connect(f"workflow-automation://{start}:8443/api").get_conn().base_url
    assert base_url == f"{start.replace(':KEY@', '')}:8443/api"


@pytest.mark.parametrize(
    ("fields", "base_url"),
    [
        ({"host": " service.example/api/ "}, "https://service.example/api"),
        ({"host": "https://service.example/api", "port": 8443}, "https://service.example:8443/api"),
        ({"host": "https://service.example:8443/api", "port": 8443}, "https://service.example:8443/api"),
        ({"host": "service.example", "port": 8443, "schema": "api"}, "https://service.example:8443/api"),
        ({"host": "[::1]", "port": 8443}, "https://[::1]:8443"),
    ],
)
def test_base_url_of_fields(connect, fields, base_url):
    assert connect(**fields).get_conn().base_url == base_url


def test_key_in_a_uri_arrives_decoded(connect, recording):
    server = recording()
    connect(f"workflow-automation://:a%2Fb%2Bc%40d@http%3A%2F%2F127.0.0.1:{server.port}/api").trigger_flow({})
    assert server.requests[0][2]["x-api-key"] == "a/b+c@d"


# The extras ---------------------------------------------------------------------------------------------

TOMORROW = (datetime.now(UTC).date() + timedelta(days=30)).isoformat()

GOOD: dict[str, list[tuple[Any, Any]]] = {
    "flow_id": [("demo", "demo"), (7, "7"), (" demo ", "demo")],
    "timeout": [("5", 5.0), (0.5, 0.5)],
    "key_expires_on": [(TOMORROW, datetime.fromisoformat(TOMORROW).date())],
    "file_format": [
        ("base64", "base64"),
        ('{"n": "name"}', {"n": "name"}),
        ({"b": "base64", "a": "size"}, {"b": "base64", "a": "size"}),
    ],
    "verify": [(False, False), ("false", False), ("0", False), ("true", True)],
    "ca_bundle": [("/a/ca.pem", "/a/ca.pem")],
    "client_cert": [("/a.pem", "/a.pem"), (["a", "b"], ("a", "b")), ('["a", "b"]', ("a", "b"))],
    "proxy": [("http://proxy.example:3128", "http://proxy.example:3128")],
    "headers": [({"X-A": "b", "X-N": 5}, {"X-A": "b", "X-N": "5"}), ('{"X-A": "b"}', {"X-A": "b"})],
    "allow_http": [(True, True), ("true", True)],
    "callback_base_url": [
        (" https://airflow.example:8443/team/a/ ", "https://airflow.example:8443/team/a"),
        ("airflow.example", "https://airflow.example"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
    ],
    "busy_statuses": [
        (503, {503}),
        ("503", {503}),
        (" 429, 503 ", {429, 503}),
        (["429", 503], {429, 503}),
        ("[408, 599]", {408, 599}),
        ([], set()),
    ],
}


@pytest.mark.parametrize(
    ("name", "written", "read"), [(n, w, r) for n, cases in GOOD.items() for w, r in cases]
)
def test_extra(connect, name, written, read):
    document = json.dumps({name: written})
    hooks = {
        "JSON": connect(conn_id="a", host="service.example", extra={name: written}),
        "JSON, extra as text": connect(conn_id="b", host="service.example", extra=document),
        "URI, __extra__": connect(
            f"workflow-automation://service.example/?__extra__={quote(document)}", conn_id="c"
        ),
    }
    if not isinstance(written, bool):
        text = written if isinstance(written, str) else json.dumps(written)
        query = urlencode({name: text})
        hooks["URI"] = connect(f"workflow-automation://service.example/?{query}", conn_id="d")
    assert {way: getattr(hook.extra, name) for way, hook in hooks.items()} == dict.fromkeys(hooks, read)


def test_every_extra_is_tested():
    assert GOOD.keys() == WRONG.keys() == FIELDS.keys()


@pytest.mark.parametrize("empty", [None, "", "  "])
def test_null_and_empty_are_not_set(connect, empty):
    assert connect(host="service.example", extra=dict.fromkeys(GOOD, empty)).extra == Settings()
    assert Settings().file_format == DEFAULT_FILE_FORMAT


WRONG: dict[str, list[Any]] = {
    "flow_id": [["hush-1"], True, 1e20],
    "timeout": ["hush-1", 0, "nan", "inf", 1e300, True, [1]],
    "key_expires_on": ["hush-1", "2026-13-01", "31.12.2026", 1801353600, ["x"]],
    "file_format": ["hush-1", {"a": "hush-1"}, {}, [1], "{hush-1", 5],
    "verify": ["hush-1", 2, ["x"]],
    "ca_bundle": [["hush-1"], "/nowhere/hush-1", "hush-1\n-----BEGIN"],
    "client_cert": [["hush-1"], ["a", "b", "hush-1"], "[hush-1", "/nowhere/hush-1", ["/nowhere/hush-1", "x"]],
    "proxy": [
        "hush-1:3128",
        "http://u:hush-1/x@proxy.example:3128",
        "ftp://hush-1",
        "http://u:hush-1@[x",
        ["x"],
    ],
    "headers": [
        *("hush-1", "{hush-1", ["hush-1"]),
        *({"X-A": value} for value in (["hush-1"], 1.5, "hush-1\u00e9", "hush-1\x01x")),
        *({name: "hush-1"} for name in ("X A", "X-API-Key", "Content-Type", "Host")),
    ],
    "allow_http": ["hush-1", 2],
    "callback_base_url": [
        *(["hush-1"], True, "https:///hush-1", "https://air flow.example/hush-1"),
        *("https://me:hush-1@airflow.example", "https://airflow.example?token=hush-1"),
        *("https://airflow.example#hush-1", "https://airflow.example:hush-1"),
        *("ftp://airflow.example/hush-1", "http://airflow.example/hush-1"),
    ],
    "busy_statuses": [
        "429,hush-1",
        ["hush-1"],
        {"hush-1": 503},
        True,
        200,
        "302",
        600,
        503.0,
        "5 03",
        [[503]],
    ],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_wrong_extra_is_named_and_not_shown(connect, name, value):
    hook = connect(host="service.example", password="some-key", extra={name: value})
    with pytest.raises(InvalidRequestError) as caught:
        hook.get_conn()
    assert "Connection: wa_test" in str(caught.value)
    assert name in str(caught.value)
    assert "hush-1" not in "".join(traceback.format_exception(caught.value, chain=True))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("time_out", "'timeout'"), ("flowid", "'flow_id'"), ("Verify", "'verify'"), ("zzz", "flow_id, timeout")],
)
def test_unknown_extra(connect, name, meant):
    with pytest.raises(InvalidRequestError, match=f"'{name}'.*{meant}"):
        connect(host="service.example", extra={name: "hush-1"}).get_conn()


@pytest.mark.parametrize("extra", ["hush-1", "{", "[1]", '"hush-1"', "5"])
def test_extra_that_is_no_json_object(extra):
    with pytest.raises(InvalidRequestError, match="extra") as caught:
        Settings.read(extra)
    assert "hush-1" not in str(caught.value)


@pytest.mark.parametrize("flow_id", ["hush-hush", "workflow hush-hush"])
def test_key_in_the_flow_id(connect, flow_id):
    """A run's flow is in logs, results and events."""
    hook = connect(host="service.example", password="hush-hush", extra={"flow_id": flow_id})
    for prepare in (hook.prepare_trigger, lambda: hook.prepare_uploads("1001", [{"name": "a"}])):
        with pytest.raises(InvalidRequestError, match="flow_id") as caught:
            prepare()
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("password", ["hush-hush", " hush-hush\n"])
def test_key_in_the_argument_flow_id(connect, password):
    with pytest.raises(InvalidRequestError, match="flow_id") as caught:
        connect(host="service.example", password=password).trigger_flow({}, "hush-hush")
    assert "hush" not in f"{caught.value}{vars(caught.value)}"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"login": "hush-hush"}, "login"),
        ({"host": "https://service.example/hush-hush", "password": "hush-hush"}, "API key"),
        *(({"password": key}, "The API key") for key in ("hush 1", "hush\n1", "hüsh-hush", "hush\x00")),
    ],
)
def test_a_key_at_a_wrong_place_or_that_no_header_can_carry(connect, fields, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        connect(**{"host": "service.example", **fields}).get_conn()
    assert "sh-" not in str(caught.value)
    assert "hush" not in str(caught.value)


# The key's last day -------------------------------------------------------------------------------------


@pytest.fixture
def expiring(connect, recording, key):
    server = recording()

    def define(days):
        date = (datetime.now(UTC).date() + timedelta(days=days)).isoformat()
        hook = connect(host=server.base_url, password=key, extra={"key_expires_on": date, "flow_id": "f"})
        return hook, server, date

    return define


def send(hook, operation, folder):
    if operation == "upload":
        (folder / "a").write_text("x")
        return hook.upload_files("1", folder / "a")
    return hook.trigger_flow({}, "demo" if operation == "trigger_by_path" else None)


@pytest.mark.parametrize(
    ("operation", "days"),
    [("trigger_by_key", 0), ("trigger_by_key", 14), ("upload", 1)],
)
def test_key_that_expires_soon(expiring, log, tmp_path, days, operation):
    hook, server, date = expiring(days)
    send(hook, operation, tmp_path)
    assert f"expires on {date}" in log()
    assert len(server.requests) == 1


@pytest.mark.parametrize(("operation", "days"), [("trigger_by_key", -1), ("upload", -400)])
def test_key_that_expired(expiring, tmp_path, days, operation):
    hook, server, date = expiring(days)
    with pytest.raises(InvalidRequestError, match=f"(?s){date}.*Connection: wa_test"):
        send(hook, operation, tmp_path)
    assert server.requests == []


@pytest.mark.parametrize("days", [-400, 1])
def test_trigger_by_path_takes_no_key_that_could_expire(expiring, log, tmp_path, days):
    hook, server, _ = expiring(days)
    send(hook, "trigger_by_path", tmp_path)
    assert len(server.requests) == 1
    assert "expire" not in log()


# The way to the service ---------------------------------------------------------------------------------


def test_certificate_of_the_service(connect, recording, authority, key):
    server, other = (recording(authority.server_context(name)) for name in ("127.0.0.1", "other.example"))
    with pytest.raises(NotSentError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(host=server.base_url, password=key).trigger_flow({})
    assert server.requests == []
    extra = {"ca_bundle": authority.bundle}
    assert connect(host=server.base_url, password=key, extra=extra).trigger_flow({}).run_id == "7"
    query = f"verify=false&ca_bundle={quote(authority.bundle)}"
    uri = f"workflow-automation://:{key}@127.0.0.1:{other.port}/api?{query}"
    assert connect(uri).trigger_flow({}).run_id == "7"


def test_client_certificate(connect, recording, authority, key):
    server = recording(authority.server_context(of_clients=True))
    both, chain, private = authority.issue("worker.example")
    fields = {"host": server.base_url, "password": key}
    hook = connect(**fields, extra={"ca_bundle": authority.bundle})
    ok, message = hook.test_connection()
    assert not ok, message
    for certificate in (both, [chain, private], json.dumps([chain, private])):
        extra = {"ca_bundle": authority.bundle, "client_cert": certificate}
        assert connect(**fields, extra=extra).trigger_flow({}).run_id == "7"
    assert len(server.requests) == 3


@pytest.fixture
def connect_proxy():
    """A proxy that knows CONNECT and nothing else, and sends every tunnel to one port of this machine."""
    heads = []
    listener = socket.create_server(("127.0.0.1", 0))
    target: list[int] = []

    def tunnel(client):
        with client, socket.create_connection(("127.0.0.1", target[0])) as server:
            heads.append(client.recv(65536).decode())
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            while True:
                for one in select.select([client, server], [], [], 10)[0]:
                    data = one.recv(65536)
                    if not data:
                        return
                    (server if one is client else client).sendall(data)

    def serve():
        for client in accepted(listener):
            threading.Thread(target=tunnel, args=(client,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1], target, heads
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.parametrize("by_environment", [False, True])
def test_proxy(connect, recording, authority, connect_proxy, monkeypatch, by_environment, key):
    port, target, heads = connect_proxy
    server = recording(authority.server_context("service.example"))
    target.append(server.port)
    proxy = f"http://user:p%40ss-9876@127.0.0.1:{port}"
    extra = {"ca_bundle": authority.bundle}
    if by_environment:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    else:
        extra["proxy"] = proxy
    hook = connect(host="https://service.example/api", password=key, extra=extra)
    assert hook.trigger_flow({}).run_id == "7"
    assert heads[0].startswith("CONNECT service.example:443 ")
    assert "Proxy-Authorization: Basic dXNlcjpwQHNzLTk4NzY=" in heads[0]
    assert key not in heads[0]
    assert "proxy-authorization" not in server.requests[0][2]


@pytest.mark.parametrize("name", ["ALL_PROXY", "HTTP_PROXY"])
def test_this_machine_is_beyond_no_proxy_of_the_environment(connect, recording, monkeypatch, name, key):
    monkeypatch.setenv(name, "socks5://127.0.0.1:9")  # for which httpx has no support as it is installed here
    assert connect(host=recording().base_url, password=key).trigger_flow({}).run_id == "7"


@pytest.mark.parametrize(
    ("whose", "via"),
    [("connection", "connection's proxy"), ("environment", "from the environment")],
)
def test_proxy_that_is_not_there_is_named(connect, monkeypatch, whose, via, key):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        proxy = f"http://127.0.0.1:{gone.getsockname()[1]}"
    extra = {"proxy": proxy} if whose == "connection" else {}
    if whose == "environment":
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    hook = connect(host="https://service.example/api", password=key, extra=extra)
    with pytest.raises(NotSentError, match=f"not sent via .*{via}"):
        hook.trigger_flow({})
    assert via in hook.test_connection()[1]


def test_broken_proxy_of_the_environment_is_named_as_such(connect, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "ftp://u:hush-1@proxy.example")
    with pytest.raises(InvalidRequestError, match="HTTPS_PROXY") as caught:
        connect(host="service.example").get_conn()
    assert "hush-1" not in str(caught.value)


def test_extra_headers_arrive_and_secret_ones_are_never_shown(connect, recording, key):
    server = recording()
    server.status, server.body = 400, b"You sent Bearer hush-1234 for data"
    extra = {"headers": {"Authorization": "Bearer hush-1234", "X-Team": "data"}}
    hook = connect(host=server.base_url, password=key, extra=extra)
    with pytest.raises(RejectedError, match="withheld") as caught:
        hook.trigger_flow({})
    assert "hush" not in str(caught.value)
    ((_, _, headers, _),) = server.requests
    assert (headers["authorization"], headers["x-team"]) == ("Bearer hush-1234", "data")
    assert hook.extra.secrets() == ["Bearer hush-1234"]
    assert "hush" not in repr(hook.extra)


def test_callback_base_url_is_not_blamed_for_a_wrong_allow_http(connect):
    extra = {"callback_base_url": "http://airflow.example", "allow_http": "x"}

    with pytest.raises(InvalidRequestError, match="extra 'allow_http'") as caught:
        connect(host="service.example", extra=extra).get_conn()
    assert "callback_base_url" not in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([*FIELDS]), VALUES | VALUES.map(json.dumps))
def test_any_value_of_an_extra_is_read_or_is_an_error_of_that_extra(name, value):
    read, problem = Settings(), ""
    try:
        read = Settings.read(json.dumps({name: value}))
    except InvalidRequestError as error:
        problem = str(error)
    assert f"extra {name!r}" in problem or not problem
    assert {other for other in FIELDS if getattr(read, other) != getattr(Settings(), other)} <= {name}


@given(
    st.text()
    | st.text("0123456789,[] -.")
    | st.integers()
    | st.lists(st.text() | st.integers(300, 700) | st.booleans())
)
def test_busy_statuses_are_errors_or_the_extra_is_wrong(written):
    read = Settings()
    with suppress(InvalidRequestError):
        read = Settings.read(json.dumps({"busy_statuses": written}))
    assert read.busy_statuses <= set(range(400, 600))


def test_busy_status_of_the_connection_is_sent_again(connect, service, key):
    service.faults.add("reject", status=503)
    hook = connect(host=service.base_url, password=key, extra={"busy_statuses": "503"})
    with pytest.raises(BusyError):
        hook.trigger_flow({})
