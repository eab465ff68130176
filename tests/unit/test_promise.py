"""What the promise means where earlier versions broke it: only facts, through the public face."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import runpy
import time
import traceback
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.io import attach

from entry_keys import batch_key
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    InvalidRequestError,
    OutcomeUnknownError,
    RejectedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.operators.flows import UploadFilesOperator
from workflow_automation_provider.testing import DEMO_KEY, Key

from .batches import rows, statuses, times_started
from .starts import interrupted, trigger

MIB = 1024 * 1024

LONG_KEY = Key("wak-Zq7xK9Tbw2-mL4vR8nC1", "demo-flow", name="long")


@pytest.fixture
def workflow_automation_keys():
    return [DEMO_KEY, LONG_KEY]


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def digest(content):
    return (
        content["long_string"]["decoded"]["sha256"]
        if isinstance(content, dict)
        else sha256(base64.b64decode(content))
    )


def sent_files(service):
    """Return the name and the digest of each file that the service got."""
    return [
        (file["name"], digest(file["content"]))
        for upload in service.uploads
        for file in upload.files
    ]


# Files --------------------------------------------------------------------------------------------


@pytest.fixture
def upload(service, context):
    """Upload files for a run."""
    run_id = trigger().execute(context())["run_id"]
    return lambda files: UploadFilesOperator(task_id="upload", run_id=run_id, files=files).execute(
        context(task_id="upload")
    )


@pytest.fixture
def places(tmp_path, bucket):
    """Return, of each kind of place, what writes a file into it and the URL of its folder."""
    from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]  # has no types

    memory, folder = MemoryFileSystem(), f"/{bucket.name}"
    attach("memory", conn_id="promise", fs=memory)
    return {
        "file": (
            lambda name, content: (tmp_path / name).write_bytes(content),
            f"file://{tmp_path}/",
        ),
        "memory": (
            lambda name, content: memory.pipe(f"{folder}/{name}", content),
            f"memory://promise@{bucket.name}/",
        ),
        "s3": (bucket.write, bucket.url()),
    }


class TestSFTP:
    """As Airflow's own provider reads it."""

    @pytest.mark.parametrize("size", [0, 1, 3 * MIB + 1])
    def test_a_file_is_read_once_in_parts_after_one_start(
        self, service, context, store, sftp, size
    ):
        content = os.urandom(size)
        (sftp.folder / "big.bin").write_bytes(content)
        trigger(files=sftp.url("big.bin")).execute(context(store))
        assert sent_files(service) == [("big.bin", sha256(content))]
        assert len(service.runs) == 1
        assert sum(sftp.reads) == size
        assert max(sftp.reads, default=0) <= MIB

    def test_globs_and_folders(self, service, upload, sftp):
        (sftp.folder / "in" / "deep").mkdir(parents=True)
        for name in ("in/a.csv", "in/b.txt", "in/deep/c.csv"):
            (sftp.folder / name).write_bytes(name.encode())
        upload([sftp.url("in/*.csv"), sftp.url("in/")])
        assert [name for name, _ in sent_files(service)] == ["a.csv", "a.csv", "b.txt", "c.csv"]


class TestCredentials:
    """Of a URL that an author gave: no error shows them, whoever wrote it."""

    @pytest.fixture(params=["files", "prefix", "path", "batch", "output_path"])
    def fails(self, request, service, context, batch):
        """Name a URL where one is taken, and return all that its error says."""

        makers: dict[str, Any] = {"prefix": lambda url: f"{url}/", "path": ObjectStoragePath}
        make = makers.get(request.param, str)

        def execute(url):
            if request.param == "batch":
                batch(url)
            elif request.param == "output_path":
                batch(rows(1), output_path=url)
            else:
                trigger(files=[make(url)]).execute(context())

        def run(url):
            with pytest.raises(WorkflowAutomationError) as caught:
                execute(url)
            assert service.runs == []
            return "".join(traceback.format_exception(caught.value))

        return run

    @pytest.mark.parametrize("password", ["Pw-7hush9Q", "hush", "Pw%2D7hush%409Q"])
    def test_a_password_in_a_url_is_in_no_error(self, fails, password):
        shown = fails(f"sftp://report:{password}@files.example/x")
        assert password not in shown
        assert "Pw-7hush" not in shown

    @pytest.mark.parametrize("scheme", ["sftp", "ssh"])
    def test_a_url_without_a_connection_is_explained(self, fails, scheme):
        shown = fails(f"{scheme}://files/data/x")
        assert f"name a connection: {scheme}://conn_id@/" in shown
        assert "[invalid-request]" in shown


@pytest.mark.parametrize("place", ["file", "memory", "s3"])
class TestNamesThatLookLikePartsOfURLs:
    """The file that is meant is sent, never another that is there as well."""

    def test_files(self, service, upload, places, place):
        write, url = places[place]
        for other in ("report", "a", "ab", "a b", "a?x"):
            write(other, b"wrong")
        names = ["report#", "a#b", "a?", "a\tb", "a%20b", "a;", "a?x#", "a#?"]
        for name in names:
            write(name, name.encode())
        upload([f"{url}{name}" for name in names])
        assert sent_files(service) == [(name, sha256(name.encode())) for name in names]

    def test_a_glob_that_ends_in_a_wildcard(self, service, upload, places, place):
        write, url = places[place]
        for name in ("report-1", "report-10", "report-11", "report-2"):
            write(name, name.encode())
        upload(f"{url}report-1?")
        assert [name for name, _ in sent_files(service)] == ["report-10", "report-11"]

    def test_a_file_that_is_not_there(self, service, upload, places, place):
        write, url = places[place]
        for name, other in (("a#", "a"), ("a?", "a"), ("a\nb", "ab")):
            write(other, b"wrong")
            with pytest.raises(WorkflowAutomationError):
                upload([{"a": 1}, f"{url}{name}"])
        assert service.uploads == []

    def test_a_batch_and_its_output(self, service, batch, places, place):
        write, url = places[place]
        name = "a?#\tb"
        for other in ("a", "ab", "a?"):
            write(other, b'{"n": "wrong"}')
        write(name, b'{"n": 1}')
        batch(f"{url}{name}", output_path=f"{url}out{name}")
        assert [run.inputs for run in service.runs] == [{"n": 1}]
        batch(f"{url}out{name}")
        assert [run.inputs["status"] for run in service.runs[1:]] == ["started"]


@pytest.mark.parametrize("url", ["s3://buck\tet/a", "s3://conn\n@bucket/a", "memory://b\rucket/a"])
def test_a_bucket_whose_name_has_what_no_url_holds(service, upload, url):
    with pytest.raises(InvalidRequestError, match=r"files\[1\]"):
        upload([{"a": "mapping"}, url])
    assert service.uploads == []


@pytest.mark.parametrize("pattern", ["", "*"])
def test_a_name_that_is_not_utf8(service, context, tmp_path, pattern):
    name = os.fsdecode(b"report-\xe9.csv")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / name).write_bytes(b"1")
    files = f"{folder}/{pattern or name}"
    for source in (files, f"file://{files}"):
        with pytest.raises(InvalidRequestError) as caught:
            trigger(files=[__file__, source]).execute(context())
        assert repr(f"{folder}/{name}") in str(caught.value)
    assert service.journal.requests() == []


# Batches ------------------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "example_dags" / "workflow_automation_batch_rest.py"


def read_items(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


STORE_IS_GONE = RuntimeError("The store is gone")


def failing(*, at):
    """Return what fails before a value is written of which a condition holds."""

    def before_set(_, value):
        if at(value):
            raise STORE_IS_GONE

    return before_set


def select_failed(tmp_path, items, output):
    """Return the items that the example selects."""
    batch = tmp_path / "batch.jsonl"
    batch.write_text("".join(f"{json.dumps(item)}\n" for item in items))
    names = runpy.run_path(str(EXAMPLE))
    return read_items(Path(names["select"].function(str(batch), str(output))))


@pytest.mark.parametrize("before", [None, "an earlier result\n"])
def test_a_kill_at_any_time_leaves_the_output_file_as_it_was(batch, service, tmp_path, before):
    path = tmp_path / "output" / "output.jsonl"
    path.parent.mkdir()
    if before is not None:
        path.write_text(before)
    found = []

    def look(*_):
        found.append(path.read_text() if path.exists() else None)

    batch(rows(20), output_path=str(path), before_set=look, max_concurrency=2, retries=0)
    assert len(found) > 2
    assert set(found) == {before}
    assert statuses(read_items(path)) == {"started": 20}
    assert [*path.parent.iterdir()] == [path]


def test_the_output_of_a_batch_that_is_timed_out(batch, service, tmp_path):
    """In the last try; the next one would go on."""
    path = tmp_path / "output.jsonl"
    # 16 at a time, so that all take longer than both tries together.
    service.faults.add("delay", seconds=0.4, times=None)
    with interrupted(1):
        batch(rows(120), output_path=str(path))
    assert not path.exists()
    with interrupted(1):
        batch(rows(120), output_path=str(path), try_number=4)
    items = read_items(path)
    assert len(items) == 120
    runs = {run.inputs["n"]: run.run_id for run in service.runs}
    assert 0 < len(runs) < 120
    assert {item["index"]: item["run_id"] for item in items if item["status"] == "started"} == runs
    rest = [item["n"] for item in select_failed(tmp_path, rows(120), path)]
    assert rest == [item["index"] for item in items if item["status"] == "not started"]
    assert rest
    assert not runs.keys() & set(rest)


def test_a_file_of_an_earlier_try_makes_nothing_start_twice(batch, service, tmp_path):
    """Airflow retries a batch that found the service busy, and its next try may be killed."""
    path = tmp_path / "output.jsonl"
    fault = service.faults.add("busy", times=None, inputs={"n": 5})
    with pytest.raises(BusyError):
        batch(rows(10), output_path=str(path), max_concurrency=1)
    assert not path.exists()
    with pytest.raises(BusyError):
        batch(rows(10), output_path=str(path), max_concurrency=1, try_number=4)
    fault.remaining = 0
    batch(select_failed(tmp_path, rows(10), path))
    assert times_started(service) == dict.fromkeys(range(10), 1)


SIGNED = "https://reader:password-of-a-url@there.example/batch.jsonl?sig=signature-of-a-url"
NOWHERE = "nowhere://a:password-of-a-url@there/b"


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            {name: url}
            for name in ("items", "output_path")
            for url in (SIGNED, f"{SIGNED}{{{{ a }}}}", NOWHERE)
        ),
        {"items": "ftp://user:password-of-a-url@host/rows.jsonl"},
        {"output_path": f"{SIGNED}/"},
    ],
)
def test_errors_of_a_batch_hide_credentials_of_urls(batch, service, log, arguments):
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(**{"items": rows(1), **arguments})
    for text in (str(caught.value), repr(caught.value), log()):
        assert "password-of-a-url" not in text
        assert "signature-of-a-url" not in text
    assert service.journal.requests() == []


def depth(value):
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, parts), default=0)


def check_storable(_, value):
    """Take what Airflow's task runner can send to its supervisor, and its API server can read."""
    msgspec.msgpack.encode(value)
    assert depth(value) < 200


NOT_STORABLE = ['{"ticket": 123456789012345678901234567890}', f'{"[" * 300}"ticket-7"{"]" * 300}']


@pytest.mark.parametrize("body", NOT_STORABLE)
def test_a_response_that_cannot_be_stored_becomes_text(batch, context, store, service, body):
    service.faults.add("response", body=body, times=41)
    for number in (1, 2, 4):
        items = batch(rows(40), try_number=number, before_set=check_storable, max_concurrency=2)
        assert [item["response"] for item in items] == [body] * 40
    assert times_started(service) == dict.fromkeys(range(40), 1)
    store.before_set = check_storable
    for number in (1, 2):
        result = trigger().execute(context(store, try_number=number))
        msgspec.msgpack.encode(result)
        assert result["response"] == body
    assert len(service.runs) == 41


def test_the_log_has_the_response_that_no_entry_holds(batch, context, store, service, log):
    """Of a batch, and of a single start."""
    service.faults.add("response", inputs={"n": 0}, body={"ticket": "first-ticket"})
    service.faults.add(
        "response", inputs={"n": 1}, body={"ticket": "second-ticket", "more": "x" * 5000}
    )
    service.faults.add("response", body={"ticket": "third-ticket"})
    with pytest.raises(WorkflowAutomationError):
        batch(rows(2), before_set=failing(at=lambda value: value.get("results")))
    store.before_set = failing(at=lambda value: value.get("status") == "started")
    assert trigger().execute(context(store))["response"] == {"ticket": "third-ticket"}
    text = log()
    assert [
        name for name in ("first-ticket", "second-ticket", "third-ticket") if name not in text
    ] == []


@pytest.mark.parametrize("items", [rows(30), 5])
@pytest.mark.parametrize("error", [STORE_IS_GONE, KeyError("store")])
def test_a_record_that_cannot_be_read_in_the_last_try_hides_no_run(batch, service, items, error):
    """Whatever its source is by then, which is not read."""
    service.faults.add("reject", status=401, inputs={"n": 100})
    with pytest.raises(RejectedError):
        batch(rows(200))
    started = len(service.runs)
    assert started

    with pytest.raises(WorkflowAutomationError) as caught:
        batch(items, before_get=Mock(side_effect=error), try_number=4)
    assert caught.value.accepted is Accepted.MAYBE
    assert caught.value.code == "batch-interrupted"
    assert batch_key(0) in caught.value.next_step
    assert len(service.runs) == started


def test_an_unreadable_record_of_a_first_try_mentions_no_earlier_ones(batch, service):
    with pytest.raises(WorkflowAutomationError) as caught:
        batch(rows(3), before_get=Mock(side_effect=STORE_IS_GONE))
    assert caught.value.accepted is Accepted.NO
    assert service.journal.requests() == []


def test_a_quota_ends_nothing(batch, context, service):
    """Each time, it asks to wait for longer than send_retry_timeout."""
    for n in (3, 9):
        service.faults.add("busy", retry_after="2", inputs={"n": n})
    assert statuses(batch(rows(20), send_retry_timeout=1.9, max_concurrency=1)) == {"started": 20}
    assert times_started(service) == dict.fromkeys(range(20), 1)
    # Once each: what chance adds to the first wait does count, and may use up all of the time.
    for operation in ("trigger_by_key", "upload"):
        service.faults.add("busy", retry_after="2", operation=operation)
    assert trigger(files=[{"a": 1}], send_retry_timeout=1.9).execute(context())["run_id"]
    assert (len(service.runs), len(service.uploads)) == (21, 1)


@pytest.mark.parametrize(("asked", "timeout"), [("601", 60), ("5", 0)])
def test_a_longer_wait_is_left_to_airflow(batch, service, context, asked, timeout):
    """Longer than ten minutes; and without any retries within a try."""
    service.faults.add("busy", retry_after=asked, times=None)
    began = time.monotonic()
    with pytest.raises(BusyError) as caught:
        batch(rows(5), send_retry_timeout=timeout)
    assert caught.value.retry_after == int(asked)
    with pytest.raises(BusyError):
        trigger(send_retry_timeout=timeout).execute(context())
    assert time.monotonic() - began < 60
    assert service.runs == []


@pytest.mark.parametrize("on_rejected", ["fail", "skip"])
def test_an_item_that_is_forbidden_is_rejected_like_any_other(
    batch, service, tmp_path, on_rejected
):
    path = tmp_path / "output.jsonl"
    for n in (3, 40, 41):
        service.faults.add("reject", status=403, inputs={"n": n})
    if on_rejected == "skip":
        batch(rows(100), on_rejected="skip", output_path=str(path))
    else:
        with pytest.raises(RejectedError) as caught:
            batch(rows(100), output_path=str(path))
        assert caught.value.accepted is Accepted.YES
    assert statuses(read_items(path)) == {"started": 97, "rejected": 3}
    assert times_started(service).keys() == {*range(100)} - {3, 40, 41}


@pytest.mark.parametrize(
    ("status", "good", "bad", "options", "rejected"),
    [
        *(
            (403, 20, 500, {"max_concurrency": 4, "on_rejected": what}, (5, 16))
            for what in ("fail", "skip")
        ),
        # All of it: its key may be rejected; the default of max_concurrency is 16.
        *((403, 0, bad, {}, (bad, bad)) for bad in (1, 16)),
        # Of the key, the flow or the URL.
        *((status, 0, 100, {"max_concurrency": 4}, (1, 8)) for status in (401, 402, 404, 405, 410)),
    ],
)
def test_rejections_that_end_a_batch(batch, service, status, good, bad, options, rejected):
    service.faults.add("reject", status=status, times=None, inputs={"late": True})
    with pytest.raises(RejectedError) as caught:
        batch([*rows(good), *rows(bad, late=True)], **{"on_rejected": "skip", **options})
    assert caught.value.status == status
    assert len(service.runs) == good
    assert rejected[0] <= len(service.journal.requests()) - good <= rejected[1]


def test_forbidden_items_do_not_hide_that_the_service_is_failing(batch, service):
    for n in range(100):
        fault, options = ("reject", {"status": 403}) if n % 2 else ("drop_after", {})
        service.faults.add(fault, inputs={"n": n}, **options)
    with pytest.raises(WorkflowAutomationError):
        batch(rows(100), on_rejected="skip", max_concurrency=2)
    assert len(service.runs) <= 8


def test_a_batch_is_read_from_sftp(service, batch, sftp):
    lines = b"".join(b'{"n": %d, "more": "%s"}\n' % (number, b"x" * 40_000) for number in range(30))
    (sftp.folder / "rows.jsonl").write_bytes(lines)
    batch(sftp.url("rows.jsonl"))
    assert sorted(run.inputs["n"] for run in service.runs) == [*range(30)]
    assert max(sftp.reads) <= MIB


# Responses ----------------------------------------------------------------------------------------

PASSWORD = "hush-hush-1234"


@pytest.fixture
def started(workflow_automation_service, workflow_automation_connect):
    """Start a run with a key and a header that are worth hiding; its response is as given."""
    headers = {"Authorization": f"Bearer {PASSWORD}"}
    workflow_automation_connect(key=LONG_KEY, extra={"headers": headers})

    def start(body):
        workflow_automation_service.faults.add("response", body=body)
        hook = WorkflowAutomationHook()
        return hook.trigger_flow({})

    return start


@pytest.mark.parametrize(
    "secret",
    [
        PASSWORD,
        LONG_KEY.value,
        base64.b64encode(LONG_KEY.value.encode()).decode(),
    ],
)
def test_no_link_shows_a_secret(started, secret):
    run = started({"run_id": "7", "run_link": f"https://service.example/runs/7?by={secret}"})
    assert (run.run_id, run.run_link) == ("7", None)
    assert secret not in f"{run}{run.response}"


@pytest.mark.parametrize(
    "escape",
    [
        "\\u{:04x}",
        "%{:02x}",
        "&#{};",
        "\\u0026#x{:x};",
    ],  # the last as Go and .NET write the one before
)
def test_escapes_hide_no_key(started, escape):
    signs = enumerate(LONG_KEY.value)
    key = "".join(sign if place % 3 else escape.format(ord(sign)) for place, sign in signs)
    run = started(
        f'{{"run_id": "7", "run_link": "https://service.example/{key}", "words": ["by {key}"]}}'
    )
    assert (run.run_id, run.run_link) == ("7", None)
    assert "words" not in str(run.response)


LOGIN = "<html><head><title>Sign in</title></head></html>"


@pytest.mark.parametrize(
    ("content_type", "words", "confirms"),
    [
        ("application/xhtml+xml", "Sign in", False),
        ("Application/XHTML+XML; charset=utf-8", LOGIN, False),
        ("text/html", "Sign in", False),
        ("application/json", f"\ufeff\r\n {LOGIN}", False),
        ("text/plain", f"<!DOCTYPE html>\n{LOGIN}", False),
        (
            "text/plain",
            f'<?xml version="1.0"?>\n<!-- <x> --> <!DOCTYPE HTML PUBLIC "-//W3C//DTD">\n{LOGIN}',
            False,
        ),
        ("", "<script>location = '/login'</script>", False),
        *(
            ("text/plain", words, True)
            for words in ("thanks", '"<html> received"', "<received/>", "1 < 2")
        ),
        *(("text/plain", words, True) for words in ("<p1.csv> received", "<?xml?><received/>")),
    ],
)
def test_a_login_page_confirms_no_upload_but_other_text_does(
    service, content_type, words, confirms
):
    headers = {"Content-Type": content_type}
    service.faults.add("response", operation="upload", body=words, headers=headers)
    hook = WorkflowAutomationHook()
    hook.trigger_flow({})
    with contextlib.nullcontext() if confirms else pytest.raises(OutcomeUnknownError, match="200"):
        hook.upload_files("1001", [{"a": 1}], "demo-flow")
    assert len(service.uploads) == 1
