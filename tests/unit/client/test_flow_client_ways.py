"""The way to the service: which proxy is taken, and which certificates are trusted."""

from __future__ import annotations

import ipaddress
import itertools
import os
import shutil
import socket
import ssl
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates import issue_certificate, issue_outdated_certificate
from raw_server import response
from workflow_automation_provider.client.network import CA_VARIABLES, choose_proxy
from workflow_automation_provider.exceptions import InvalidRequestError, NotSentError
from workflow_automation_provider.testing import Key, LocalService

from .conftest import KEY, check, client_of, read_request

HTTP, HTTPS = "http://service.example/api", "https://service.example/api"
PROXY = "http://proxy.example:3128"


def proxy_of(url, written=None):
    found = choose_proxy(written, url)
    return found and found.url


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({"HTTPS_PROXY": PROXY}, HTTPS, PROXY),
        ({"HTTPS_PROXY": PROXY}, HTTP, None),
        ({"ALL_PROXY": "http://other", "HTTP_PROXY": "proxy.example:3128"}, HTTP, PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "a, .example"}, HTTPS, None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "a, *.example"}, HTTPS, None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*.example:443,*.other"}, HTTPS, PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*.vice.example"}, HTTPS, PROXY),
        (
            {"HTTPS_PROXY": PROXY, "NO_PROXY": "host.example:8443"},
            "https://host.example:8443/api",
            None,
        ),
    ],
)
def test_proxy_of_the_environment(monkeypatch, variables, url, proxy):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_of(url) == proxy


@pytest.mark.parametrize(
    ("no_proxy", "host", "is_direct"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("other.example, 10.0.0.0/255.0.0.0 ", "10.1.2.3:8443", True),
        ("10.9.9.9/8", "10.1.2.3", True),
        ("10.0.0.0/8", "10.example", False),
        ("fd00::/8", "[fd12::1]", True),
        ("[fd00::]/8", "[fd12::1]:8443", True),
        ("fd00::/8", "[fe80::1]", False),
        ("fd12:0:0::1", "[fd12::1]", True),
        ("[fd12::1]", "[fd12::1]", True),
        ("fd00::/8", "10.1.2.3", False),
        ("10.0.0.0/99,a/b,/", "10.1.2.3", False),
    ],
)
def test_networks_of_no_proxy(monkeypatch, no_proxy, host, is_direct):
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_of(f"https://{host}/api") == (None if is_direct else PROXY)


@given(st.ip_addresses(), st.data())
def test_each_address_of_a_network_of_no_proxy_is_reached_directly(address, data):
    network = ipaddress.ip_network(
        (address, data.draw(st.integers(0, address.max_prefixlen))), strict=False
    )
    host = f"[{address}]" if address.version == 6 else f"{address}"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HTTPS_PROXY", PROXY)
        environment.setenv("NO_PROXY", f"a.example,{network}")
        assert proxy_of(f"https://{host}/api") is None


def test_connection_without_a_proxy(monkeypatch, service):
    """It does not use the environment's."""
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    assert proxy_of(HTTPS) == PROXY
    assert proxy_of(HTTPS, " None ") is None
    client_of(service, proxy="none").check()


@pytest.mark.parametrize("has_variable", [False, True])
def test_proxy_without_a_scheme(monkeypatch, raw_server, start, has_variable):
    proxy = raw_server(response("7"))
    address = f"127.0.0.1:{proxy.port}"
    if has_variable:
        monkeypatch.setenv("HTTP_PROXY", address)
        client = client_of(HTTP, allow_http=True)
    else:
        client = client_of(HTTP, allow_http=True, proxy=f"user:hush-1234@{address}")
        assert "hush" not in client.redactor.text("user:hush-1234")
    assert start.send(client).run_id == "7"
    ((head, _),) = proxy.requests
    assert head.startswith(b"POST http://service.example/api/trigger ")


@pytest.mark.parametrize("has_variable", [False, True])
def test_proxy_over_tls_is_refused(monkeypatch, has_variable):
    proxy = "https://user:hush-1@proxy.example:3128"
    if has_variable:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(InvalidRequestError, match=r"https://.*http://proxy") as caught:
        client_of(HTTPS, proxy=None if has_variable else proxy)
    assert ("HTTPS_PROXY" in str(caught.value)) == has_variable
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "proxy",
    [
        "http:/proxy",
        "http://",
        "http://a b",
        "http://p:x",
        "http://u:1/x@p",
        "ftp://p",
        "p?x",
        "[x",
    ],
)
def test_proxy_that_is_not_valid(monkeypatch, proxy):
    with pytest.raises(InvalidRequestError, match=r"the connection's proxy is not usable.*http://"):
        client_of(HTTPS, proxy=proxy)
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(InvalidRequestError, match=r"\(ALL_PROXY\) is not usable.*http://"):
        client_of(HTTPS)


@pytest.mark.parametrize("status", [403, 407])
def test_proxy_that_lets_nothing_through(raw_server, attempt, status):
    proxy = raw_server(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)
    client = client_of(HTTPS, proxy=f"http://127.0.0.1:{proxy.port}")
    check(attempt.send(client), NotSentError, "not sent via the connection's proxy", f"{status} No")
    ((head, _),) = proxy.requests
    assert head.startswith(b"CONNECT service.example:443 ")
    assert KEY.encode() not in head


def test_ipv6_address_through_a_socks_proxy(raw_server, trigger):
    def answer(connection, server):
        connection.recv(65536)
        connection.sendall(b"\x05\x00")
        server.requests.append(connection.recv(65536))
        connection.sendall(b"\x05\x00\x00\x01\0\0\0\0\0\0")
        read_request(connection)
        connection.sendall(response("7"))

    proxy = raw_server(answer)
    client = client_of(
        "http://[2001:db8::5]/api", allow_http=True, proxy=f"socks5://127.0.0.1:{proxy.port}"
    )
    assert trigger.send(client).run_id == "7"
    address = socket.inet_pton(socket.AF_INET6, "2001:db8::5")
    assert proxy.requests == [b"\x05\x01\x00\x04" + address + b"\x00\x50"]


def test_socks_proxy(raw_server, trigger):
    """It asks for a password, and leads to the service, which is the same here, once."""

    def answer(connection, server):
        connection.recv(65536)
        connection.sendall(b"\x05\x02")
        assert connection.recv(65536) == b"\x01\x04user\x04hush"
        connection.sendall(b"\x01\x00")
        assert connection.recv(65536).startswith(b"\x05\x01\x00")
        if not server.requests:
            connection.sendall(b"\x05\x00\x00\x01\0\0\0\0\0\0")
            server.requests.append(read_request(connection))
            connection.sendall(response("7"))

    server = raw_server(answer)
    client = client_of(HTTP, allow_http=True, proxy=f"socks5://user:hush@127.0.0.1:{server.port}")
    assert trigger.send(client).run_id == "7"
    check(trigger.send(client), NotSentError, "not sent via the connection's proxy")
    ((head, _),) = server.requests
    assert head.startswith(f"POST /api{trigger.path} ".encode())


# Certificates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "other.example"])
def test_the_service_is_verified(monkeypatch, trigger, host, tmp_path):
    """Who issued its certificate, and for which host."""
    issued = issue_certificate(host, tmp_path)
    keys, journal = [Key(KEY, "demo-flow")], tmp_path / "journal.jsonl"
    with LocalService(keys=keys, certfile=str(issued.certfile), journal=journal) as service:
        failure = check(trigger.send(client_of(service)), NotSentError, "CERTIFICATE_VERIFY_FAILED")
        assert "CA bundle" in failure.next_step
        monkeypatch.setenv("SSL_CERT_FILE", str(issued.ca_bundle))
        outcome = trigger.send(client_of(service))
        if host == "127.0.0.1":
            assert outcome.run_id == "1001"
        else:
            check(outcome, NotSentError, "CERTIFICATE_VERIFY_FAILED")
            assert service.journal.requests() == []


@pytest.fixture
def secure(tmp_path, issued):
    """A service whose certificate no client trusts yet."""
    keys, journal = [Key(KEY, "demo-flow")], tmp_path / "journal.jsonl"
    with LocalService(keys=keys, certfile=str(issued.certfile), journal=journal) as running:
        yield running


@pytest.fixture
def other_bundle(tmp_path):
    """The file of an authority that has not issued the service's certificate."""
    return str(issue_certificate("other.example", tmp_path, "other").ca_bundle)


def folder_of(bundle, folder):
    """Return a folder in which OpenSSL finds the certificate of a file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl names the files in such a folder")

    folder.mkdir()
    shutil.copy(bundle, folder / "ca.pem")
    subprocess.run(["openssl", "rehash", folder], check=True)
    return folder


@pytest.mark.parametrize("variable", CA_VARIABLES)
def test_certificates_of_the_environment(monkeypatch, secure, start, issued, tmp_path, variable):
    bundle = issued.ca_bundle
    if variable == "SSL_CERT_DIR":
        folder = folder_of(bundle, tmp_path / "certificates")
        bundle = f"{tmp_path / 'nowhere'}{os.pathsep}{folder}"
    monkeypatch.setenv(variable, str(bundle))
    assert start.send(client_of(secure)).run_id == "1001"


@pytest.mark.parametrize(("first", "second"), [*itertools.pairwise(["connection", *CA_VARIABLES])])
def test_order_of_the_certificates(
    monkeypatch, secure, start, issued, other_bundle, tmp_path, first, second
):
    """The first that is set counts alone; one that is set to nothing is not set."""
    right = str(issued.ca_bundle)

    def send(first_bundle, second_bundle):
        monkeypatch.setenv(second, second_bundle)
        if first == "connection":
            return start.send(client_of(secure, ca_bundle=first_bundle))
        monkeypatch.setenv(first, first_bundle)
        return start.send(client_of(secure))

    assert send(right, other_bundle).run_id == "1001"
    check(send(other_bundle, right), NotSentError, "CERTIFICATE_VERIFY_FAILED")
    assert send("", right).run_id == "1002"


@pytest.mark.parametrize("content", [None, "", "no certificate"])
@pytest.mark.parametrize("variable", CA_VARIABLES)
def test_certificates_of_the_environment_that_cannot_be_read(
    monkeypatch, tmp_path, variable, content
):
    """They are not looked at where they are not needed."""
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_text(content)
    monkeypatch.setenv(variable, str(bundle))
    with pytest.raises(InvalidRequestError, match=f"environment variable {variable} cannot be"):
        client_of(HTTPS)
    client_of(HTTP, allow_http=True)
    client_of(HTTPS, verify=False)


@pytest.mark.parametrize("variable", ["ca_bundle", *CA_VARIABLES])
def test_folder_in_which_no_certificate_is_found(monkeypatch, tmp_path, issued, variable):
    """OpenSSL looks for certificates by the hash of their subjects, and says nothing of others."""
    options = {}
    if variable == "ca_bundle":
        options["ca_bundle"] = str(tmp_path)
    else:
        monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(InvalidRequestError, match=f"{variable} is a directory .*openssl rehash"):
        client_of(HTTPS, **options)


def test_in_house_certificate_whose_form_python_rejects(monkeypatch, tmp_path, start):
    """As Python 3.13 does, and earlier versions do not."""
    issued = issue_outdated_certificate("127.0.0.1", tmp_path)
    make = ssl.create_default_context

    def make_strict(*args, **options):
        context = make(*args, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", make_strict)
    bundle, journal = str(issued.ca_bundle), tmp_path / "journal.jsonl"
    keys = [Key(KEY, "demo-flow")]
    with LocalService(keys=keys, certfile=str(issued.certfile), journal=journal) as service:
        monkeypatch.setenv("SSL_CERT_FILE", bundle)
        failure = check(start.send(client_of(service)), NotSentError, "CERTIFICATE_VERIFY_FAILED")
        assert "Python 3.13" in failure.next_step
        assert "ca_bundle" in failure.next_step
        assert start.send(client_of(service, ca_bundle=bundle)).run_id == "1001"
