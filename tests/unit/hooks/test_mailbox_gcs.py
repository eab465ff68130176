"""Mailboxes in Google Cloud Storage: what is signed, by whom and for how long, and what is read."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from store_proxy import Fault, StoreProxy
from workflow_automation_provider.exceptions import InvalidRequestError, NotSentError
from workflow_automation_provider.hooks.mailbox import Mailbox, secrets_of
from workflow_automation_provider.hooks.mailboxes import gcs, store

pytest.importorskip("google.cloud.storage")
pytest.importorskip("airflow.providers.google.common.hooks.base_google")

from google_cloud import ACCOUNT, TOKEN, GoogleCloud

HOUR = timedelta(hours=1)
FIRST = {"x-goog-if-generation-match": "0"}
SERVICE = "http://127.0.0.1:1/api"
STORE = "storage.googleapis.com"
IAM = "iamcredentials.googleapis.com"

KEY_FILE, IMPERSONATION, WORKLOAD_IDENTITY = "key file", "impersonation", "workload identity"
every_way = pytest.mark.parametrize(
    "signer", [KEY_FILE, IMPERSONATION, WORKLOAD_IDENTITY], indirect=True
)
by_iam = pytest.mark.parametrize("signer", [IMPERSONATION, WORKLOAD_IDENTITY], indirect=True)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    ca_bundle = tmp_path_factory.mktemp("google") / "ca.pem"
    with GoogleCloud().running(ca_bundle) as cloud:
        yield cloud, ca_bundle


@pytest.fixture
def cloud(running, monkeypatch):
    """Google's services, by their real names."""
    cloud, ca_bundle = running
    for seen in (cloud.objects, cloud.served, cloud.tunnels, cloud.refuses):
        seen.clear()
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{cloud.port}")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(ca_bundle))
    monkeypatch.setattr(store, "_PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(gcs, "_RETRY_SECONDS", 0)
    return cloud


@pytest.fixture
def reconnect(cloud, monkeypatch):
    """Change the connection."""

    def change(**extra):
        connection = {"conn_type": "google_cloud_platform", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_GCS_TEST", json.dumps(connection))
        gcs.open_client.cache_clear()

    change(keyfile_dict=cloud.key_file())
    return change


@pytest.fixture
def signer(request, reconnect, cloud, monkeypatch):
    """Change who signs."""
    if request.param == IMPERSONATION:
        reconnect(keyfile_dict=cloud.key_file(), impersonation_chain=ACCOUNT)
    if request.param == WORKLOAD_IDENTITY:
        from google.auth import compute_engine

        monkeypatch.setattr("google.auth.default", lambda **_: (compute_engine.Credentials(), None))
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{cloud.port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        reconnect()
    return request.param


@pytest.fixture
def mailbox(reconnect):
    return Mailbox("gs://gcs_test@reports/callbacks/a.json")


@pytest.fixture
def proxy(cloud, mailbox, monkeypatch):
    """Run a proxy before the store, which is at an address of its own."""
    with StoreProxy(cloud.port).running() as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{running.port}")
        yield running


@pytest.fixture
def put(cloud):
    """Write by a URL as a flow does, and return the status."""

    def write(url, body=b"{}", headers=FIRST):
        proxy = f"http://127.0.0.1:{cloud.port}"
        sent = httpx.put(url, content=body, headers=headers, proxy=proxy, verify=tls)
        return sent.status_code

    tls = httpx.create_ssl_context()
    cloud.authority.configure_trust(tls)
    return write


class TestUrl:
    @every_way
    def test_takes_the_first_end_alone(self, mailbox, signer, put):
        url = mailbox.sign(HOUR)
        assert (mailbox.exists(), mailbox.read(10)) == (False, None)
        assert [put(url, b"first"), put(url, b"second")] == [200, 412]
        assert mailbox.exists()
        written = mailbox.read(10)
        assert written.body == b"first"
        assert abs(written.at - datetime.now(UTC)) < timedelta(minutes=1)

    def test_is_signed_for_one_object_and_the_header(self, mailbox):
        url = urlsplit(mailbox.sign(HOUR))
        query = parse_qs(url.query)
        assert (url.scheme, url.netloc, url.path) == ("https", STORE, "/reports/callbacks/a.json")
        assert query["X-Goog-Algorithm"] == ["GOOG4-RSA-SHA256"]
        assert query["X-Goog-SignedHeaders"] == ["host;x-goog-if-generation-match"]
        assert query["X-Goog-Expires"] == ["3600"]
        assert secrets_of(url.geturl()) == query["X-Goog-Signature"]

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({**FIRST, "Content-Type": "application/json"}, 200),
            ({}, 403),
            ({"x-goog-if-generation-match": "1"}, 403),
            ({**FIRST, "x-goog-acl": "public-read"}, 403),
        ],
    )
    def test_takes_what_was_signed_alone(self, mailbox, put, headers, status):
        assert put(mailbox.sign(HOUR), headers=headers) == status

    def test_takes_no_other_object(self, mailbox, put, cloud):
        assert put(mailbox.sign(HOUR).replace("a.json", "b.json")) == 403
        assert cloud.objects == {}

    def test_takes_nothing_once_it_has_expired(self, mailbox, put):
        url = mailbox.sign(timedelta(seconds=1))
        time.sleep(1.1)
        assert put(url) == 400

    @pytest.mark.parametrize(
        ("signer", "hours"),
        [(KEY_FILE, 7 * 24), (IMPERSONATION, 12), (WORKLOAD_IDENTITY, 12)],
        indirect=["signer"],
    )
    def test_cannot_be_used_for_longer_than_its_key(self, mailbox, signer, hours):
        assert mailbox.sign(hours * HOUR)
        with pytest.raises(InvalidRequestError, match="completion_timeout") as caught:
            mailbox.check(hours * HOUR + timedelta(seconds=1), SERVICE)
        assert str(hours * HOUR) in str(caught.value)

    @pytest.mark.parametrize(
        ("signer", "requests"),
        [(KEY_FILE, 0), (IMPERSONATION, 1), (WORKLOAD_IDENTITY, 1)],
        indirect=["signer"],
    )
    def test_costs_a_request_where_iam_signs(self, mailbox, signer, cloud, requests):
        mailbox.sign(HOUR)
        del cloud.served[:]
        mailbox.sign(HOUR)
        assert len(cloud.asked(IAM)) == requests
        assert cloud.asked(STORE) == []

    def test_needs_credentials_that_can_sign(self, mailbox, reconnect, proxy, monkeypatch):
        monkeypatch.setattr("google_cloud.TOKEN", None)
        reconnect(is_anonymous=True)
        proxy.faults.append(Fault(status=200, body=b"{}", times=None))
        with pytest.raises(InvalidRequestError, match="AnonymousCredentials"):
            mailbox.check(HOUR, SERVICE)

    @by_iam
    @pytest.mark.parametrize(
        ("status", "code", "error"),
        [
            (403, "PERMISSION_DENIED", InvalidRequestError),
            (404, "NOT_FOUND", InvalidRequestError),
            (429, "RESOURCE_EXHAUSTED", NotSentError),
        ],
    )
    def test_that_iam_does_not_sign(self, mailbox, signer, cloud, status, code, error):
        cloud.refuses["signBlob"] = status, code
        with pytest.raises(error, match=code) as caught:
            mailbox.check(HOUR, SERVICE)
        assert ("signBlob for its" in str(caught.value)) == (error is InvalidRequestError)


class TestCheck:
    def test_takes_five_requests_and_one_more_where_it_is_the_first(self, mailbox, cloud):
        put, look = "PUT /reports/callbacks/.mailbox", "/storage/v1/b/reports/o"
        reads = [
            f"GET {look}/callbacks/.mailbox",
            f"GET /download{look}/callbacks/.mailbox",
            f"GET {look}/callbacks/a.json",
        ]
        mailbox.check(HOUR, "https://service.example/api")
        assert cloud.asked(STORE) == [f"GET {look}", put, put, *reads]
        assert cloud.objects["callbacks/.mailbox"][0] == b"\n"
        del cloud.served[:]
        gcs.open_client.cache_clear()
        mailbox.check(HOUR, "https://service.example/api")
        assert cloud.asked(STORE) == [f"GET {look}", put, *reads]

    def test_of_another_bucket(self, cloud, reconnect):
        with pytest.raises(InvalidRequestError, match="does not exist"):
            Mailbox("gs://gcs_test@others/a.json").check(HOUR, SERVICE)

    @pytest.mark.parametrize(
        ("extra", "named"),
        [
            ({"keyfile_dict": {"type": "service_account"}}, "private_key"),
            ({"keyfile_dict": {"private_key": "hush-hush", "client_email": "a"}}, "token_uri"),
            ({"key_path": "/nowhere/key.json"}, "/nowhere/key.json"),
        ],
    )
    def test_with_a_key_file_that_is_none(self, mailbox, reconnect, extra, named):
        reconnect(**extra)
        with pytest.raises((InvalidRequestError, NotSentError), match=named) as caught:
            mailbox.check(HOUR, SERVICE)
        assert "hush-hush" not in str(caught.value)

    def test_of_an_account_that_may_not_be_impersonated(self, mailbox, reconnect, cloud):
        reconnect(keyfile_dict=cloud.key_file(), impersonation_chain=ACCOUNT)
        cloud.refuses["generateAccessToken"] = 403, "PERMISSION_DENIED"
        with pytest.raises(InvalidRequestError, match="PERMISSION_DENIED"):
            mailbox.check(HOUR, SERVICE)
        cloud.refuses["generateAccessToken"] = 503, "UNAVAILABLE"
        with pytest.raises(NotSentError, match="UNAVAILABLE"):
            mailbox.check(HOUR, SERVICE)


class TestLook:
    def test_lists_a_folder_by_the_thousand(self, reconnect, cloud):
        folder = Mailbox("gs://gcs_test@reports/batch")
        for number in range(1500):
            cloud.objects[f"batch/{number}.json"] = b"", datetime.now(UTC)
        cloud.objects["batch/x.json"] = cloud.objects["batchx/1500.json"] = b"", datetime.now(UTC)
        assert folder.indexes() == set(range(1500))
        assert len(cloud.asked(STORE)) == 3

    def test_of_another_bucket(self, cloud, reconnect):
        mailbox = Mailbox("gs://gcs_test@others/a.json")
        for ask in (mailbox.exists, lambda: mailbox.read(9), mailbox.indexes):
            with pytest.raises(NotSentError, match="does not exist"):
                ask()

    def test_keeps_the_connections_of_many_threads(self, mailbox, cloud):
        at_once = threading.Barrier(16)

        def read(_):
            at_once.wait()
            mailbox.read(9)

        mailbox.exists()
        with ThreadPoolExecutor(16) as threads:
            for _ in range(3):
                [*threads.map(read, range(16))]
        assert cloud.tunnels.count(STORE) <= 16


@every_way
def test_no_secret_is_shown_at_debug(mailbox, signer, cloud, log_all):
    url, logged = log_all(mailbox, SERVICE, "google.auth.transport.requests")
    key = [line for line in cloud.pem.splitlines() if "KEY" not in line]
    secrets = [TOKEN, *key, *secrets_of(url), "X-Goog-Signature", "private_key"]
    assert "of others" in logged
    assert not [secret for secret in secrets if secret in logged]
