"""What holds for mailboxes in every store; what is special in one is in a file of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from sentences import NOTHING_SENT_NOW
from store_proxy import Fault, StoreProxy
from workflow_automation_provider.exceptions import InvalidRequestError, NotSentError
from workflow_automation_provider.hooks.mailbox import Mailbox, secrets_of
from workflow_automation_provider.hooks.mailboxes import azure, gcs, s3, store
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

HOUR = timedelta(hours=1)
SERVICE = "http://127.0.0.1:1/api"
NEVER, LATER = InvalidRequestError, NotSentError


@dataclass(frozen=True)
class Kind:
    """
    A kind of store.

    :param created: the status of the first end
    :param there: the status of each other
    :param client: the module that makes its client
    :param library: what makes its extra
    :param right: a part of what its connection must be allowed
    :param refuses: what it may answer to the run's request, and whether that may pass
    :param unknown: what it may answer to Airflow's, after which nothing is known of the object
    """

    headers: dict[str, str]
    created: int
    there: int
    client: object
    library: str
    extra: str
    right: str
    refuses: tuple[tuple[int, str, type], ...]
    unknown: tuple[tuple[int, str], ...]


KINDS = {
    "s3": Kind(
        headers={"If-None-Match": "*"},
        created=200,
        there=412,
        client=s3,
        library="boto3",
        extra="amazon",
        right="s3:ListBucket",
        refuses=(
            (403, "AccessDenied", NEVER),
            (403, "InvalidAccessKeyId", NEVER),
            (403, "SignatureDoesNotMatch", NEVER),
            (404, "NoSuchBucket", NEVER),
            (307, "TemporaryRedirect", NEVER),
            (400, "InvalidRequest", NEVER),
            (400, "RequestTimeout", LATER),
            (409, "ConditionalRequestConflict", LATER),
            (429, "TooManyRequests", LATER),
            (503, "SlowDown", LATER),
        ),
        unknown=(
            (403, "AccessDenied"),
            (403, "SignatureDoesNotMatch"),
            (403, "RequestTimeTooSkewed"),
            (404, "NoSuchBucket"),
            (400, "ExpiredToken"),
            (503, "SlowDown"),
        ),
    ),
    "abfs": Kind(
        headers={"x-ms-blob-type": "BlockBlob"},
        created=201,
        there=403,
        client=azure,
        library="airflow.providers.microsoft.azure.hooks.wasb",
        extra="azure",
        right="Storage Blob Data Contributor",
        refuses=(
            (403, "AuthenticationFailed", NEVER),
            (403, "AuthorizationFailure", NEVER),
            (403, "AuthorizationPermissionMismatch", NEVER),
            (404, "ContainerNotFound", NEVER),
            (400, "InvalidHeaderValue", NEVER),
            (409, "ContainerBeingDeleted", LATER),
            (500, "OperationTimedOut", LATER),
            (503, "ServerBusy", LATER),
        ),
        unknown=(
            (403, "AuthenticationFailed"),
            (403, "AuthorizationPermissionMismatch"),
            (404, "ContainerNotFound"),
            (404, "ResourceNotFound"),
            (409, "ContainerBeingDeleted"),
            (503, "ServerBusy"),
        ),
    ),
    "gs": Kind(
        headers={"x-goog-if-generation-match": "0"},
        created=200,
        there=412,
        client=gcs,
        library="airflow.providers.google.common.hooks.base_google",
        extra="google",
        right="storage.objects.create",
        refuses=(
            (403, "AccessDenied", NEVER),
            (403, "SignatureDoesNotMatch", NEVER),
            (404, "NoSuchBucket", NEVER),
            (429, "SlowDown", LATER),
            (503, "ServiceUnavailable", LATER),
        ),
        unknown=((401, "401"), (403, "403"), (429, "429"), (503, "503")),
    ),
}

refusals = pytest.mark.parametrize(
    ("place", "status", "code", "error"),
    [(name, *row) for name, kind in KINDS.items() for row in kind.refuses],
    indirect=["place"],
)
unknowns = pytest.mark.parametrize(
    ("place", "status", "code"),
    [(name, *row) for name, kind in KINDS.items() for row in kind.unknown],
    indirect=["place"],
)


class Place:
    """
    A store, behind a proxy, and a connection to it.

    :param folder: the URL of a folder in it
    :param keep: the objects in it, by their keys
    :param secrets: what must show nowhere
    """

    def __init__(self, kind, folder, proxy, *, write, keys, connect, secrets):
        self.kind, self.folder, self.proxy = kind, folder, proxy
        self.write, self.keys, self.secrets = write, keys, secrets
        self._connect = connect
        self.connect(proxy.port)

    def connect(self, port):
        self._connect(port)
        self.kind.client.open_client.cache_clear()

    def mailbox(self, name="a.json"):
        return Mailbox(f"{self.folder}/{name}")

    def put(self, url, body=b"{}"):
        return httpx.put(url, content=body, headers=self.kind.headers).status_code


@contextlib.contextmanager
def s3_place(request, monkeypatch, tmp_path):
    monkeypatch.setitem(s3._LIMITS, "retries", {"max_attempts": 0})
    bucket = request.getfixturevalue("bucket")
    name = f"AIRFLOW_CONN_{bucket.conn_id.upper()}"
    with StoreProxy(request.getfixturevalue("s3_port")).running() as proxy:
        yield Place(
            KINDS["s3"],
            bucket.url("callbacks"),
            proxy,
            write=bucket.write,
            keys=bucket.keys,
            connect=lambda port: monkeypatch.setenv(name, json.dumps(bucket.connection(port))),
            secrets=["X-Amz-Signature"],
        )


@contextlib.contextmanager
def abfs_place(request, monkeypatch, tmp_path):
    pytest.importorskip("airflow.providers.microsoft.azure.hooks.wasb")
    from azure_account import KEY, AzureAccount

    monkeypatch.setitem(azure._LIMITS, "retry_total", 0)

    def connect(port):
        monkeypatch.setenv("AIRFLOW_CONN_AZURE_TEST", json.dumps(account.connection(port)))

    with AzureAccount("box").running() as account, StoreProxy(account.port).running() as proxy:
        yield Place(
            KINDS["abfs"],
            "abfs://azure_test@box/callbacks",
            proxy,
            write=account.blobs.__setitem__,
            keys=lambda: [*account.blobs],
            connect=connect,
            secrets=[KEY, "sig="],
        )


@contextlib.contextmanager
def gs_place(request, monkeypatch, tmp_path):
    pytest.importorskip("google.cloud.storage")
    pytest.importorskip("airflow.providers.google.common.hooks.base_google")
    from google_cloud import TOKEN, GoogleCloud

    monkeypatch.setattr(gcs, "_RETRY_SECONDS", 0)
    cloud = GoogleCloud(key=request.getfixturevalue("google_key"))

    def connect(port):
        monkeypatch.setenv("AIRFLOW_CONN_GCS_TEST", json.dumps(cloud.connection()))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")

    def write(key, content):
        cloud.objects[key] = content, datetime.now(UTC)

    with cloud.running(tmp_path / "ca.pem"), StoreProxy(cloud.port).running() as proxy:
        yield Place(
            KINDS["gs"],
            f"gs://gcs_test@{cloud.bucket}/callbacks",
            proxy,
            write=write,
            keys=lambda: [*cloud.objects],
            connect=connect,
            secrets=[TOKEN, "X-Goog-Signature", "private_key", *cloud.pem.splitlines()[1:-1]],
        )


PLACES = {"s3": s3_place, "abfs": abfs_place, "gs": gs_place}


@pytest.fixture(scope="module")
def google_key():
    """Make a key of Google once: it takes a while."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(params=PLACES)
def place(request, monkeypatch, tmp_path):
    monkeypatch.setattr(store, "_PAUSES", (0.0, 0.0, 0.0))
    with PLACES[request.param](request, monkeypatch, tmp_path) as place:
        yield place


@pytest.fixture
def mailbox(place):
    return place.mailbox()


def is_put(seen):
    return seen.method == "PUT"


def error(code):
    return f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()


# The run's URL ------------------------------------------------------------------------------------


def test_the_url_takes_the_first_end_alone(place, mailbox):
    url = mailbox.sign(HOUR)
    assert (mailbox.exists(), mailbox.read(10)) == (False, None)
    statuses = [place.put(url, body) for body in (b"first", b"second")]
    assert statuses == [place.kind.created, place.kind.there]
    assert mailbox.exists()
    written = mailbox.read(10)
    assert written.body == b"first"
    assert abs(written.at - datetime.now(UTC)) < timedelta(minutes=1)


def test_the_url_takes_what_the_last_step_of_a_flow_sends(place, mailbox, service):
    url = mailbox.sign(HOUR)
    service.callbacks.add(result={"rows": 3}, then=[{"status": "failed"}])
    WorkflowAutomationHook().trigger_flow({"callback_url": url}, "demo-flow")
    while len(calls := service.journal.callbacks()) < 2:
        time.sleep(0.01)
    assert [call.status for call in calls] == [place.kind.created, place.kind.there]
    assert json.loads(mailbox.read(999).body)["result"] == {"rows": 3}
    for secret in secrets_of(url):
        assert secret not in repr([service.runs, calls])


def test_a_url_costs_no_request_once_the_store_was_asked(place, mailbox):
    mailbox.sign(HOUR)
    place.proxy.seen.clear()
    mailbox.sign(HOUR)
    assert place.proxy.seen == []


def test_the_store_whose_extra_is_missing(place, mailbox, monkeypatch):
    monkeypatch.setitem(sys.modules, place.kind.library, None)
    with pytest.raises(InvalidRequestError) as caught:
        mailbox.check(HOUR, SERVICE)
    command = f"pip install 'airflow-provider-workflow-automation[{place.kind.extra}]'"
    assert command in str(caught.value)


# The check before the start -----------------------------------------------------------------------


def test_the_check_writes_and_reads_one_object(place, mailbox):
    mailbox.check(HOUR, SERVICE)
    assert place.keys() == ["callbacks/.mailbox"]
    assert place.proxy.counts()["PUT"] == 2
    place.proxy.seen.clear()
    mailbox.check(HOUR, SERVICE)
    assert place.proxy.counts()["PUT"] == 1
    assert place.mailbox(".mailbox").read(9).body == b"\n"


@refusals
def test_the_check_of_a_store_that_refuses(place, mailbox, status, code, error):
    place.proxy.faults.append(Fault(is_put, status=status, body=_error(code), times=None))
    with pytest.raises(error, match=code) as caught:
        mailbox.check(HOUR, SERVICE)
    assert place.folder in str(caught.value)
    assert (place.kind.right in str(caught.value)) == (error is NEVER)
    assert (NOTHING_SENT_NOW in str(caught.value)) == (error is LATER)


_error = error


@pytest.mark.parametrize("status", [409, 503])
def test_the_check_writes_again_where_the_store_is_busy(place, mailbox, status, monkeypatch):
    monkeypatch.setattr(store, "_PAUSES", (0.1, 0.2, 0.0))
    place.proxy.faults.append(Fault(is_put, status=status, times=2))
    began = time.monotonic()
    mailbox.check(HOUR, SERVICE)
    assert time.monotonic() - began >= 0.3


def test_the_check_of_a_store_that_hangs_ends_in_time(place, mailbox, monkeypatch):
    monkeypatch.setattr(store, "_SECONDS", 0.1)
    end = threading.Event()
    place.proxy.faults.append(Fault(is_put, before=end.wait, times=None))
    began = time.monotonic()
    try:
        with pytest.raises(NotSentError):
            mailbox.check(HOUR, SERVICE)
    finally:
        end.set()
    assert time.monotonic() - began < 4.5  # httpx itself would wait for 5 s


@pytest.mark.parametrize("place", ["abfs", "gs"], indirect=True)
def test_the_check_asks_no_proxy_where_the_client_asks_none(place, mailbox, monkeypatch):
    """Both exclude networks, as httpx does not."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
    mailbox.check(HOUR, SERVICE)


def test_the_check_of_a_store_that_ignores_the_condition(place, mailbox):
    place.proxy.faults.append(Fault(is_put, status=place.kind.created, times=2))
    with pytest.raises(InvalidRequestError, match="condition"):
        mailbox.check(HOUR, SERVICE)


def test_the_check_needs_the_rights_of_a_look_that_finds_nothing(place, mailbox):
    """Without the right to list, a store refuses to say that an object is missing."""
    is_look = lambda seen: seen.method == "GET" and "a.json" in seen.target  # noqa: E731
    place.proxy.faults.append(
        Fault(is_look, status=403, body=error("AuthorizationFailure"), times=None)
    )
    with pytest.raises(InvalidRequestError, match=r"403|AuthorizationFailure") as caught:
        mailbox.check(HOUR, SERVICE)
    assert place.kind.right in str(caught.value)


def test_with_a_connection_that_does_not_exist(place):
    """Airflow's providers would take the credentials of the worker."""
    scheme, _, rest = place.folder.partition("://")
    mailbox = Mailbox(f"{scheme}://typo@{rest.partition('@')[2]}/a.json")
    for ask in (mailbox.exists, lambda: mailbox.check(HOUR, SERVICE)):
        with pytest.raises(NotSentError, match="`typo` isn't defined"):
            ask()
    assert place.proxy.seen == []


# Looking ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "found"), [(b"x" * 1_000_000, b"x" * 11), (b"", b""), (b"{}", b"{}")]
)
def test_no_more_is_read_than_was_asked_for(place, mailbox, content, found):
    place.write("callbacks/a.json", content)
    assert mailbox.exists()
    assert mailbox.read(10).body == found


def test_what_breaks_off_is_not_read(place, mailbox):
    """It would be taken for what the run wrote, which is no end."""
    place.write("callbacks/a.json", b"x" * 1000)
    place.write("callbacks/b/0.json", b"")
    for ask, part in ((lambda: mailbox.read(2000), 500), (place.mailbox("b").indexes, 20)):
        is_get = Fault(lambda seen: seen.method == "GET", break_after=part, times=None)
        place.proxy.faults[:] = [is_get]
        with pytest.raises(NotSentError):
            ask()


def test_a_folder_is_listed_by_the_thousand(place):
    for number in range(1100):
        place.write(f"callbacks/b/{number}.json", b"")
    for other in ("callbacks/b/x.json", "callbacks/bx/1500.json", "callbacks/b/01.json"):
        place.write(other, b"")
    assert place.mailbox("b").indexes() == set(range(1100))


@unknowns
def test_nothing_is_missing_where_nothing_is_known(place, mailbox, status, code):
    place.proxy.faults.append(Fault(status=status, body=error(code), times=None))
    for ask in (mailbox.exists, lambda: mailbox.read(9), mailbox.indexes):
        with pytest.raises(NotSentError, match="503" if status == 503 else code) as caught:
            ask()
        assert mailbox.url in str(caught.value)
        assert NOTHING_SENT_NOW in str(caught.value)


@pytest.mark.parametrize("answers", [True, False])
def test_a_dead_store_ends_in_time_beside_a_good_one(place, mailbox, monkeypatch, answers):
    monkeypatch.setitem(s3._LIMITS, "read_timeout", 0.2)
    monkeypatch.setitem(azure._LIMITS, "read_timeout", 0.2)
    monkeypatch.setattr(gcs, "_TIMEOUT", (0.2, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as server:
        if answers:
            threading.Thread(target=_hang_up, args=(server,), daemon=True).start()
        place.connect(server.getsockname()[1])
        began = time.monotonic()
        for ask in (mailbox.exists, lambda: mailbox.read(9)):
            with pytest.raises(NotSentError, match="cannot be read"):
                ask()
    assert time.monotonic() - began < 10
    place.connect(place.proxy.port)
    assert not mailbox.exists()


def _hang_up(server):
    """Close each connection in place of a response."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)


def test_one_client_is_kept_for_a_while(place, mailbox, monkeypatch):
    mailbox.exists()
    place.mailbox("b.json").exists()
    opened = place.kind.client.open_client
    assert opened.cache_info().currsize == 1
    monkeypatch.setattr(store, "_CLIENT_SECONDS", store._CLIENT_SECONDS / 1e6)
    mailbox.exists()
    assert opened.cache_info().currsize == 2


@pytest.mark.parametrize("is_down", [False, True])
def test_threads_open_one_client(place, mailbox, is_down):
    """Those of a batch ask all at once when its period is over: each client has some 15 MB."""
    threads = 16
    if is_down:
        place.proxy.faults.append(Fault(status=503, body=error("SlowDown"), times=None))
    place.proxy.delay = 0.1
    begin = threading.Barrier(threads)

    def look(_):
        begin.wait()
        with contextlib.suppress(NotSentError):
            return mailbox.exists()

    with ThreadPoolExecutor(threads) as pool:
        found = [*pool.map(look, range(threads))]
    assert found == [None if is_down else False] * threads
    # One that comes late may open another.
    assert place.kind.client.open_client.cache_info().misses <= threads / 4


def test_no_client_is_kept_for_the_next_test_of_a_user(place, mailbox, request):
    """By the id of its connection, it would lead to the store of this one."""
    mailbox.exists()
    request.getfixturevalue("workflow_automation_connect")
    assert place.kind.client.open_client.cache_info().currsize == 0


# Secrets ------------------------------------------------------------------------------------------


def test_no_secret_is_shown_at_debug(place, mailbox, log_all):
    url, logged = log_all(mailbox, SERVICE, "urllib3.connectionpool")
    assert "of others" in logged
    secrets = [*place.secrets, *secrets_of(url)]
    assert not [secret for secret in secrets if secret in logged]


def test_what_must_not_be_shown_of_a_url(mailbox):
    url = mailbox.sign(HOUR)
    values = secrets_of(url)
    assert values
    assert values[0] in url
