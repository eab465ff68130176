"""
Objects of an S3 stand-in behind a proxy that delays, counts and breaks.

What is requested, and what arrives.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time

import pytest

from store_proxy import Fault, StoreProxy
from workflow_automation_provider.exceptions import FileUnavailableError, NotSentError
from workflow_automation_provider.hooks.files.reading import _BLOCK
from workflow_automation_provider.hooks.files.sources import resolve

from ...starts import interrupted
from ..conftest import sent, sha256

pytest.importorskip("s3fs")

SMALL, LARGE = 100_000, _BLOCK + 1
"""Bytes: of an object that is read at once, and of one that is streamed."""


@pytest.fixture
def proxy(s3_port, bucket, configure):
    with StoreProxy(s3_port).running() as proxy:
        configure(proxy)
        yield proxy


@pytest.fixture
def configure(bucket, monkeypatch):
    """Define the connection to a proxy, with options of botocore."""
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 2)

    def define(proxy, **config):
        connection = json.dumps(bucket.connection(proxy.port, **config))
        monkeypatch.setenv(f"AIRFLOW_CONN_{bucket.conn_id.upper()}", connection)

    return define


@pytest.fixture
def upload(hook, run_id, bucket):
    """Upload what is at a path of the bucket, by default all."""
    return lambda path="": hook.upload_files(run_id, bucket.url(path), "demo-flow")


def of(key=""):
    """Return what decides whether a request is for an object."""
    return lambda seen: (
        seen.method == "GET"
        and "list-type" not in seen.target
        and seen.target.partition("?")[0].endswith(f"/{key}" if key else "")
    )


def gets(proxy, key=""):
    return sum(map(of(key), proxy.seen))


DENIED = {
    "status": 403,
    "body": b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
}
SLOW_DOWN = {
    "status": 503,
    "body": b"<Error><Code>SlowDown</Code><Message>Request rate</Message></Error>",
}
EXPIRED = {
    "status": 400,
    "body": b"<Error><Code>ExpiredToken</Code><Message>It expired.</Message></Error>",
}


class TestRequests:
    def test_a_prefix_takes_one_request_for_each_object(self, service, upload, bucket, proxy):
        """
        An object of any size.

        The console of the store writes an empty one for each folder that it makes.
        """
        contents = {"0": b"", "large": os.urandom(LARGE), "q__b": b"2", "small": os.urandom(SMALL)}
        bucket.put(
            p__=b"", p__q__=b"", s__=b"", **{f"p__{key}": value for key, value in contents.items()}
        )
        upload("p/")
        assert sent(service) == [
            (key.removeprefix("q__"), sha256(content)) for key, content in contents.items()
        ]
        assert (gets(proxy), len(proxy.seen)) == (3, 5)  # two listings, and none for the empty one
        with pytest.raises(FileUnavailableError, match="no file at"):
            resolve(bucket.url("s/"))

    @pytest.mark.parametrize("path", ["p/", "p/*"])
    def test_only_the_objects_of_a_request_are_listed_again(
        self, hook, run_id, bucket, proxy, path
    ):
        bucket.put(p__a=b"1", p__b1=b"2", p__b2=b"3", p__c=b"4")
        files = resolve(bucket.url(path))
        proxy.seen.clear()
        hook.upload_files(run_id, files[1:3], "demo-flow")
        listings = [seen.target for seen in proxy.seen if "list-type" in seen.target]
        assert len(proxy.seen) == 3
        assert [target for target in listings if "prefix=p%2Fb&" in f"{target}&"] == listings
        assert len(listings) == 1

    def test_an_object_whose_key_ends_in_a_slash(self, service, upload, bucket, proxy):
        bucket.put(p__=b"12")
        upload("p/")
        assert len(service.uploads) == 1

    @pytest.mark.parametrize("path", ["p//*", "p//**", "p//a*"])
    def test_each_slash_of_a_key_counts(self, service, upload, bucket, proxy, path):
        bucket.put(p____a=b"1", p__a=b"22", p__b=b"33")
        upload(path)
        assert sent(service) == [("a", sha256(b"1"))]

    def test_named_objects_are_looked_up_together(self, service, hook, run_id, bucket, proxy):
        names = [f"n{number}" for number in range(8)]
        bucket.put(**{name: name.encode() for name in names})
        urls = [bucket.url(name) for name in reversed(names)]
        proxy.delay = 0.05
        hook.upload_files(run_id, urls, "demo-flow")
        assert [name for name, _ in sent(service)] == [*reversed(names)]
        assert proxy.counts() == {"HEAD": 16, "GET": 8}
        proxy.most_open = 0
        resolve(urls)
        assert proxy.most_open > 4

    def test_the_next_ones_are_fetched_while_one_is_sent(self, upload, bucket, proxy):
        bucket.put(**{f"o{number:03}": b"x" for number in range(40)})
        proxy.delay = 0.02
        upload()
        assert 10 < proxy.most_open <= 32

    def test_one_connection_is_enough(self, service, hook, upload, bucket, proxy, configure):
        """The next ones would otherwise hold all of them until the first was sent."""
        configure(proxy, max_pool_connections=1)
        contents = {"a": os.urandom(LARGE), "b": b"2", "c": os.urandom(LARGE), "d": b"4"}
        bucket.put(**contents)
        ending = threading.Timer(20, hook.stop)
        ending.start()
        upload()
        ending.cancel()
        assert sent(service) == [(key, sha256(content)) for key, content in contents.items()]

    @pytest.mark.parametrize(
        ("pattern", "fault", "words"),
        [("in/*", DENIED, "Access Denied"), ("in/", SLOW_DOWN, "Request rate")],
    )
    def test_what_cannot_be_listed(self, bucket, proxy, pattern, fault, words):
        bucket.put(in__a__1_csv=b"1")
        proxy.faults.append(Fault(lambda seen: "list-type" in seen.target, times=None, **fault))
        with pytest.raises(FileUnavailableError, match=words) as caught:
            resolve(bucket.url(pattern))
        assert f"files[0]: '{bucket.url(pattern)}'" in caught.value.message


class TestFaults:
    @pytest.fixture(autouse=True)
    def objects(self, bucket):
        self.contents = {"a": b"1", "b": os.urandom(SMALL), "c": b"3"}
        bucket.put(**self.contents)

    @pytest.fixture
    def fails(self, service, upload, bucket):
        """Upload: the error names the object b, and the service has accepted nothing."""

        def run(*words):
            with pytest.raises(FileUnavailableError) as caught:
                upload()
            assert all(word in str(caught.value) for word in (f"'s3://{bucket.name}/b'", *words))
            assert service.uploads == []

        return run

    @pytest.mark.parametrize(
        ("size", "fault", "words"),
        [
            (SMALL, {"break_after": 1000}, "could not be read"),
            (LARGE, {"break_after": LARGE // 2}, "could not be read"),
            (LARGE, {"hang_after": 1000}, "could not be read"),
            (
                SMALL,
                {"damage": lambda piece: bytes([piece[0] ^ 1]) + piece[1:]},
                "could not be read",
            ),
            (SMALL, SLOW_DOWN, "Request rate"),
            (SMALL, EXPIRED, "expired"),
        ],
    )
    def test_one_that_lasts(self, bucket, proxy, configure, fails, size, fault, words):
        configure(proxy, read_timeout=0.5)
        bucket.put(b=os.urandom(size))
        proxy.faults.append(Fault(of("b"), times=None, **fault))
        fails(words)
        assert gets(proxy, "b") <= 2  # as s3fs has it

    @pytest.mark.parametrize("later", [None, b"x" * SMALL, b"x", b"x" * 2 * SMALL])
    def test_one_that_changed_after_it_was_listed(self, bucket, proxy, fails, later):
        changed = threading.Event()

        def change():
            bucket.delete("b") if later is None else bucket.put(b=later)
            changed.set()

        proxy.faults += [Fault(of("a"), before=change), Fault(of("b"), before=changed.wait)]
        fails(*(["FileNotFound"] if later is None else []))

    @pytest.mark.parametrize("size", [1, LARGE])
    def test_one_that_changes_while_the_next_is_read(self, bucket, proxy, fails, size):
        bucket.put(b=os.urandom(size))
        proxy.faults.append(Fault(of("c"), before=lambda: bucket.put(b=os.urandom(size))))
        fails("changed")


class TestStop:
    def test_a_task_that_is_ended_stops_reading_at_once(self, service, hook, run_id, bucket, proxy):
        bucket.put(a=os.urandom(LARGE), b=b"2")
        proxy.faults.append(Fault(of("b"), before=hook.stop, hang_after=0))
        with pytest.raises(NotSentError, match="the task was ended"):
            hook.upload_files(run_id, bucket.url())
        deadline = time.monotonic() + 5
        while (fetching := self.fetching()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert fetching == []
        assert service.uploads == []

    def fetching(self):
        """Return what still fetches, until it has noticed that it was cancelled."""
        import fsspec.asyn  # type: ignore[import-untyped]  # has no types

        tasks = asyncio.all_tasks(fsspec.asyn.loop[0])
        return [task for task in tasks if "_cat_file" in repr(task) or "_piece" in repr(task)]

    def test_a_lookup_that_hangs_ends_with_the_task(self, bucket, proxy):
        released = threading.Event()
        proxy.faults.append(Fault(before=lambda: released.wait(10), times=None))
        began = time.monotonic()
        with interrupted(0.5):
            resolve([bucket.url("a"), bucket.url("b")])
        assert time.monotonic() - began < 8
        released.set()
