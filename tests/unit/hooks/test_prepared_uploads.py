"""Uploads that are prepared and then sent: measured once, read once, and the same request may be sent again."""

from __future__ import annotations

import base64
import io
import json
import os
import threading

import pytest

from workflow_automation_provider.client.files import File, UploadBody
from workflow_automation_provider.client.protocol import Operation
from workflow_automation_provider.exceptions import (
    BusyError,
    FileUnavailableError,
    InvalidRequestError,
)
from workflow_automation_provider.hooks.sources import resolve


class CountedFile:
    """A file that counts how often it is opened."""

    def __init__(self, content, name="a.txt"):
        self.opened = 0
        self.content = content
        self.file = File(name, len(content), "text/plain", f"<{name}>", self._open)

    def _open(self):
        self.opened += 1
        return io.BytesIO(self.content)


def body(request):
    """Return what is sent for a request, as bytes."""
    assert isinstance(request.content, UploadBody)
    return b"".join(request.content)


@pytest.fixture
def run_id(hook):
    return hook.trigger_flow({}, "demo-flow").run_id


def test_requests_hold_all_that_is_sent_but_the_key(service, hook, run_id, key):
    files = [CountedFile(b"x", name).file for name in ("a", "b", "c")]
    requests = hook.prepare_uploads(run_id, files, "demo-flow", file_format="name", files_per_request=2)
    assert [request.operation for request in requests] == [Operation.UPLOAD] * 2
    assert [request.title for request in requests] == [f"POST {service.base_url}/public/upload"] * 2
    assert [request.flow_id for request in requests] == ["demo-flow"] * 2
    assert [request.files for request in requests] == [files[:2], files[2:]]
    bodies = [body(request) for request in requests]
    assert [len(request.content) for request in requests] == [len(sent) for sent in bodies]
    assert [json.loads(sent) for sent in bodies] == [
        {"flow_id": "demo-flow", "run_id": run_id, "files": names} for names in (["a", "b"], ["c"])
    ]
    assert key not in repr(requests)
    assert service.journal.requests("upload") == []
    assert [hook.get_conn().send(request) for request in requests] == [
        "2 files received",
        "1 file received",
    ]
    assert [upload.files for upload in service.uploads] == [["a", "b"], ["c"]]


def test_request_can_be_sent_again(service, hook, run_id):
    (request,) = hook.prepare_uploads(run_id, [CountedFile(b"abc").file], "demo-flow", file_format="base64")
    service.faults.add("busy", operation="upload")
    with pytest.raises(BusyError):
        hook.get_conn().send(request)
    assert hook.get_conn().send(request) == "1 file received"
    (upload,) = service.uploads
    assert upload.files == [base64.b64encode(b"abc").decode()]


def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(hook, run_id, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a")
    (request,) = hook.prepare_uploads(run_id, resolve(path), "demo-flow")
    path.unlink()
    os.mkfifo(path)
    errors = []

    def send():
        try:
            hook.get_conn().send(request)
        except FileUnavailableError as error:
            errors.append(error)

    thread = threading.Thread(target=send, daemon=True)  # it would not end
    thread.start()
    thread.join(60)
    assert [error.code for error in errors] == ["file-unavailable"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"run_id": ""}, "run_id is empty"),
        ({"flow_id": 1.5}, "flow_id is a float"),
        ({"files": [{}, "a.txt"]}, r"files\[1\] is a str"),
        ({"files": [{}, {"a": {1}}]}, r"files\[1\]\.a is a set"),
        ({"file_format": "bas64"}, "file_format is not supported"),
        ({"max_request_bytes": 10}, r"files\[0\] .*49 bytes"),
    ],
)
def test_what_cannot_be_sent_is_named_before_anything_is(service, hook, arguments, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        hook.prepare_uploads(**{"run_id": "1", "files": [{}], "flow_id": "demo-flow", **arguments})
    assert "Nothing was sent." in str(caught.value).splitlines()
    assert service.journal.requests() == []
