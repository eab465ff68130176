"""Reading ahead, of a store that is made for the test: order, memory, and stores of all kinds."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import http.server
import random
import signal
import threading
import time

import fsspec.asyn  # type: ignore[import-untyped]  # has no types
import pytest
from fsspec.implementations.http import HTTPFileSystem  # type: ignore[import-untyped]  # nor has this
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]  # nor has this
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflow_automation_provider.client.files import read_whole
from workflow_automation_provider.exceptions import FileUnavailableError
from workflow_automation_provider.hooks.cloud_stores import _Gcs
from workflow_automation_provider.hooks.read_ahead import ObjectReading
from workflow_automation_provider.hooks.stores import Store, StoredFile

from .conftest import resolved

try:
    from airflow.sdk.io import attach
except ImportError:  # Airflow 2
    from airflow.io.store import attach  # type: ignore[import-not-found, no-redef]  # not there in Airflow 3

KIB, MIB = 1024, 1024 * 1024


def never():
    return False


class FileSystem:
    """An asynchronous file system of fsspec, as far as it is used."""

    async_impl = True
    asynchronous = False

    def __init__(self):
        self.loop = fsspec.asyn.get_loop()
        self.contents: dict[str, bytes] = {}
        self.told: dict[str, object] = {"ETag": "1"}
        self.asked: list[tuple[str, int | None, int | None]] = []

    def unstrip_protocol(self, key):
        return f"test://{key}"

    def invalidate_cache(self, path=None):
        pass

    async def _cat_file(self, path, start=None, end=None):
        self.asked.append((path, start, end))
        await asyncio.sleep(0)
        return self.contents[path][start:end]

    async def _info(self, path):
        return {"size": len(self.contents[path]), "type": "file", **self.told}

    def file(self, key, content, store):
        self.contents[key] = content
        return StoredFile(store, key, {"size": len(content), **self.told}, "x/y")


class Breaking(Store):
    """Sends an object in pieces of any size, and breaks off now and then."""

    overhead = 64 * KIB

    def __init__(self, fs, read_ahead, seed, breaks):
        super().__init__(fs, read_ahead)
        self._random = random.Random(seed)
        self._breaks = breaks

    async def respond(self, file, start):
        store, content = self, self.fs.contents[file.key]

        class Response:
            is_of_version = True
            may_resume = bool(file.version)
            at = start

            async def read(self, size):
                await asyncio.sleep(0)
                # Not behind the last byte: an error there says that the content was damaged.
                if store._breaks and self.at < len(content) and store._random.random() < 0.05:
                    store._breaks -= 1
                    raise ConnectionResetError
                piece = content[self.at : self.at + store._random.randint(1, size)]
                self.at += len(piece)
                return piece

            def close(self):
                pass

        return Response()


sizes = st.lists(st.integers(0, 3) | st.integers(0, 300 * KIB) | st.just(9 * MIB), max_size=12)


@given(sizes, st.integers(8 * MIB, 40 * MIB), st.integers(), st.integers(0, 4))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_files_come_whole_and_in_order_within_the_budget(file_sizes, budget, seed, breaks):
    fs = FileSystem()
    store = Breaking(fs, lambda files, stopped: ObjectReading(files, stopped, budget), seed, breaks)
    block = random.Random(seed).randbytes(9 * MIB + 12)
    files = [
        fs.file(str(number), block[number : number + size], store) for number, size in enumerate(file_sizes)
    ]
    reading = ObjectReading(files, never, budget)
    most = 0
    try:
        for file in files:
            hashed, length = hashlib.sha256(), 0
            for chunk in read_whole(file, reading=reading):
                assert length % 3 == 0
                hashed.update(chunk)
                length += len(chunk)
                most = max(most, sum(fetch._given - fetch._taken for fetch in reading._fetches))
            assert hashed.digest() == hashlib.sha256(fs.contents[file.key]).digest()
    finally:
        reading.close()
    assert most <= budget


def test_many_small_and_huge_ones_are_within_the_budget_while_the_service_takes_nothing():
    fs = FileSystem()
    store = Store(fs, lambda files, stopped: ObjectReading(files, stopped, 16 * MIB))
    contents = [b"x" * 10 * KIB] * 2000 + [b"y" * 20 * MIB] * 5 + [b"z" * 3 * MIB] * 20
    random.Random(1).shuffle(contents)
    files = [fs.file(str(number), content, store) for number, content in enumerate(contents)]
    reading = ObjectReading(files, never, 16 * MIB)
    first = reading.chunks(files[0])
    next(first)
    time.sleep(0.5)
    fetched = sum(fetch._given for fetch in reading._fetches)
    reading.close()
    assert MIB < fetched <= 16 * MIB


class TestWithoutConditions:
    """A store that only has what all of fsspec's have is looked at once after an object was read."""

    @pytest.fixture
    def fs(self):
        return FileSystem()

    @pytest.fixture
    def store(self, fs):
        return Store(fs, lambda files, stopped: ObjectReading(files, stopped, 32 * MIB))

    def test_a_large_one_is_read_in_parts(self, fs, store):
        content = random.Random(1).randbytes(5 * MIB)
        assert b"".join(read_whole(fs.file("a", content, store))) == content
        assert [(start, end) for _, start, end in fs.asked] == [
            (0, 2 * MIB),
            (2 * MIB, 4 * MIB),
            (4 * MIB, 5 * MIB),
        ]

    @pytest.mark.parametrize("size", [0, 1, 100 * KIB])
    def test_a_small_one_is_read_at_once(self, fs, store, size):
        assert b"".join(read_whole(fs.file("a", b"x" * size, store))) == b"x" * size
        assert fs.asked == [("a", None, None)]

    @pytest.mark.parametrize(
        ("size", "later"),
        [(0, 0), (0, 1), *((size, size + more) for size in (1000, 3 * MIB) for more in (0, 1, -1))],
    )
    def test_one_that_changed_is_noticed(self, fs, store, size, later):
        file = fs.file("a", b"x" * size, store)
        if later == size:  # it was written again
            fs.told = {"ETag": "2"}
        fs.contents["a"] = b"x" * later
        with pytest.raises(FileUnavailableError, match=r"'test://a' "):
            b"".join(read_whole(file))

    def test_a_look_may_tell_other_things_than_a_listing(self, fs, store):
        fs.told = {"created": "1"}
        file = fs.file("a", b"x", store)
        fs.told = {"modified": "2"}
        assert b"".join(read_whole(file)) == b"x"

    @pytest.mark.parametrize("later", ["1710121099999", "1710122012345"])
    def test_a_number_is_no_time(self, fs, store, later):
        fs.told = {"modificationTime": "1710121012345"}
        file = fs.file("a", b"x", store)
        fs.told = {"modificationTime": later}
        with pytest.raises(FileUnavailableError, match="was overwritten"):
            b"".join(read_whole(file))

    @pytest.mark.parametrize("what", ["_cat_file", "_info"])
    @pytest.mark.parametrize("told", [{"ETag": "1"}, {}])
    def test_one_that_is_busy_is_asked_again(self, fs, store, what, told):
        fs.told = told
        file = fs.file("a", b"x", store)
        ask, errors = getattr(fs, what), [OSError(16, "Please reduce your request rate.")] * 2

        async def busy(*arguments, **options):
            if errors:
                raise errors.pop()
            return await ask(*arguments, **options)

        setattr(fs, what, busy)
        assert b"".join(read_whole(file)) == b"x"

    def test_a_look_that_takes_for_ever(self, fs, store, monkeypatch):
        monkeypatch.setattr("workflow_automation_provider.hooks.read_ahead.READ_TIMEOUT", 0.05)
        monkeypatch.setattr("workflow_automation_provider.hooks.read_ahead._FIRST_WAIT", 0.001)
        file = fs.file("a", b"x", store)

        async def hang(_):
            await asyncio.sleep(3600)

        fs._info = hang
        with pytest.raises(FileUnavailableError, match="TimeoutError"):
            b"".join(read_whole(file))

    @pytest.mark.parametrize("what", ["_cat_file", "_info"])
    def test_what_its_client_cancels_is_not_waited_for(self, fs, store, what):
        file = fs.file("a", b"x", store)

        async def cancelled(*_, **__):
            raise asyncio.CancelledError

        setattr(fs, what, cancelled)
        late = time.monotonic() + 10
        with pytest.raises(FileUnavailableError, match="client cancelled it"):
            b"".join(read_whole(file, stopped=lambda: time.monotonic() > late))

    def test_a_look_at_many_ends_with_the_task(self, fs, store):
        cancelled = threading.Event()

        async def hang(_):
            try:
                await asyncio.sleep(3600)
            finally:
                cancelled.set()

        fs._info = hang

        def end(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(KeyboardInterrupt):
                store.infos(["a", "b"])
        finally:
            signal.signal(signal.SIGALRM, before)
        assert cancelled.wait(5)

    def test_what_has_no_version_is_not_taken_up_again(self, fs):
        """The rest could be that of another version."""
        fs.told = {}
        store = Breaking(fs, lambda files, stopped: ObjectReading(files, stopped, 32 * MIB), 3, 1000)
        with pytest.raises(FileUnavailableError, match="ConnectionResetError"):
            b"".join(read_whole(fs.file("a", b"x" * 9 * MIB, store)))


class TestInTheThreadThatSends:
    """File systems that are not asynchronous."""

    @pytest.fixture
    def store(self):
        fs = MemoryFileSystem()
        attach("memory", fs=fs)
        yield fs
        fs.rm("/read-ahead", recursive=True)

    def test_files_are_read_one_after_the_other(self, store, service, hook):
        contents = {f"{number}.bin": random.Random(number).randbytes(number * 200_000) for number in range(5)}
        for name, content in contents.items():
            store.pipe(f"/read-ahead/{name}", content)
        run_id = hook.trigger_flow({}, "demo-flow").run_id
        hook.upload_files(run_id, "memory://read-ahead/", "demo-flow")
        (upload,) = service.uploads
        assert [file["name"] for file in upload.files] == [*contents]
        assert [file["content"]["long_string"]["decoded"]["sha256"] for file in upload.files[1:]] == [
            hashlib.sha256(content).hexdigest() for content in [*contents.values()][1:]
        ]

    @pytest.mark.parametrize("later", [b"2222", b"22222", b"222"])
    def test_one_that_changes_is_noticed(self, store, later):
        store.pipe("/read-ahead/a", b"1111")
        (file,) = resolved("memory://read-ahead/a")
        store.pipe("/read-ahead/a", later)
        with pytest.raises(FileUnavailableError, match=r"/read-ahead/a' "):
            b"".join(read_whole(file))

    def test_one_that_is_gone(self, store):
        store.pipe("/read-ahead/a", b"1111")
        store.pipe("/read-ahead/b", b"")
        (file,) = resolved("memory://read-ahead/a")
        store.rm("/read-ahead/a")
        with pytest.raises(FileUnavailableError, match=r"/read-ahead/a' .*FileNotFoundError"):
            b"".join(read_whole(file))


class WebServer(http.server.ThreadingHTTPServer):
    """Serves one object as Google does, or what a test has it return instead."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.generation = b"", "1"
        self.statuses: list[int] = []
        self.break_after: list[int] = []
        self.asked: list[str | None] = []


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def do_GET(self):
        server, content = self.server, self.server.content
        server.asked.append(asked := self.headers.get("Range"))
        status = server.statuses.pop(0) if server.statuses else 200
        if status == 200 and f"ifGenerationMatch={server.generation}" not in self.path:
            status = 412
        content = content if status == 200 else b""
        headers = {"x-goog-generation": server.generation, "Content-Encoding": "gzip"}
        if asked and content:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content = content[start:]
        self.send_response(206 if asked and status == 200 else status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if server.break_after and content:
            content = content[: server.break_after.pop(0)]
            self.close_connection = True
        self.wfile.write(content)

    def log_message(self, *_):
        """Say nothing."""


class Google(HTTPFileSystem):  # type: ignore[misc]  # has no types
    """What is used of gcsfs, which is not installed."""

    _set_session = HTTPFileSystem.set_session

    def url(self, key):
        return key

    def _get_params(self, params):
        return params

    def _get_headers(self, headers):
        return headers


class TestGoogle:
    """tests/unit/hooks/test_other_stores.py reads from its emulator, where that is installed."""

    @pytest.fixture
    def web(self):
        server = WebServer()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        server.server_close()
        thread.join()

    @pytest.fixture
    def file(self, web):
        # Stored compressed. Its client's own requests would have it decompressed, to another size than was listed.
        web.content = gzip.compress(random.Random(1).randbytes(MIB))
        store = _Gcs(Google(), lambda files, stopped: ObjectReading(files, stopped, 32 * MIB))
        info = {"size": len(web.content), "generation": "1"}
        return StoredFile(store, f"http://127.0.0.1:{web.server_address[1]}/a.gz", info, "x/y")

    def test_one_conditional_request_for_each(self, web, file):
        assert b"".join(read_whole(file)) == web.content
        assert web.asked == [None]

    def test_what_breaks_off_is_taken_up_again(self, web, file, monkeypatch):
        monkeypatch.setattr("workflow_automation_provider.hooks.read_ahead._FIRST_WAIT", 0.01)
        web.break_after += [0, 1000, 400_000]
        web.statuses += [503, 429]
        assert b"".join(read_whole(file)) == web.content
        assert [asked for asked in web.asked if asked] == ["bytes=1000-", "bytes=401000-"]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"generation": "2"}, "was overwritten"),
            ({"content": b"x"}, "it has 1 bytes"),
            ({"statuses": [404]}, "FileNotFoundError"),
            ({"statuses": [403]}, "PermissionError"),
        ],
    )
    def test_one_that_changed_or_may_not_be_read(self, web, file, change, words):
        for name, value in change.items():
            setattr(web, name, value)
        with pytest.raises(FileUnavailableError, match=words):
            b"".join(read_whole(file))
        assert web.asked == [None]
