"""What a batch is made from, and where its results go: checked before anything is sent."""

from __future__ import annotations

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from raw_server import response
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.hooks.files.sources import resolve

from ..batches import counts, rows, times_started
from ..starts import mentions


def test_a_pipe_or_a_device_is_refused(batch, service, tmp_path):
    """Reading or writing a pipe would wait for ever, and a device must not be replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for items, output in ((f"file://{pipe}", None), (rows(1), str(pipe)), (rows(1), os.devnull)):
        with pytest.raises(InvalidRequestError, match=r"(batch|output_path) is "):
            batch(items, output_path=output)
    assert service.journal.requests() == []


def test_the_lines_of_a_file_are_sent_as_written(batch, raw_server, tmp_path):
    path = tmp_path / "batch.jsonl"
    numbers = ["1234567890123456789.25", "1.10", "1E400", "-0", f"{'9' * 4000}", "0.1e-7"]
    server = raw_server(lambda _: response("7"))
    line = f'{{"ü \\" 1.50": [{", ".join(numbers)}], "b" : "2.50  3"}}'
    path.write_text(f" {line}\n")
    assert batch(str(path), workflow_automation_conn_id="raw")[0]["status"] == "started"
    body = f'{{"inputs":{line}}}'
    assert server.bodies == [body.encode()]


@pytest.mark.parametrize("shorter", [False, True])
def test_a_file_that_changes_while_it_is_sent_is_named(batch, service, tmp_path, shorter):
    """All items were checked, and not all were read again."""
    path = tmp_path / "batch.jsonl"
    # Longer than the blocks in which a file is read.
    lines = "".join(f"{json.dumps(row)}\n" for row in rows(150, filling="a" * 16_000))

    def change():
        while not service.journal.requests():
            time.sleep(0.001)
        with path.open("r+") as file:
            if shorter:
                file.truncate(lines.rindex("\n", 0, -1) + 1)
            else:
                file.write(lines.replace("aa", "bb"))

    path.write_text(lines)
    place = rf"batch\[\d+\] \({'' if shorter else 'line [0-9]+ '}of '{path}'\)"
    with pytest.raises(InvalidRequestError, match=place) as caught:
        batch(str(path), before=lambda _: threading.Thread(target=change).start())
    assert caught.value.consequence == counts(150, started=len(service.runs))
    assert max(times_started(service).values()) == 1
    assert {run.inputs["filling"][0] for run in service.runs} == {"a"}


@pytest.mark.parametrize(
    ("output", "scheme", "batch_scheme"),
    [("./batch.jsonl", "", "local://"), ("soft", "FILE://", "")],
)
def test_the_file_of_the_batch_is_not_written_over(
    batch, service, tmp_path, scheme, batch_scheme, output
):
    path = tmp_path / "batch.jsonl"
    path.write_text('{"n": 1}\n')
    (tmp_path / "soft").symlink_to(path)
    with pytest.raises(InvalidRequestError, match="output_path is "):
        batch(f"{batch_scheme}{path}", output_path=f"{scheme}{tmp_path}/{output}")
    assert path.read_text() == '{"n": 1}\n'
    assert service.journal.requests() == []


@pytest.mark.parametrize("argument", ["items", "output_path"])
@pytest.mark.parametrize("query", ["?versionId=old", "?versionid=old"])
def test_a_version_of_an_object_is_refused(batch, service, bucket, argument, query):
    """The store would read or write the current one."""
    bucket.write("batch.jsonl", b'{"n": 1}')
    url = bucket.url(f"batch.jsonl{query}")
    with pytest.raises(InvalidRequestError, match=r"(batch|output_path) is "):
        batch(**{"items": rows(1), argument: url})
    with pytest.raises(InvalidRequestError, match=r"files\[0\] is .*, a version"):
        resolve(url)
    assert service.journal.requests() == []


DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class _ReadOnly(BaseHTTPRequestHandler):
    """A bucket in which everybody may look, and nobody write."""

    def _respond(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self):
        self._respond(200)

    def do_GET(self):
        self._respond(200, b"<ListBucketResult></ListBucketResult>")

    def do_PUT(self):
        self._respond(403, DENIED)

    def log_message(self, *_):
        pass


@pytest.fixture
def read_only(bucket, monkeypatch):
    """Return the URL of an object in a bucket without the right to write."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _ReadOnly) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection = bucket.connection(server.server_port)
        monkeypatch.setenv("AIRFLOW_CONN_READ_ONLY", json.dumps(connection))
        yield "s3://read_only@bucket/output.jsonl"
        server.shutdown()


@pytest.mark.parametrize(
    ("place", "error"),
    [("bucket", InvalidRequestError), ("read_only", FileUnavailableError)],
)
def test_an_output_that_may_not_be_written_starts_nothing(batch, service, request, place, error):
    output = request.getfixturevalue(place)
    if place == "bucket":
        output = output.url().rstrip("/")
    with pytest.raises(error, match="output_path is ") as caught:
        batch(rows(2), output_path=output)
    if error is FileUnavailableError:
        assert mentions(caught.value.next_step, "output_path")
    assert service.journal.requests() == []
