"""Objects of an S3 stand-in behind a proxy that delays, counts and breaks: what is asked for, and what arrives."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import threading
import time
from uuid import uuid4

import pytest

from store_proxy import Fault, StoreProxy
from workflow_automation_provider.client.files import read_whole
from workflow_automation_provider.client.outcome import NotSent, Reason
from workflow_automation_provider.client.upload_body import measure, upload_body
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError, NotSentError
from workflow_automation_provider.hooks.file_sources import resolve

from .conftest import resolved

pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")
boto3 = pytest.importorskip("boto3")

MIB = 1024 * 1024
ACCESS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}


@pytest.fixture(scope="module")
def moto_port():
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


class Bucket:
    """A bucket, and a connection to it through the proxy."""

    def __init__(self, port, name):
        self.client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **ACCESS)
        self.client.create_bucket(Bucket=name)
        self.name = name
        self.conn_id = f"s3_{name.replace('-', '_')}"

    def put(self, **contents):
        for key, content in contents.items():
            self.client.put_object(Bucket=self.name, Key=key.replace("__", "/"), Body=content)

    def delete(self, key):
        self.client.delete_object(Bucket=self.name, Key=key)

    def url(self, path=""):
        return f"s3://{self.conn_id}@{self.name}/{path}"


@pytest.fixture
def bucket(moto_port):
    return Bucket(moto_port, f"b-{uuid4().hex[:12]}")


@pytest.fixture
def proxy(moto_port, bucket, monkeypatch):
    proxy = StoreProxy(moto_port)
    with proxy.running():
        extra = {
            "endpoint_url": f"http://127.0.0.1:{proxy.port}",
            "region_name": "us-east-1",
            # One attempt of botocore's own for each of s3fs', or a store that is down takes a minute.
            "config_kwargs": {"retries": {"max_attempts": 0}},
        }
        connection = {"conn_type": "aws", "login": "testing", "password": "testing", "extra": extra}
        monkeypatch.setenv(f"AIRFLOW_CONN_{bucket.conn_id.upper()}", json.dumps(connection))
        yield proxy


@pytest.fixture
def run_id(hook):
    return hook.trigger_flow({}, "demo-flow").run_id


def of(key=""):
    """Tell of a request whether it is for an object."""
    return lambda seen: (
        seen.method == "GET"
        and "list-type" not in seen.target
        and seen.target.partition("?")[0].endswith(f"/{key}" if key else "")
    )


def gets(proxy, key=""):
    return [seen for seen in proxy.seen if of(key)(seen)]


def listings(proxy):
    return [seen for seen in proxy.seen if "list-type" in seen.target]


def sent(service):
    """Return name and content of each file, or the hash of a long content."""
    (upload,) = service.uploads
    return [(file["name"], digest(file["content"])) for file in upload.files]


def digest(content):
    if isinstance(content, dict):
        return content["long_string"]["decoded"]["sha256"]
    return hashlib.sha256(base64.b64decode(content)).hexdigest()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class TestRequests:
    def test_a_prefix_takes_one_request_for_each_object(self, service, hook, run_id, bucket, proxy):
        contents = {f"p__{number:03}.bin": os.urandom(number * 7) for number in range(60)}
        bucket.put(**contents)
        hook.upload_files(run_id, bucket.url("p/"), "demo-flow")
        assert sent(service) == [
            (key.removeprefix("p__"), sha256(content)) for key, content in contents.items()
        ]
        assert len(gets(proxy)) == 60
        assert (len(listings(proxy)), len(proxy.seen)) == (1, 61)
        assert all("if-match" in seen.headers for seen in gets(proxy))

    @pytest.mark.parametrize("pattern", ["", "**"])
    def test_a_folder_marker_is_no_file(self, service, hook, run_id, bucket, proxy, pattern):
        """The console of the store writes one for each folder that it makes."""
        bucket.put(p__=b"", p__a=b"1", p__q__=b"", p__q__b=b"")
        hook.upload_files(run_id, bucket.url(f"p/{pattern}"), "demo-flow")
        assert [name for name, _ in sent(service)] == ["a", "b"]
        bucket.put(s__=b"")
        with pytest.raises(FileUnavailableError, match="no file at"):
            resolve(bucket.url("s/"))

    def test_a_large_object_takes_one_request(self, service, hook, run_id, bucket, proxy):
        content = os.urandom(20 * MIB + 1)
        bucket.put(large=content, small=b"1")
        hook.upload_files(run_id, bucket.url(), "demo-flow")
        assert sent(service) == [("large", sha256(content)), ("small", sha256(b"1"))]
        assert proxy.counts() == {"GET": 3}

    def test_objects_that_are_named_are_looked_at_together(self, service, hook, run_id, bucket, proxy):
        names = [f"n{number:02}" for number in range(32)]
        bucket.put(**{name: name.encode() for name in names})
        urls = [bucket.url(name) for name in reversed(names)]
        proxy.delay, proxy.most_open = 0.05, 0
        resolve(urls)
        assert proxy.counts() == {"HEAD": 32}
        assert proxy.most_open > 4
        proxy.seen.clear()
        hook.upload_files(run_id, urls, "demo-flow")
        assert [name for name, _ in sent(service)] == [*reversed(names)]
        assert proxy.counts() == {"HEAD": 32, "GET": 32}

    def test_the_next_ones_are_fetched_while_one_is_sent(self, service, hook, run_id, bucket, proxy):
        bucket.put(**{f"o{number:02}": b"x" for number in range(40)})
        proxy.delay = 0.02
        hook.upload_files(run_id, bucket.url(), "demo-flow")
        assert 4 < proxy.most_open <= 16

    def test_the_version_that_was_listed_is_read(self, service, hook, run_id, bucket, proxy):
        bucket.client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
        bucket.put(a=b"old")
        (file,) = resolved(bucket.url("a"))
        bucket.put(a=b"new")
        assert b"".join(read_whole(file)) == b"old"
        assert "versionId=" in gets(proxy)[-1].target

    @pytest.mark.parametrize("file_format", ["text", {"one": "text", "name": "name", "two": "text"}])
    def test_many_texts_are_measured_many_at_once(self, service, hook, run_id, bucket, proxy, file_format):
        names = [f"o{number:02}" for number in range(60)]
        bucket.put(**{name: f"content of {name}".encode() for name in names})
        elements = resolve(bucket.url())
        proxy.delay, proxy.most_open = 0.02, 0
        measured = measure([*elements, {"a": "mapping"}], file_format)
        assert proxy.most_open > 4
        reads = 1 if file_format == "text" else 2
        assert len(gets(proxy)) == 60 * reads
        proxy.delay = 0
        content = b"".join(upload_body("demo-flow", run_id, measured))
        assert len(content) == upload_body("demo-flow", run_id, measured).content_length
        for name in names:
            assert content.count(f"content of {name}".encode()) == reads

    def test_a_text_that_is_none_among_many_is_named(self, hook, run_id, bucket, proxy):
        bucket.put(**{f"o{number:02}": b"\xff" if number == 7 else b"x" for number in range(40)})
        with pytest.raises(InvalidRequestError, match="/o07' is not UTF-8"):
            measure(resolve(bucket.url()), "text")

    def test_a_format_may_read_it_as_well(self, service, hook, run_id, bucket, proxy):
        bucket.put(a=b"0123456789")

        def ends(file):
            with file.open() as stream:
                stream.seek(-2, 2)
                return {"end": stream.read().decode(), "all": file.base64}

        send_formatted(hook, run_id, bucket.url("a"), ends)
        assert service.uploads[0].files == [{"end": "89", "all": base64.b64encode(b"0123456789").decode()}]

    @pytest.mark.parametrize("status", ["Enabled", "Suspended"])
    def test_a_format_reads_no_other_version_than_is_sent(self, service, hook, run_id, bucket, proxy, status):
        bucket.client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": status})
        bucket.put(a=b"old")

        def beginning(file):
            bucket.put(a=b"new")
            with file.open() as stream:
                return {"beginning": stream.read(1).decode(), "all": file.base64}

        with pytest.raises(FileUnavailableError, match="/a' changed"):
            send_formatted(hook, run_id, bucket.url("a"), beginning)
        assert service.uploads == []


def send_formatted(hook, run_id, source, file_format):
    (request,) = hook.prepare_uploads(run_id, resolve(source), "demo-flow", file_format=file_format)
    hook.send_upload(request)


def attempt(hook, run_id, source):
    """Upload, and return the error."""
    with pytest.raises(FileUnavailableError) as caught:
        hook.upload_files(run_id, source, "demo-flow")
    return str(caught.value)


DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


class TestFaultsThatDoNoHarm:
    """They end as retries within the request."""

    @pytest.mark.parametrize("at", [0, 1, 100_000, 3 * MIB])
    def test_a_response_that_breaks_off_is_taken_up_again(self, service, hook, run_id, bucket, proxy, at):
        content = os.urandom(4 * MIB)
        bucket.put(a=b"1", b=content, c=b"3")
        proxy.faults.append(Fault(of("b"), break_after=at))
        hook.upload_files(run_id, bucket.url(), "demo-flow")
        assert sent(service) == [("a", sha256(b"1")), ("b", sha256(content)), ("c", sha256(b"3"))]
        first, second = gets(proxy, "b")
        assert first.headers["if-match"] == second.headers["if-match"]
        assert second.headers.get("range", "bytes=0-").startswith("bytes=")
        assert ("range" in second.headers) == (at > 0)

    def test_it_may_break_off_often_if_it_makes_progress(self, service, hook, run_id, bucket, proxy):
        content = os.urandom(12 * MIB)
        bucket.put(a=content)
        proxy.faults.append(Fault(of("a"), break_after=int(1.3 * MIB), times=8))
        hook.upload_files(run_id, bucket.url("a"), "demo-flow")
        assert sent(service) == [("a", sha256(content))]

    def test_a_store_that_is_busy_is_asked_again(self, service, hook, run_id, bucket, proxy):
        bucket.put(a=b"1", b=b"2")
        proxy.faults.append(Fault(of("a"), status=503, body=SLOW_DOWN, times=2))
        hook.upload_files(run_id, bucket.url(), "demo-flow")
        assert [name for name, _ in sent(service)] == ["a", "b"]

    @pytest.mark.parametrize("connections", [1, 2])
    def test_one_is_resumed_however_few_connections_there_are(
        self, service, hook, run_id, bucket, proxy, monkeypatch, connections
    ):
        """The next ones would otherwise hold all of them until it was sent."""
        name = f"AIRFLOW_CONN_{bucket.conn_id.upper()}"
        connection = json.loads(os.environ[name])
        connection["extra"]["config_kwargs"]["max_pool_connections"] = connections
        monkeypatch.setenv(name, json.dumps(connection))
        contents = {key: os.urandom(12 * MIB) for key in "abc"}
        bucket.put(**contents)
        proxy.faults.append(Fault(of("a"), break_after=9 * MIB))
        ending = threading.Timer(20, hook.stop)
        ending.start()
        hook.upload_files(run_id, bucket.url(), "demo-flow")
        ending.cancel()
        assert sent(service) == [(key, sha256(content)) for key, content in contents.items()]

    def test_a_silent_response_is_given_up_and_taken_up_again(
        self, service, hook, run_id, bucket, proxy, monkeypatch
    ):
        monkeypatch.setattr("workflow_automation_provider.hooks.read_ahead.READ_TIMEOUT", 0.5)
        content = os.urandom(MIB)
        bucket.put(a=content)
        proxy.faults.append(Fault(of("a"), hang_after=1000))
        hook.upload_files(run_id, bucket.url("a"), "demo-flow")
        assert sent(service) == [("a", sha256(content))]


class TestListing:
    """A glob names all of its objects, or is an error."""

    @pytest.fixture(autouse=True)
    def objects(self, bucket):
        bucket.put(in__a__1_csv=b"1", in__b__2_csv=b"2", in__c__3_csv=b"3")

    @pytest.mark.parametrize(
        ("status", "body", "words"),
        [(403, DENIED, "PermissionError: Access Denied"), (503, SLOW_DOWN, "request rate")],
    )
    def test_a_folder_that_cannot_be_listed(self, bucket, proxy, status, body, words):
        def lists_b(seen):
            return "list-type" in seen.target and "prefix=in%2Fb%2F" in seen.target

        proxy.faults.append(Fault(lists_b, status=status, body=body, times=None))
        with pytest.raises(FileUnavailableError) as caught:
            resolve(bucket.url("in/*/*csv"))
        assert f"files[0]: the folder 's3://{bucket.name}/in/b'" in caught.value.message
        assert words in caught.value.message

    @pytest.mark.parametrize("pattern", ["**", "in/**", "**/*csv", "in/", "in/*/", "*/*/"])
    def test_an_object_whose_key_is_also_a_folder(self, bucket, proxy, pattern):
        bucket.put(in__b__2_csv__more_csv=b"4", in__b__2_csv__deep__deeper_csv=b"5")
        names = [file.name for file in resolved(bucket.url(pattern))]
        assert names == ["1_csv", "2_csv", "deeper_csv", "more_csv", "3_csv"]

    def test_levels_are_listed_once_each(self, bucket, proxy):
        bucket.put(in__a__deep__x=b"4", other__x=b"5")
        assert len(resolved(bucket.url("in/*/*csv"))) == 3
        assert len(listings(proxy)) <= 5  # whether the pattern is a key, in/, and its folders


class TestFaultsThatEndTheRequest:
    """The error names the object, and the service has accepted nothing."""

    @pytest.fixture(autouse=True)
    def objects(self, service, bucket):
        self.content = os.urandom(2 * MIB)
        bucket.put(a=b"1", b=self.content, c=b"3")
        yield
        assert service.uploads == []

    def test_one_that_always_breaks_off(self, hook, run_id, bucket, proxy):
        proxy.faults.append(Fault(of("b"), break_after=1000, times=None))
        error = attempt(hook, run_id, bucket.url())
        assert f"'s3://{bucket.name}/b'" in error
        assert len(gets(proxy, "b")) == 6

    @pytest.mark.parametrize(
        ("status", "body", "words"),
        [
            (503, SLOW_DOWN, "request rate"),
            (400, EXPIRED, "expired"),
            (403, b"", "PermissionError"),
        ],
    )
    def test_a_store_that_does_not_give_it(self, hook, run_id, bucket, proxy, status, body, words):
        proxy.faults.append(Fault(of("b"), status=status, body=body, times=None))
        error = attempt(hook, run_id, bucket.url())
        assert f"'s3://{bucket.name}/b'" in error
        assert words in error

    @pytest.mark.parametrize("later", [None, b"x" * 2 * MIB, b"x", b"x" * 3 * MIB])
    def test_one_that_changed_after_it_was_listed(self, hook, run_id, bucket, proxy, later):
        def change():
            bucket.delete("b") if later is None else bucket.put(b=later)

        proxy.faults.append(Fault(of("a"), before=change))
        proxy.faults.append(Fault(of("b"), before=lambda: time.sleep(0.5)))
        error = attempt(hook, run_id, bucket.url())
        assert f"'s3://{bucket.name}/b'" in error
        assert ("FileNotFound" in error) == (later is None)
        assert ("b' changed" in error) == (later is not None)

    def test_one_that_changes_between_two_of_its_parts(self, hook, run_id, bucket, proxy):
        proxy.faults.append(Fault(of("b"), break_after=MIB))
        proxy.faults.append(Fault(of("b"), before=lambda: bucket.put(b=b"x" * 2 * MIB)))
        assert "overwritten" in attempt(hook, run_id, bucket.url())

    def test_a_store_that_knows_no_conditions(self, hook, run_id, bucket, proxy):
        """Its response tells by the ETag that the object is another."""
        proxy.faults.append(Fault(of("a"), before=lambda: bucket.put(b=b"x" * 2 * MIB)))
        proxy.faults.append(Fault(of("b"), drop=("if-match",), before=lambda: time.sleep(0.5)))
        assert "overwritten" in attempt(hook, run_id, bucket.url())

    def test_a_response_of_another_object(self, hook, run_id, bucket, proxy):
        proxy.faults.append(Fault(of("a"), drop=("if-match",), target=f"/{bucket.name}/c", times=None))
        assert f"'s3://{bucket.name}/a'" in attempt(hook, run_id, bucket.url())

    def test_a_store_that_knows_no_ranges(self, hook, run_id, bucket, proxy):
        proxy.faults.append(Fault(of("b"), break_after=MIB))
        proxy.faults.append(Fault(of("b"), drop=("range",), times=None))
        error = attempt(hook, run_id, bucket.url())
        assert f"/{bucket.name}/b'" in error
        assert "from byte" in error

    def test_bytes_that_are_damaged_on_the_way(self, hook, run_id, bucket, proxy):
        """The SDK checks the checksum that the store sends with an object."""
        proxy.faults.append(Fault(of("b"), damage=lambda piece: piece[:-1] + b"?", times=None))
        assert f"'s3://{bucket.name}/b'" in attempt(hook, run_id, bucket.url())


class TestStop:
    def fetching(self):
        import fsspec.asyn  # type: ignore[import-untyped]  # has no types

        return [task for task in asyncio.all_tasks(fsspec.asyn.loop[0]) if "_Fetch" in repr(task)]

    @pytest.mark.parametrize("after", [0, 10_000_000])
    def test_a_task_that_is_ended_stops_reading_at_once(self, service, hook, run_id, bucket, proxy, after):
        bucket.put(a=os.urandom(12 * MIB), b=b"2")
        proxy.faults.append(Fault(of("a"), hang_after=after))
        elements = resolve(bucket.url())
        threads = {*threading.enumerate()}
        (request,) = hook.prepare_uploads(run_id, elements, "demo-flow")
        threading.Timer(1.0, hook.stop).start()
        began = time.monotonic()
        outcome = hook.send_upload(request)
        assert isinstance(outcome, NotSent)
        assert outcome.reason is Reason.STOPPED
        assert time.monotonic() - began < 10
        assert self.fetching() == []
        # Those of the stand-ins are no concern of a task.
        others = {thread.name for thread in {*threading.enumerate()} - threads}
        assert [name for name in others if "process_request" not in name and "asyncio" not in name] == []
        assert service.uploads == []

    def test_an_error_stops_what_was_read_ahead(self, service, hook, run_id, bucket, proxy):
        bucket.put(**{f"o{number:02}": os.urandom(MIB) for number in range(20)})
        proxy.faults.append(Fault(of("o00"), status=403, times=None))
        proxy.faults.append(Fault(lambda seen: "/o" in seen.target, hang_after=1000, times=None))
        attempt(hook, run_id, bucket.url())
        assert self.fetching() == []

    def test_a_service_that_rejects_early_stops_it_too(self, service, hook, run_id, bucket, proxy):
        bucket.put(a=os.urandom(20 * MIB))
        service.faults.add("reject", operation="upload", status=413)
        with pytest.raises(Exception, match="413"):
            hook.upload_files(run_id, bucket.url("a"), "demo-flow")
        assert self.fetching() == []

    def test_text_is_not_measured_on(self, hook, run_id, bucket, proxy):
        bucket.put(a=b"x" * 1000)
        proxy.faults.append(Fault(of("a"), hang_after=0))
        elements = resolve(bucket.url("a"))
        threading.Timer(0.5, hook.stop).start()
        with pytest.raises(NotSentError, match="the task was ended"):
            hook.prepare_uploads(run_id, elements, "demo-flow", file_format="text")
        assert self.fetching() == []
