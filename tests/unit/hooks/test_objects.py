"""Objects of an S3 stand-in behind a proxy that delays, counts and breaks: what is asked for, and what arrives."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time

import pytest

from store_proxy import Fault, StoreProxy
from workflow_automation_provider.exceptions import FileUnavailableError, NotSentError
from workflow_automation_provider.hooks.sources import resolve

from ..starts import interrupted
from .conftest import digest, resolved

pytest.importorskip("s3fs")

MIB = 1024 * 1024


@pytest.fixture
def proxy(moto_port, bucket, monkeypatch):
    proxy = StoreProxy(moto_port)
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 2)
    with proxy.running():
        configure(monkeypatch, bucket, proxy)
        yield proxy


def configure(monkeypatch, bucket, proxy, **config):
    """Define the connection to the proxy."""
    connection = bucket.connection(proxy.port)
    connection["extra"]["config_kwargs"].update(config)
    monkeypatch.setenv(f"AIRFLOW_CONN_{bucket.conn_id.upper()}", json.dumps(connection))


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
    """Return name and hash of each file."""
    (upload,) = service.uploads
    return [(file["name"], digest(file["content"])) for file in upload.files]


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def test_a_lookup_that_hangs_ends_with_the_task(bucket, proxy):
    proxy.faults.append(Fault(before=lambda: time.sleep(10), times=None))
    began = time.monotonic()
    with interrupted(1):
        resolve([bucket.url("a"), bucket.url("b")])
    assert time.monotonic() - began < 8


def test_globs_of_few_objects_are_not_listed_again(service, hook, run_id, bucket, proxy):
    urls = [bucket.url(f"d{number}/") for number in range(3)]
    for number in range(3):
        bucket.write(f"d{number}/a.csv", b"a")
    (request,) = hook.prepare_uploads(run_id, resolve(urls), "demo-flow")
    before = len(listings(proxy))
    hook.get_conn().send(request)
    assert before >= 3
    assert len(listings(proxy)) == before


class TestRequests:
    def test_a_prefix_takes_one_request_for_each_object(self, service, hook, run_id, bucket, proxy):
        contents = {f"p__{number:03}.bin": os.urandom(number * 7) for number in range(20)}
        bucket.put(**contents)
        hook.upload_files(run_id, bucket.url("p/"), "demo-flow")
        assert sent(service) == [
            (key.removeprefix("p__"), sha256(content)) for key, content in contents.items()
        ]
        assert len(gets(proxy)) == 19  # one is empty
        assert (len(listings(proxy)), len(proxy.seen)) == (2, 21)

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
        content = os.urandom(9 * MIB + 1)
        bucket.put(large=content, small=b"1")
        hook.upload_files(run_id, bucket.url(), "demo-flow")
        assert sent(service) == [("large", sha256(content)), ("small", sha256(b"1"))]
        assert (len(gets(proxy)), len(listings(proxy))) == (2, 2)

    def test_objects_that_are_named_are_looked_at_together(self, service, hook, run_id, bucket, proxy):
        names = [f"n{number:02}" for number in range(12)]
        bucket.put(**{name: name.encode() for name in names})
        urls = [bucket.url(name) for name in reversed(names)]
        proxy.delay, proxy.most_open = 0.05, 0
        resolve(urls)
        assert proxy.counts() == {"HEAD": 12}
        assert proxy.most_open > 4
        proxy.seen.clear()
        hook.upload_files(run_id, urls, "demo-flow")
        assert [name for name, _ in sent(service)] == [*reversed(names)]
        assert proxy.counts() == {"HEAD": 24, "GET": 12}

    def test_the_next_ones_are_fetched_while_one_is_sent(self, service, hook, run_id, bucket, proxy):
        bucket.put(**{f"o{number:03}": b"x" for number in range(50)})
        proxy.delay = 0.02
        hook.upload_files(run_id, bucket.url(), "demo-flow")
        assert 10 < proxy.most_open <= 32


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

    @pytest.mark.parametrize("at", [0, 100_000])
    def test_a_response_of_a_small_one_that_breaks_off(self, service, hook, run_id, bucket, proxy, at):
        content = os.urandom(3 * MIB + 1)
        bucket.put(a=b"1", b=content, c=b"3")
        proxy.faults.append(Fault(of("b"), break_after=at))
        hook.upload_files(run_id, bucket.url(), "demo-flow")
        assert sent(service) == [("a", sha256(b"1")), ("b", sha256(content)), ("c", sha256(b"3"))]
        assert len(gets(proxy, "b")) == 2

    def test_a_store_that_is_busy_is_asked_again(self, service, hook, run_id, bucket, proxy):
        bucket.put(a=b"1", b=b"2")
        proxy.faults.append(Fault(of("a"), status=503, body=SLOW_DOWN))
        hook.upload_files(run_id, bucket.url(), "demo-flow")
        assert [name for name, _ in sent(service)] == ["a", "b"]

    def test_one_connection_is_enough(self, service, hook, run_id, bucket, proxy, monkeypatch):
        """The next ones would otherwise hold all of them until the first was sent."""
        configure(monkeypatch, bucket, proxy, max_pool_connections=1)
        contents = {"a": os.urandom(5 * MIB), "b": b"2", "c": os.urandom(5 * MIB), "d": b"4"}
        bucket.put(**contents)
        ending = threading.Timer(20, hook.stop)
        ending.start()
        hook.upload_files(run_id, bucket.url(), "demo-flow")
        ending.cancel()
        assert sent(service) == [(key, sha256(content)) for key, content in contents.items()]


class TestListing:
    """A glob names all of its objects, or is an error."""

    @pytest.fixture(autouse=True)
    def objects(self, bucket):
        bucket.put(in__a__1_csv=b"1", in__b__2_csv=b"2", in__c__3_csv=b"3")

    @pytest.mark.parametrize(
        ("pattern", "status", "body", "words"),
        [
            ("in/*/*csv", 403, DENIED, "Access Denied"),
            ("in/", 503, SLOW_DOWN, "request rate"),
            ("in/*", 403, DENIED, "Access Denied"),
        ],
    )
    def test_what_cannot_be_listed(self, bucket, proxy, pattern, status, body, words):
        def lists(seen):
            return "list-type" in seen.target and "prefix=in%2F&" in f"{seen.target}&"

        proxy.faults.append(Fault(lists, status=status, body=body, times=None))
        with pytest.raises(FileUnavailableError) as caught:
            resolve(bucket.url(pattern))
        assert f"files[0]: '{bucket.url(pattern)}'" in caught.value.message
        assert words in caught.value.message

    @pytest.mark.parametrize("pattern", ["**/*csv", "in/", "*/*/"])
    def test_an_object_whose_key_is_also_a_folder(self, bucket, proxy, pattern):
        bucket.put(in__b__2_csv__more_csv=b"4", in__b__2_csv__deep__deeper_csv=b"5")
        names = [file.name for file in resolved(bucket.url(pattern))]
        assert names == ["1_csv", "2_csv", "deeper_csv", "more_csv", "3_csv"]

    @pytest.mark.parametrize("pattern", ["in/*/*csv", "in/a/*csv"])
    def test_what_is_below_the_first_wildcard_is_listed_once(self, bucket, proxy, pattern):
        bucket.put(in__a__deep__x=b"4", other__x=b"5")
        assert {file.name for file in resolved(bucket.url(pattern))} <= {"1_csv", "2_csv", "3_csv"}
        assert len(listings(proxy)) <= 2  # whether the pattern is a key, and what is below in/ or in/a/


class TestFaultsThatEndTheRequest:
    """The error names the object, and the service has accepted nothing."""

    @pytest.fixture(autouse=True)
    def objects(self, service, bucket):
        self.content = os.urandom(2 * MIB)
        bucket.put(a=b"1", b=self.content, c=b"3")
        yield
        assert service.uploads == []

    @pytest.mark.parametrize(
        ("size", "fault"),
        [
            (2 * MIB, {"break_after": 1000}),
            (9 * MIB, {"break_after": 5 * MIB}),
            (9 * MIB, {"hang_after": 1000}),
            (2 * MIB, {"damage": lambda piece: piece[:-1] + b"?"}),  # which the SDK sees by the checksum
        ],
    )
    def test_one_that_never_arrives_whole(self, hook, run_id, bucket, proxy, monkeypatch, size, fault):
        configure(monkeypatch, bucket, proxy, read_timeout=0.5)
        bucket.put(b=os.urandom(size))
        proxy.faults.append(Fault(of("b"), times=None, **fault))
        assert f"'s3://{bucket.name}/b' could not be read" in attempt(hook, run_id, bucket.url())
        assert len(gets(proxy, "b")) <= 2  # as s3fs has it

    @pytest.mark.parametrize(
        ("status", "body", "words"),
        [(503, SLOW_DOWN, "request rate"), (400, EXPIRED, "expired"), (403, b"", "PermissionError")],
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

    @pytest.mark.parametrize("size", [1, 9 * MIB])
    def test_one_that_changes_while_the_next_is_read(self, hook, run_id, bucket, proxy, size):
        bucket.put(b=os.urandom(size))
        proxy.faults.append(Fault(of("c"), before=lambda: bucket.put(b=os.urandom(size))))
        assert f"'s3://{bucket.name}/b' changed" in attempt(hook, run_id, bucket.url())


class TestStop:
    def fetching(self):
        """Return what still fetches, soon after it was cancelled."""
        import fsspec.asyn  # type: ignore[import-untyped]  # has no types

        def ours():
            tasks = asyncio.all_tasks(fsspec.asyn.loop[0])
            return [task for task in tasks if "_cat_file" in repr(task) or "_piece" in repr(task)]

        deadline = time.monotonic() + 5
        while ours() and time.monotonic() < deadline:
            time.sleep(0.01)
        return ours()

    def test_a_task_that_is_ended_stops_reading_at_once(self, service, hook, run_id, bucket, proxy):
        bucket.put(a=os.urandom(5 * MIB), b=b"2")
        proxy.faults.append(Fault(of("b"), before=hook.stop, hang_after=0))
        elements = resolve(bucket.url())
        threads = {*threading.enumerate()}
        (request,) = hook.prepare_uploads(run_id, elements, "demo-flow")
        with pytest.raises(NotSentError, match="the task was ended"):
            hook.get_conn().send(request)
        assert self.fetching() == []
        # Those of the stand-ins are no concern of a task.
        others = {thread.name for thread in {*threading.enumerate()} - threads}
        assert [name for name in others if "process_request" not in name and "asyncio" not in name] == []
        assert service.uploads == []

    def test_a_service_that_rejects_early_stops_it_too(self, service, hook, run_id, bucket, proxy):
        bucket.put(a=os.urandom(9 * MIB))
        service.faults.add("reject", operation="upload", status=413)
        with pytest.raises(Exception, match="413"):
            hook.upload_files(run_id, bucket.url("a"), "demo-flow")
        assert self.fetching() == []
