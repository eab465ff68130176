"""The command line: python -m workflow_automation_provider.testing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import httpx
import pytest

from workflow_automation_provider.testing import DEMO_KEY

from .conftest import Caller

COMMAND = [sys.executable, "-m", "workflow_automation_provider.testing"]


@pytest.mark.parametrize("stop_by", [signal.SIGINT, signal.SIGTERM])
def test_command_line(tmp_path, stop_by):
    journal, port_file = tmp_path / "journal.jsonl", tmp_path / "port"
    arguments = ["--port", "0", "--journal", journal, "--port-file", port_file]
    arguments += ["--key", "hidden", "--key", "secret:flow:1", "--flow", "x", "--run-ids", "number"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    with process:
        first = process.stdout.readline()
        rest = [process.stdout.readline() for _ in range(4)]
        wait_for(port_file)
        url = f"http://127.0.0.1:{port_file.read_text().strip()}"
        assert first == f"Base URL: {url}/api\n"
        with httpx.Client(base_url=url, trust_env=False) as http:
            call = Caller(http)
            assert call.by_key(key="secret").json()["run_id"] == 1001
            assert call.by_key(key="hidden").status_code == 201
            assert call.by_path(flow_id="y").status_code == 404
        process.send_signal(stop_by)
        assert process.wait(5) == 0
        rest.append(process.stdout.read())
    shown = first + "".join(rest)
    assert str(journal) in shown
    assert "hidden" not in shown
    assert "secret" not in shown
    runs = [json.loads(line)["flow_id"] for line in journal.read_text().splitlines() if '"run"' in line]
    assert runs == ["flow:1", "demo-flow"]


def wait_for(path):
    deadline = time.monotonic() + 5
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_command_line_with_a_taken_port(service):
    done = subprocess.run([*COMMAND, "--port", str(service.port)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Cannot serve on 127.0.0.1 port {service.port}: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_command_line_without_the_extra(tmp_path, missing):
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name={missing!r})")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(COMMAND, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "pip install 'airflow-provider-workflow-automation[testing]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_command_line_shows_the_demo_key():
    process = subprocess.Popen([*COMMAND, "--port", "0"], stdout=subprocess.PIPE, text=True)
    with process:
        lines = [process.stdout.readline() for _ in range(4)]
        process.terminate()
    assert DEMO_KEY.value in lines[3]
