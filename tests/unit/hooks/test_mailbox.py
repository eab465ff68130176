"""Mailboxes: what a run can write by a URL, and what Airflow reads of it."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from workflow_automation_provider.exceptions import InvalidRequestError, NotSentError
from workflow_automation_provider.hooks import mailbox as mailboxes
from workflow_automation_provider.hooks.mailbox import open_mailbox, secrets_of

HOUR = timedelta(hours=1)
FIRST = {"If-None-Match": "*"}


def put(url, body=b"{}", **headers):
    return httpx.put(url, content=body, headers={**FIRST, **headers}).status_code


@pytest.fixture
def mailbox(bucket):
    return open_mailbox(bucket.url("callbacks/a.json"))


def reconnect(monkeypatch, bucket, port, **fields):
    """Change the connection of a bucket."""
    connection = {**bucket.connection(port), **fields}
    monkeypatch.setenv(f"AIRFLOW_CONN_{bucket.conn_id.upper()}", json.dumps(connection))
    mailboxes._client_of.cache_clear()


class TestS3:
    def test_takes_the_first_end_alone(self, mailbox):
        url = mailbox.upload_url(HOUR)
        assert (mailbox.exists(), mailbox.read(10)) == (False, None)
        assert [put(url, b"first"), put(url, b"second")] == [200, 412]
        assert mailbox.exists()
        written = mailbox.read(10)
        assert written.body == b"first"
        assert abs(written.at - datetime.now(UTC)) < timedelta(minutes=1)

    def test_takes_json_as_a_flow_sends_it(self, mailbox):
        assert put(mailbox.upload_url(HOUR), **{"Content-Type": "application/json"}) == 200

    def test_url_is_signed_for_one_object_and_the_header(self, bucket, mailbox):
        url = urlsplit(mailbox.upload_url(HOUR))
        query = parse_qs(url.query)
        assert url.path == f"/{bucket.name}/callbacks/a.json"
        assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
        assert query["X-Amz-SignedHeaders"] == ["host;if-none-match"]
        assert query["X-Amz-Expires"] == [str(75 * 60)]
        assert not [name for name in query if "checksum" in name.lower()]
        assert secrets_of(url.geturl()) == query["X-Amz-Signature"]

    def test_keeps_what_the_connection_configures(self, bucket, s3_port, monkeypatch):
        reconnect(monkeypatch, bucket, s3_port)
        style = {"s3": {"addressing_style": "virtual"}}
        connection = bucket.connection(s3_port, **style)
        connection["extra"]["endpoint_url"] = f"http://store.localhost:{s3_port}"
        resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", lambda _, *more: resolve("127.0.0.1", *more))
        reconnect(monkeypatch, bucket, s3_port, **connection)
        url = open_mailbox(bucket.url("a.json")).upload_url(HOUR)
        assert urlsplit(url).hostname == f"{bucket.name}.store.localhost"

    def test_reads_no_more_than_was_asked_for(self, bucket, mailbox):
        bucket.write("callbacks/a.json", b"x" * 1_000_000)
        assert mailbox.read(10).body == b"x" * 11

    def test_cannot_be_written_after_seven_days(self, mailbox):
        longest = timedelta(days=7) - mailboxes.MARGIN
        assert mailbox.upload_url(longest)
        with pytest.raises(InvalidRequestError, match=r"completion_timeout is 7 days.*7 days"):
            mailbox.upload_url(timedelta(days=7))

    def test_needs_credentials_that_last(self, bucket, s3_port, monkeypatch, mailbox):
        extra = {**bucket.connection(s3_port)["extra"], "aws_session_token": "a-token"}
        reconnect(monkeypatch, bucket, s3_port, extra=extra)
        with pytest.raises(InvalidRequestError, match="do not say when they expire"):
            mailbox.upload_url(HOUR)

    def test_needs_a_role_that_outlives_the_wait(self, bucket, s3_port, monkeypatch, mailbox):
        from moto.moto_server.threaded_moto_server import ThreadedMotoServer

        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        try:
            _, port = server.get_host_and_port()
            extra = {
                **bucket.connection(s3_port)["extra"],
                "role_arn": "arn:aws:iam::123456789012:role/reader",
                "service_config": {"sts": {"endpoint_url": f"http://127.0.0.1:{port}"}},
            }
            reconnect(monkeypatch, bucket, s3_port, extra=extra)
            url = mailbox.upload_url(timedelta(minutes=30))
            assert len(secrets_of(url)) == 2  # with the token of the session
            with pytest.raises(InvalidRequestError, match="expire before that") as caught:
                mailbox.upload_url(HOUR)
        finally:
            server.stop()
        assert "access key of its own" in str(caught.value)

    def test_without_credentials_is_an_error(self, bucket, s3_port, monkeypatch, mailbox):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        reconnect(monkeypatch, bucket, s3_port, login=None, password=None)
        with pytest.raises(InvalidRequestError, match=f"connection {bucket.conn_id} has none"):
            mailbox.upload_url(HOUR)

    def test_with_a_connection_that_is_not_usable_is_an_error(self, bucket, monkeypatch, mailbox):
        reconnect(monkeypatch, bucket, 1, conn_type="aws", extra={"region_name": "a b"})
        with pytest.raises(InvalidRequestError, match=f"bucket {bucket.name} cannot be used"):
            mailbox.upload_url(HOUR)

    def test_forbidden_is_not_yet(self, bucket, mailbox, monkeypatch, caplog, answering):
        reconnect(monkeypatch, bucket, answering(403))
        assert [mailbox.exists(), mailbox.exists(), mailbox.read(9)] == [False, False, None]
        assert caplog.text.count("s3:GetObject") == 1

    def test_that_cannot_be_asked_is_an_error(self, bucket, mailbox, monkeypatch, answering):
        reconnect(monkeypatch, bucket, answering(400))
        for ask in (mailbox.exists, lambda: mailbox.read(9)):
            with pytest.raises(NotSentError, match=rf"s3://{bucket.name}/callbacks/a\.json"):
                ask()

    def test_that_cannot_be_asked_starts_nothing(self, bucket, mailbox, monkeypatch, answering):
        body = b"<Error><Code>NoSuchBucket</Code><Message>No.</Message></Error>"
        reconnect(monkeypatch, bucket, answering(404, body))
        with pytest.raises(NotSentError, match="NoSuchBucket"):
            mailbox.upload_url(HOUR)

    def test_is_not_read_as_missing_where_its_role_is_denied(
        self, bucket, s3_port, mailbox, monkeypatch, answering
    ):
        body = (
            b"<Response><Error><Code>AccessDenied</Code><Message>No.</Message></Error></Response>"
        )
        sts = {"endpoint_url": f"http://127.0.0.1:{answering(403, body)}"}
        extra = {
            **bucket.connection(s3_port)["extra"],
            "role_arn": "arn:aws:iam::123456789012:role/reader",
            "service_config": {"sts": sts},
        }
        reconnect(monkeypatch, bucket, s3_port, extra=extra)
        for ask in (mailbox.exists, lambda: mailbox.read(9)):
            with pytest.raises(NotSentError, match="AccessDenied"):
                ask()

    def test_logs_no_signature(self, mailbox, caplog):
        with caplog.at_level(logging.DEBUG):
            secrets = secrets_of(mailbox.upload_url(HOUR))
        assert "StringToSign" in caplog.text, "the lines of a request are seen"
        assert not [secret for secret in secrets if secret in caplog.text]

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (403, "InvalidAccessKeyId"),
            (403, "SignatureDoesNotMatch"),
            (403, "RequestTimeTooSkewed"),
            (404, "NoSuchBucket"),
        ],
    )
    def test_is_not_read_as_missing_where_nothing_is_known(
        self, bucket, mailbox, monkeypatch, answering, status, code
    ):
        body = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
        reconnect(monkeypatch, bucket, answering(status, body))
        with pytest.raises(NotSentError, match=code):
            mailbox.read(9)

    @pytest.mark.parametrize("answers", [True, False])
    def test_that_does_not_answer_is_an_error(self, bucket, mailbox, monkeypatch, answers):
        monkeypatch.setitem(mailboxes._CONFIG, "read_timeout", 0.2)
        monkeypatch.setitem(mailboxes._CONFIG, "retries", {"max_attempts": 0})
        with socket.create_server(("127.0.0.1", 0)) as server:
            if answers:
                threading.Thread(target=_hang_up, args=(server,), daemon=True).start()
            reconnect(monkeypatch, bucket, server.getsockname()[1])
            for ask in (mailbox.exists, lambda: mailbox.read(9)):
                with pytest.raises(NotSentError, match="cannot be read"):
                    ask()


def _hang_up(server):
    """Close each connection in place of a response."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)


@pytest.fixture
def answering():
    """Start servers that answer each request with one status."""
    from werkzeug.serving import make_server
    from werkzeug.wrappers import Response

    servers = []

    def start(status, body=b""):
        server = make_server("127.0.0.1", 0, Response(body, status), threaded=True)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.port

    yield start
    for server in servers:
        server.shutdown()


class TestFile:
    def test_is_read_once_it_is_there(self, tmp_path):
        mailbox = open_mailbox(f"{tmp_path.as_uri()}/a folder/a.json")
        url = mailbox.upload_url(HOUR)
        assert (mailbox.exists(), mailbox.read(9)) == (False, None)
        path = tmp_path / "a folder" / "a.json"
        assert url == path.as_uri()
        path.write_bytes(b"x" * 100)
        assert mailbox.exists()
        written = mailbox.read(9)
        assert written is not None
        assert written.body == b"x" * 10
        assert abs(written.at - datetime.now(UTC)) < timedelta(minutes=1)

    def test_that_cannot_be_read_is_an_error(self, tmp_path):
        (tmp_path / "a.json").mkdir()
        with pytest.raises(NotSentError, match="IsADirectoryError"):
            open_mailbox(f"{tmp_path.as_uri()}/a.json").read(9)

    def test_in_a_folder_that_cannot_be_made_is_an_error(self, tmp_path):
        (tmp_path / "a").touch()
        with pytest.raises(InvalidRequestError, match="cannot be made"):
            open_mailbox(f"{tmp_path.as_uri()}/a/b.json").upload_url(HOUR)
