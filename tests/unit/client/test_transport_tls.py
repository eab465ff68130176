"""TLS with a client certificate: a service that rejects it has not seen the request."""

from __future__ import annotations

import contextlib
import socket
import ssl
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from raw_server import response
from workflow_automation_provider.exceptions import NotSentError, OutcomeUnknownError

from .conftest import check, client_of, read_request, trigger_flow

TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3

# The head of a record that holds one byte, its type and a tag: the last byte is sent alone.
LAST_BYTE = b"\x17\x03\x03\x00\x12"


@pytest.fixture
def authority():
    """The authority that the service trusts, and that has issued the service's own certificate."""
    return trustme.CA()


@pytest.fixture
def certificate_of(authority, tmp_path):
    """Return the file of a client's certificate: valid, expired, of another authority, or none."""

    def issue(kind):
        if kind == "missing":
            return None

        issuer = trustme.CA() if kind == "foreign" else authority
        expires = datetime.now(UTC) + timedelta(days=-1 if kind == "expired" else 1)
        issued = issuer.issue_cert("worker.example", not_after=expires)
        path = tmp_path / f"{kind}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return str(path)

    return issue


@pytest.fixture
def service(raw_server, authority, tmp_path):
    """Start a service that wants a client certificate, and return its URL and what it received."""

    def start(version=TLS_1_3, respond=lambda tls: tls.sendall(response("7")), *, is_late=False):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = context.maximum_version = version
        authority.issue_cert("127.0.0.1").configure_cert(context)
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED

        def answer(connection, server):
            if is_late:
                reject_late(context, connection)
            with context.wrap_socket(connection, server_side=True) as tls:
                server.requests.append(read_request(tls))
                respond(tls)

        server = raw_server(answer)
        return server.base_url.replace("http:", "https:"), server.requests

    return start


def reject_late(context, connection):
    """Reject the client's certificate over TLS 1.3, when all of the request has arrived."""
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, to_send, server_side=True)
    received.write(connection.recv(65536))
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    connection.sendall(to_send.read())

    request = b""
    while request[-23:-18] != LAST_BYTE:
        more = connection.recv(65536)
        if not more:
            raise ConnectionError
        request += more
    received.write(request)
    try:
        tls.do_handshake()
    finally:
        connection.sendall(to_send.read())


@pytest.fixture
def client(authority, tmp_path):
    """Return a client of a service that shows a certificate."""
    ca_bundle = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_bundle)

    def make(url, client_cert):
        return client_of(url, ca_bundle=str(ca_bundle), client_cert=client_cert)

    return make


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
def test_client_certificate_that_is_accepted(service, client, certificate_of, trigger, version):
    url, requests = service(version)
    assert trigger.send(client(url, certificate_of("valid"))).run_id == "7"
    assert len(requests) == 1


@pytest.mark.parametrize("value", ["1", "x" * 3_000_000], ids=["small", "large"])
@pytest.mark.parametrize(
    ("version", "kind"),
    [
        (TLS_1_2, "expired"),
        (TLS_1_2, "foreign"),
        (TLS_1_2, "missing"),
        (TLS_1_3, "expired"),
        (TLS_1_3, "foreign"),
        (TLS_1_3, "missing"),
    ],
)
def test_client_certificate_that_is_rejected(
    service, client, certificate_of, start, version, kind, value
):
    """Of a certificate that is missing, TLS 1.2 says only that the handshake failed."""
    url, requests = service(version)
    outcome = start.send(client(url, certificate_of(kind)), value)
    failure = check(outcome, NotSentError, "was not sent", "ALERT")
    assert "client_cert" in failure.next_step
    assert requests == []


@pytest.mark.parametrize("kind", ["expired", "foreign", "missing"])
def test_client_certificate_that_is_rejected_after_the_request(
    service, client, certificate_of, start, kind
):
    """TLS 1.3 lets the client send before the service has looked at the certificate."""
    url, _ = service(is_late=True)
    outcome = start.send(client(url, certificate_of(kind)))
    failure = check(outcome, NotSentError, "was not sent", "ALERT")
    assert "client_cert" in failure.next_step


def test_connection_test_names_the_client_certificate(service, client):
    url, _ = service()
    with pytest.raises(NotSentError, match="ALERT") as caught:
        client(url, None).check()
    assert "client_cert" in caught.value.next_step


def test_tls_that_ends_in_another_way_after_the_request_leaves_a_doubt(
    service, client, certificate_of
):
    """Such as without a close notification, and without a word of the certificate."""
    url, requests = service(respond=lambda tls: tls.shutdown(socket.SHUT_RDWR))
    check(trigger_flow(client(url, certificate_of("valid")), {}), OutcomeUnknownError)
    assert len(requests) == 1
