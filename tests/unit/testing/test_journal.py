from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import httpx
import pytest

from workflow_automation_provider.testing import Journal
from workflow_automation_provider.testing._server.journal_writer import JournalWriter
from workflow_automation_provider.testing.journal import Run

from .conftest import Caller

COMMAND = [sys.executable, "-m", "workflow_automation_provider.testing"]
RUN = Run("1001", "f", {"é": "\ud800"}, "path", None, "2024-05-01T12:00:00+00:00")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "written.jsonl"


def test_reader_gives_back_what_was_written(path):
    assert Journal(path).runs() == []
    writer = JournalWriter(path)
    writer.write(RUN)
    assert Journal(path).runs() == [RUN]
    assert (Journal(path).uploads(), Journal(path).requests()) == ([], [])
    writer.close()


def test_every_line_is_one_event_with_the_fields_of_its_record(service, call):
    call.by_key({"a": "b"})
    run, request = [json.loads(line) for line in service.journal.path.read_text().splitlines()]
    assert run.pop("at")
    assert run == {
        "event": "run",
        "run_id": "1001",
        "flow_id": "demo-flow",
        "inputs": {"a": "b"},
        "by": "key",
        "key": "demo",
    }
    assert (request["event"], request["status"]) == ("request", 201)


def start(path):
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--journal", path],
        stdout=subprocess.PIPE,
        text=True,
    )
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
        assert Caller(http).by_path().json()["run_id"] == "1004"
        assert Caller(http).upload("1003", key="demo-key").status_code == 403
        assert Caller(http).upload("1001", key="demo-key").status_code == 200
        assert "hung" in http.get("/runs/1003").text
        os.kill(process.pid, signal.SIGKILL)
    assert [run.run_id for run in Journal(path).runs()] == ["1001", "1002", "1003", "1004"]
    assert len(Journal(path).uploads()) == 2
