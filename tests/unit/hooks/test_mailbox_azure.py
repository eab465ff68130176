"""Mailboxes in Azure Blob Storage: who signs and for how long, and what a URL can do."""

from __future__ import annotations

import json
import logging
import time
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

pytest.importorskip("airflow.providers.microsoft.azure.hooks.wasb")

from azure_account import DELEGATED, HEADERS, KEY, NAME, TOKEN, AzureAccount, signature
from workflow_automation_provider.exceptions import InvalidRequestError, NotSentError
from workflow_automation_provider.hooks.mailbox import Mailbox, secrets_of
from workflow_automation_provider.hooks.mailboxes import azure, store
from workflow_automation_provider.operators.batch import _MAX_CONCURRENCY

HOUR = timedelta(hours=1)
SERVICE = "http://127.0.0.1:1/api"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setitem(azure._LIMITS, "retry_total", 0)
    monkeypatch.setattr(store, "_PAUSES", (0.0, 0.0, 0.0))
    azure.open_client.cache_clear()


@pytest.fixture
def account():
    with AzureAccount("box").running() as account:
        yield account


@pytest.fixture
def connect(monkeypatch):
    """Define the connection."""

    def define(**fields):
        connection = {"conn_type": "wasb", **fields}
        monkeypatch.setenv("AIRFLOW_CONN_AZURE_TEST", json.dumps(connection))
        azure.open_client.cache_clear()
        return Mailbox("abfs://azure_test@box/a folder/a.json")

    return define


@pytest.fixture
def mailbox(account, connect):
    return connect(host=f"http://127.0.0.1:{account.port}/{NAME}", login=NAME, password=KEY)


@pytest.fixture
def identity(tmp_path, monkeypatch):
    """Start an account that takes the token of a managed identity alone, with TLS."""
    ca_bundle = tmp_path / "ca.pem"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(ca_bundle))
    with AzureAccount("box").running(ca_bundle) as account, AzureAccount("").running() as gives:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{gives.port}/token")
        monkeypatch.setenv("IDENTITY_HEADER", "a-header")
        yield account


@pytest.fixture
def managed(identity, connect):
    return connect(host=f"https://127.0.0.1:{identity.port}/{NAME}")


@pytest.mark.parametrize(
    "fields",
    [
        {"login": NAME, "password": KEY},
        {"login": NAME, "extra": {"shared_access_key": KEY}},
        {"login": NAME, "extra": {"account_key": KEY}},
        {"extra": {"connection_string": f"AccountName={NAME};AccountKey={KEY};BlobEndpoint=HOST"}},
    ],
)
def test_each_form_of_an_account_key_signs(account, connect, fields):
    host = f"http://127.0.0.1:{account.port}/{NAME}"
    mailbox = connect(host=host, **json.loads(json.dumps(fields).replace("HOST", host)))
    mailbox.check(HOUR, SERVICE)
    assert [*account.blobs] == ["a folder/.mailbox"]


@pytest.mark.parametrize(
    "extra", [{"sas_token": "sv=2026-02-06&sig=hush"}, {"sas_token": "https://a.example/?sig=hush"}]
)
def test_a_sas_cannot_sign(connect, extra):
    mailbox = connect(host="https://a.blob.core.windows.net", login="a", extra=extra)
    with pytest.raises(InvalidRequestError, match="account key") as caught:
        mailbox.check(HOUR, SERVICE)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "https://a.blob.core.windows.net", "login": "a", "password": "hushx"},
        {"extra": {"connection_string": "hush"}},
    ],
)
def test_with_a_connection_that_is_not_usable(connect, fields):
    with pytest.raises(InvalidRequestError) as caught:
        connect(**fields).check(HOUR, SERVICE)
    assert "hush" not in str(caught.value)


def test_the_url_can_create_one_blob_and_nothing_else(mailbox, account):
    url = mailbox.sign(HOUR)
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    assert parts.path == f"/{NAME}/box/a%20folder/a.json"
    assert (query["sp"], query["sr"]) == ("c", "b")
    assert query["sig"] == signature(query, "box/a folder/a.json")
    assert httpx.put(url, content=b"1").status_code == 400
    assert httpx.get(url).status_code == 403
    other = url.replace("a.json", "b.json")
    assert httpx.put(other, content=b"1", headers=HEADERS).status_code == 403
    assert httpx.put(url, content=b"1", headers=HEADERS).status_code == 201
    assert [*account.blobs] == ["a folder/a.json"]


def test_the_url_expires(mailbox):
    url = mailbox.sign(timedelta(seconds=1))
    time.sleep(2)
    assert httpx.put(url, content=b"1", headers=HEADERS).status_code == 403


def test_an_account_key_signs_for_longer_than_a_week(mailbox):
    assert mailbox.sign(timedelta(days=60))


def test_the_signature_is_hidden_as_it_is_written_and_decoded(mailbox):
    while "%" not in (url := mailbox.sign(HOUR)).partition("sig=")[2].removesuffix("%3D"):
        time.sleep(1)  # it is another with each second
    written, decoded = secrets_of(url)
    assert url.endswith(f"&sig={written}")
    assert parse_qs(urlsplit(url).query)["sig"] == [decoded]


# A managed identity -------------------------------------------------------------------------------


def test_a_managed_identity_signs_with_a_key_that_it_is_given(managed, identity):
    managed.check(HOUR, "https://service.example/api")
    url = managed.sign(HOUR)
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert (query["sp"], query["skoid"]) == ("c", "oid")
    assert query["sig"] == signature(query, "box/a folder/a.json")
    assert query["skt"] < query["se"] <= query["ske"]
    assert managed.read(9) is None


def test_the_urls_of_a_batch_cost_one_key(managed, identity):
    for _ in range(5):
        managed.sign(HOUR)
    asked = [seen for seen in identity.seen if seen.startswith("POST")]
    assert len(asked) in (1, 2)  # two where one key is succeeded by the next


def test_a_connection_is_kept_for_each_thread_of_a_batch(managed):
    transport = managed._store._client()._config.transport
    adapter = transport.session.get_adapter("https://account.blob.core.windows.net")
    assert adapter._pool_maxsize >= _MAX_CONCURRENCY


def test_a_managed_identity_signs_for_seven_days_less_a_margin(managed):
    assert managed.sign(azure.MAX_LIFETIME_BY_DELEGATION)
    with pytest.raises(InvalidRequestError, match="completion_timeout") as caught:
        managed.check(azure.MAX_LIFETIME_BY_DELEGATION + timedelta(seconds=1), SERVICE)
    assert "signs for longer" in str(caught.value)


def test_a_token_that_is_not_given_may_be_given_later(managed, monkeypatch):
    monkeypatch.setenv("IDENTITY_ENDPOINT", "http://127.0.0.1:1/token")
    with pytest.raises(NotSentError, match="ManagedIdentityCredential"):
        managed.exists()


def test_no_token_and_no_key_is_shown_at_debug(identity, connect, caplog):
    """Nor where the connection has the client log what it sends and gets."""
    logs = {"logging_enable": True, "logging_body": True}
    managed = connect(host=f"https://127.0.0.1:{identity.port}/{NAME}", extra=logs)
    with caplog.at_level(logging.DEBUG):
        managed.check(HOUR, SERVICE)
        managed.exists()
        managed.indexes()
        url = managed.sign(HOUR)
    logged = "".join(str(vars(record)) for record in caplog.records)
    secrets = [TOKEN, DELEGATED, "sig=", *secrets_of(url)]
    assert not [secret for secret in secrets if secret in logged]


# What the store says ------------------------------------------------------------------------------


def test_where_an_overwrite_is_refused_as_a_missing_right_a_fresh_name_is_written(
    mailbox, account, monkeypatch
):
    """As by Azurite."""
    monkeypatch.setattr("azure_account.OVERWRITE", "AuthorizationPermissionMismatch")
    mailbox.check(HOUR, SERVICE)
    written = [*account.blobs]
    assert len(written) == 2
    assert all(name.startswith("a folder/.mailbox") for name in written)


def test_of_an_error_the_code_and_one_line_are_shown(mailbox, monkeypatch):
    monkeypatch.setattr("azure_account.NAME", "another")
    with pytest.raises(NotSentError, match="403 AuthenticationFailed: No") as caught:
        mailbox.exists()
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value.__cause__)
