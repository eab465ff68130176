"""Mailboxes in S3, by the credentials of a role and in all regions, and in a local folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from s3_regions import Regions
from store_proxy import Fault, StoreProxy
from workflow_automation_provider.client.setting_kinds import MAILBOX_EXAMPLE
from workflow_automation_provider.exceptions import InvalidRequestError, NotSentError
from workflow_automation_provider.hooks.mailbox import Mailbox, secrets_of
from workflow_automation_provider.hooks.mailboxes import s3, store
from workflow_automation_provider.operators.batch import _MAX_CONCURRENCY

HOUR = timedelta(hours=1)
FIRST = {"If-None-Match": "*"}
SERVICE = "http://127.0.0.1:1/api"

ROLE = "arn:aws:iam::123456789012:role/reader"


def put(url, body=b"{}", **headers):
    return httpx.put(url, content=body, headers={**FIRST, **headers}).status_code


def s3_error(code):
    return f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()


@pytest.fixture
def mailbox(bucket):
    return Mailbox(bucket.url("callbacks/a.json"))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    s3.open_client.cache_clear()
    monkeypatch.setitem(s3._LIMITS, "retries", {"max_attempts": 0})
    monkeypatch.setattr(store, "_PAUSES", (0.0, 0.0, 0.0))


@pytest.fixture
def reconnect(bucket, s3_port, monkeypatch):
    """Change the connection of the bucket."""

    def change(port=s3_port, *, extra=None, **fields):
        connection = {**bucket.connection(port), **fields}
        connection["extra"] = {**connection["extra"], **(extra or {})}
        monkeypatch.setenv(f"AIRFLOW_CONN_{bucket.conn_id.upper()}", json.dumps(connection))
        s3.open_client.cache_clear()

    return change


@pytest.fixture
def _worker_has_credentials(s3_port, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_port}")


@pytest.fixture
def proxy(s3_port, reconnect):
    """Run a proxy between the connection of the bucket and the store."""
    with StoreProxy(s3_port).running() as running:
        reconnect(running.port)
        yield running


@pytest.fixture
def _all_hosts_are_here(monkeypatch):
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *more, **options: resolve("127.0.0.1", *more, **options)
    )


def reads_probe(seen):
    """Return whether a request reads what the check has written."""
    return seen.method == "GET" and ".mailbox" in seen.target


class TestUrl:
    def test_is_signed_for_one_object_and_the_header(self, bucket, mailbox):
        url = urlsplit(mailbox.sign(HOUR))
        query = parse_qs(url.query)
        assert url.path == f"/{bucket.name}/callbacks/a.json"
        assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
        assert query["X-Amz-SignedHeaders"] == ["host;if-none-match"]
        assert query["X-Amz-Expires"] == ["3600"]
        assert not [name for name in query if "checksum" in name.lower()]
        assert secrets_of(url.geturl()) == query["X-Amz-Signature"]

    @pytest.mark.usefixtures("_all_hosts_are_here")
    def test_keeps_what_the_connection_configures(self, mailbox, bucket, reconnect, s3_port):
        style = {"s3": {"addressing_style": "virtual"}}
        config = bucket.connection(s3_port, **style)["extra"]["config_kwargs"]
        endpoint = f"http://store.localhost:{s3_port}"
        reconnect(extra={"endpoint_url": endpoint, "config_kwargs": config})
        url = mailbox.sign(HOUR)
        assert urlsplit(url).hostname == f"{bucket.name}.store.localhost"

    def test_cannot_be_used_after_seven_days(self, mailbox):
        assert mailbox.sign(timedelta(days=7))
        with pytest.raises(InvalidRequestError, match="7 days") as caught:
            mailbox.sign(timedelta(days=7, seconds=1))
        assert "completion_timeout" in caught.value.next_step

    def test_needs_credentials_that_last(self, mailbox, reconnect):
        reconnect(extra={"aws_session_token": "a-token"})
        with pytest.raises(InvalidRequestError, match="or do not say when"):
            mailbox.sign(HOUR)

    def test_without_credentials_is_an_error_that_may_pass(self, mailbox, reconnect, monkeypatch):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        reconnect(login=None, password=None)
        with pytest.raises(NotSentError, match="Unable to locate credentials"):
            mailbox.sign(HOUR)


class TestRegions:
    @pytest.mark.parametrize(
        ("region", "named", "bucket_name"),
        [
            *itertools.product(
                ["us-east-1", "eu-west-1", "eu-north-1"],
                ["right", None, "us-west-2"],
                ["reports"],
            ),
            ("eu-north-1", None, "my.reports"),
        ],
    )
    def test_the_host_that_is_signed_is_the_one_that_is_read(
        self, tmp_path, monkeypatch, region, named, bucket_name
    ):
        with Regions(region, tmp_path / "ca.pem").running() as regions:
            # Both ways that a worker may reach the outside.
            config = {"proxies": {"https": f"http://127.0.0.1:{regions.port}"}}
            if named == "right":
                config = {}
                monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{regions.port}")
            extra = {
                "region_name": region if named == "right" else named,
                "verify": str(regions.ca_bundle),
                "config_kwargs": config,
            }
            connection = {"conn_type": "aws", "login": "a", "password": "b", "extra": extra}
            monkeypatch.setenv("AIRFLOW_CONN_AWS_TEST", json.dumps(connection))
            monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
            mailbox = Mailbox(f"s3://aws_test@{bucket_name}/callbacks/a.json")
            mailbox.check(HOUR, "https://service.example/api")
            signed = urlsplit(mailbox.sign(HOUR))
            assert not mailbox.exists()
        hosts = {host for _, host in regions.served}
        assert hosts == {signed.hostname}
        assert [method for method, _ in regions.served] == [
            "HEAD",
            "PUT",
            "PUT",
            "GET",
            "GET",
            "GET",
        ]


class TestRole:
    @pytest.fixture
    def sts(self, reconnect):
        """Give the connection a role."""
        from moto.moto_server.threaded_moto_server import ThreadedMotoServer

        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        _, port = server.get_host_and_port()
        sts = {"sts": {"endpoint_url": f"http://127.0.0.1:{port}"}}
        reconnect(extra={"role_arn": ROLE, "service_config": sts})
        yield
        server.stop()

    @pytest.mark.usefixtures("sts")
    def test_must_outlive_the_wait(self, mailbox):
        assert len(secrets_of(mailbox.sign(HOUR / 2))) >= 2  # with the token of the session
        with pytest.raises(InvalidRequestError, match="expire before that") as caught:
            mailbox.sign(2 * HOUR)
        assert "signs for longer" in str(caught.value)

    @pytest.mark.usefixtures("sts")
    def test_is_not_shown_at_debug(self, mailbox, caplog, monkeypatch):
        with caplog.at_level(logging.DEBUG):
            mailbox.check(HOUR / 2, SERVICE)
            mailbox.exists()
            mailbox.read(9)
            url = mailbox.sign(HOUR / 2)
            # A period may end at any time: then a new client asks for the role.
            monkeypatch.setattr(store, "_CLIENT_SECONDS", 1e-6)
            mailbox._store.create("callbacks/b.json")
            logging.getLogger("urllib3.connectionpool").debug("of others")
        credentials = mailbox._store._opened().credentials
        secrets = [credentials.secret_key, *secrets_of(url), "X-Amz-Signature", "SecretAccessKey"]
        assert "of others" in caplog.text
        assert not [secret for secret in secrets if secret in caplog.text]

    @pytest.mark.parametrize(
        ("status", "code", "error"),
        [
            (403, "AccessDenied", InvalidRequestError),
            (400, "Throttling", NotSentError),
            (503, "Unavailable", NotSentError),
        ],
    )
    def test_that_is_not_given(self, mailbox, reconnect, answering, status, code, error):
        body = f"<Response>{s3_error(code).decode()}</Response>".encode()
        sts = {"sts": {"endpoint_url": f"http://127.0.0.1:{answering(status, body)}"}}
        reconnect(extra={"role_arn": ROLE, "service_config": sts})
        with pytest.raises(error, match=code):
            mailbox.check(HOUR / 2, SERVICE)
        for ask in (mailbox.exists, lambda: mailbox.read(9)):
            with pytest.raises(NotSentError, match=code):
                ask()

    def test_whose_service_hangs_ends_in_time(self, mailbox, reconnect, monkeypatch):
        monkeypatch.setitem(s3._LIMITS, "read_timeout", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            sts = {"sts": {"endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}"}}
            reconnect(extra={"role_arn": ROLE, "service_config": sts})
            began = time.monotonic()
            with pytest.raises(NotSentError, match="ReadTimeout"):
                mailbox.check(HOUR / 2, SERVICE)
        assert time.monotonic() - began < 10


class TestCheck:
    def test_takes_four_requests_and_one_more_where_it_is_the_first(self, mailbox, proxy, bucket):
        mailbox.check(HOUR, SERVICE)
        assert bucket.keys() == ["callbacks/.mailbox"]
        assert [seen.method for seen in proxy.seen] == ["HEAD", "PUT", "PUT", "GET", "GET"]
        del proxy.seen[:]
        s3.open_client.cache_clear()
        mailbox.check(HOUR, SERVICE)
        assert [seen.method for seen in proxy.seen] == ["HEAD", "PUT", "GET", "GET"]
        assert bucket.read("callbacks/.mailbox") == b"\n"

    def test_needs_no_folder(self, bucket):
        Mailbox(bucket.url("a.json")).check(HOUR, SERVICE)
        assert bucket.keys() == [".mailbox"]

    def test_of_a_bucket_that_does_not_tell_its_region(self, mailbox, proxy):
        proxy.faults.append(Fault(status=403, body=s3_error("AccessDenied"), times=None))
        with pytest.raises(InvalidRequestError, match="AccessDenied"):
            mailbox.check(HOUR, SERVICE)

    def test_of_objects_that_cannot_be_decrypted(self, mailbox, proxy):
        proxy.faults.append(
            Fault(reads_probe, status=403, body=s3_error("AccessDenied"), times=None)
        )
        with pytest.raises(InvalidRequestError, match="kms:Decrypt"):
            mailbox.check(HOUR, SERVICE)

    def test_of_a_store_that_loses_what_was_written(self, mailbox, proxy):
        proxy.faults.append(Fault(reads_probe, status=404, body=s3_error("NoSuchKey"), times=None))
        with pytest.raises(NotSentError, match=r"callbacks/\.mailbox"):
            mailbox.check(HOUR, SERVICE)

    def test_with_a_connection_that_is_not_usable(self, mailbox, reconnect):
        reconnect(1, extra={"region_name": "a b"})
        with pytest.raises(InvalidRequestError, match="a b"):
            mailbox.check(HOUR, SERVICE)

    @pytest.mark.usefixtures("_worker_has_credentials")
    def test_without_a_connection(self, bucket):
        Mailbox(f"s3://{bucket.name}/callbacks/a.json").check(HOUR, SERVICE)
        assert bucket.keys() == ["callbacks/.mailbox"]

    @pytest.mark.usefixtures("_worker_has_credentials")
    def test_with_a_connection_that_does_not_exist(self, bucket):
        """Airflow's amazon provider would take the credentials of the worker."""
        mailbox = Mailbox(f"s3://typo@{bucket.name}/callbacks/a.json")
        for ask in (mailbox.exists, lambda: mailbox.check(HOUR, SERVICE)):
            with pytest.raises(NotSentError, match="`typo` isn't defined"):
                ask()
        assert bucket.keys() == []

    @pytest.mark.usefixtures("_all_hosts_are_here")
    def test_needs_tls_unless_http_is_allowed(self, mailbox, reconnect, s3_port):
        reconnect(extra={"endpoint_url": f"http://minio:{s3_port}"})
        with pytest.raises(InvalidRequestError, match=r"minio has no TLS[\s\S]*allow_http"):
            mailbox.check(HOUR, SERVICE)
        mailbox.check(HOUR, SERVICE, allow_http=True)


class TestLook:
    def test_asks_for_one_byte(self, bucket, mailbox, proxy):
        bucket.write("callbacks/a.json", b"x" * 1000)
        assert mailbox.exists()
        assert proxy.counts() == {"HEAD": 1, "GET": 1}

    def test_keeps_few_clients(self, bucket, mailbox, proxy):
        mailbox.exists()
        for number in range(store.MAX_CLIENTS):
            with contextlib.suppress(NotSentError):
                Mailbox(f"s3://{bucket.conn_id}@none{number}/a.json").exists()
        assert s3.open_client.cache_info().currsize == store.MAX_CLIENTS
        mailbox.exists()
        assert proxy.counts()["HEAD"] == store.MAX_CLIENTS + 2


def test_a_connection_is_kept_for_each_thread_of_a_batch(bucket):
    client = s3.open_client(bucket.conn_id, bucket.name, 0.0).client
    assert client.meta.config.max_pool_connections >= _MAX_CONCURRENCY


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
        mailbox = Mailbox(f"{tmp_path.as_uri()}/a folder/a.json")
        for _ in range(2):
            mailbox.check(HOUR, SERVICE)
        url = mailbox.sign(HOUR)
        assert (mailbox.exists(), mailbox.read(9)) == (False, None)
        path = tmp_path / "a folder" / "a.json"
        assert url == path.as_uri()
        path.write_bytes(b"x" * 100)
        assert mailbox.exists()
        written = mailbox.read(9)
        assert written is not None
        assert written.body == b"x" * 10
        assert abs(written.at - datetime.now(UTC)) < timedelta(minutes=1)

    def test_for_a_service_elsewhere_is_an_error(self, tmp_path):
        with pytest.raises(InvalidRequestError, match="callback_base_url") as caught:
            Mailbox(f"{tmp_path.as_uri()}/a.json").check(HOUR, "https://service.example/api")
        assert MAILBOX_EXAMPLE in str(caught.value)
        assert [*tmp_path.iterdir()] == []

    def test_that_cannot_be_read_is_an_error(self, tmp_path):
        (tmp_path / "a.json").mkdir()
        with pytest.raises(NotSentError, match="IsADirectoryError"):
            Mailbox(f"{tmp_path.as_uri()}/a.json").read(9)

    def test_in_a_folder_that_cannot_be_made_is_an_error(self, tmp_path):
        (tmp_path / "a").touch()
        with pytest.raises(NotSentError, match="Error: "):
            Mailbox(f"{tmp_path.as_uri()}/a/b.json").check(HOUR, SERVICE)
