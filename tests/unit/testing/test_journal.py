"""The journal: it survives a kill of the service at any moment, and has one writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx
import pytest

from workflow_automation_provider.testing import Journal, JournalError, LocalService
from workflow_automation_provider.testing._server.state import State
from workflow_automation_provider.testing.journal import Run

from .conftest import Caller

RUN = Run("1001", "f", {"é": "\ud800"}, "path", None, "2024-05-01T12:00:00+00:00")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "written.jsonl"


def write(path):
    state = State([], "", Journal(path))
    try:
        state.add(RUN)
    finally:
        state.close()


@pytest.mark.parametrize("kept", [0, 1, 20, -1])
def test_a_half_written_last_line_is_passed_over_and_dropped(path, kept):
    assert Journal(path).runs() == []
    write(path)
    line = path.read_bytes()
    path.write_bytes(line + line[:kept])
    assert Journal(path).runs() == [RUN]
    assert (Journal(path).uploads(), Journal(path).requests()) == ([], [])
    write(path)
    assert path.read_bytes() == line * 2


@pytest.mark.parametrize(
    "content",
    [b"hello\n", b"hello", b"[]\n", b'{"event": "other"}\n', b'{"event": "run", "x": 1}\n', b"\n"],
)
def test_another_file_is_rejected_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(JournalError, match="is not a journal"):
        write(path)
    assert path.read_bytes() == content


def test_one_writer_only(service):
    with pytest.raises(JournalError, match="Another service"):
        LocalService(journal=service.journal.path).start()


def test_a_failed_write_leaves_no_half_line(path, monkeypatch):
    write(path)
    whole = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: whole(fd, data[:10]))
        with pytest.raises(OSError, match="could not be written"):
            write(path)
    write(path)
    assert Journal(path).runs() == [RUN, RUN]


def test_it_is_synced_before_the_response(call, monkeypatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    call.by_path()
    assert len(synced) == 1


def start(path):
    command = [
        sys.executable,
        "-m",
        "workflow_automation_provider.testing",
        "--port",
        "0",
        "--journal",
        path,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    base_url = process.stdout.readline().split()[-1]
    return process, httpx.Client(base_url=base_url.removesuffix("/api"), trust_env=False)


def test_what_was_accepted_survives_a_kill(path):
    process, http = start(path)
    with http, process:
        call = Caller(http)
        assert [call.by_path().json()["run_id"] for _ in range(2)] == ["1001", "1002"]
        assert call.upload("1001", ["x"], key="demo-key").status_code == 200
        http.post("/_control/faults", json={"kind": "hang_after"})
        with pytest.raises(httpx.ReadTimeout):
            http.post("/api/flows/hung/trigger", json={"inputs": {}}, timeout=0.2)
        os.kill(process.pid, signal.SIGKILL)
    assert [run.flow_id for run in Journal(path).runs()] == ["demo-flow", "demo-flow", "hung"]
    path.write_bytes(path.read_bytes() + b'{"event": "ru')
    process, http = start(path)
    with http, process:
        call = Caller(http)
        assert call.by_path().json()["run_id"] == "1004"
        assert [call.upload(run, key="demo-key").status_code for run in ("1003", "1001")] == [
            403,
            200,
        ]
        assert "hung" in http.get("/runs/1003").text
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert [run.run_id for run in Journal(path).runs()] == ["1001", "1002", "1003", "1004"]
    assert len(Journal(path).uploads()) == 2
