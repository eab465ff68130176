"""The command line: python -m workflow_automation_provider.testing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

import httpx
import pytest

from workflow_automation_provider.testing import DEMO_KEY, Journal
from workflow_automation_provider.testing.__main__ import main

from .conftest import Caller, wait_for

COMMAND = [sys.executable, "-m", "workflow_automation_provider.testing"]


@pytest.mark.parametrize("stop_by", [signal.SIGINT, signal.SIGTERM])
def test_command_line(tmp_path, stop_by):
    journal, port_file = tmp_path / "journal.jsonl", tmp_path / "port"
    arguments = ["--port", "0", "--journal", journal, "--port-file", port_file]
    arguments += ["--key", "hidden", "--key", "secret:flow:1", "--flow", "x", "--run-ids", "number"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        first = process.stdout.readline()
        rest = [process.stdout.readline() for _ in range(4)]
        wait_for(port_file.exists)
        url = f"http://127.0.0.1:{port_file.read_text().strip()}"
        assert first == f"Base URL: {url}/api\n"
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
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


def test_command_line_with_a_taken_port(service):
    done = subprocess.run([*COMMAND, "--port", str(service.port)], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"127.0.0.1 port {service.port}: " in done.stderr
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


@contextlib.contextmanager
def announced(*arguments):
    """Run the command; what it prints, until it serves."""
    port = ["--port", "0"]
    process = subprocess.Popen([*COMMAND, *port, *arguments], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        lines: list[str] = []
        # The last line is the fault's.
        while not (lines and lines[-1].startswith("curl ")):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        try:
            yield "".join(lines)
        finally:
            process.terminate()


def connections(printed):
    """The environment after the printed lines were pasted into a shell."""
    exports = "".join(line for line in printed.splitlines(keepends=True) if line.startswith("export "))
    done = subprocess.run(
        ["sh", "-c", f"{exports}env -0"], env={}, capture_output=True, text=True, check=True
    )
    found = dict(entry.partition("=")[::2] for entry in done.stdout.split("\0"))
    return {name: json.loads(value) for name, value in found.items() if name.startswith("AIRFLOW_CONN_")}


def test_the_demo_key_is_shown_and_its_connection_is_ready():
    with announced() as printed:
        base_url = printed.split()[2]
        assert f"value {DEMO_KEY.value}" in printed
        (connection,) = connections(printed).items()
        assert connection == (
            "AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT",
            {
                "conn_type": "workflow_automation",
                "host": base_url,
                "password": DEMO_KEY.value,
                "extra": {"flow_id": DEMO_KEY.flow_id},
            },
        )
        with httpx.Client(base_url=base_url.removesuffix("/api"), trust_env=False) as http:
            assert Caller(http).by_key(key=connection[1]["password"]).status_code == 201


def test_each_key_has_a_connection_with_a_placeholder_for_its_value():
    with announced("--key", "hidden:it's a flow", "--key", "secret") as printed:
        pass
    assert "hidden" not in printed
    assert "secret" not in printed
    found = connections(printed)
    assert {name: (c["password"], c["extra"]) for name, c in found.items()} == {
        "AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT": ("VALUE OF KEY 1", {"flow_id": "it's a flow"}),
        "AIRFLOW_CONN_WORKFLOW_AUTOMATION_2": ("VALUE OF KEY 2", {"flow_id": "demo-flow"}),
    }


def test_callbacks(tmp_path):
    journal = tmp_path / "journal.jsonl"
    options = ["--callback", '{"result": 1, "inputs": {"day": "x"}}', "--callback", "--journal", journal]
    with announced(*options) as printed, httpx.Client(trust_env=False, timeout=60) as http:
        url = printed.split()[2].removesuffix("/api")
        for day in "xy":
            http.post(
                f"{url}/api/flows/f/trigger", json={"inputs": {"day": day, "callback_url": f"{url}/here"}}
            )
        wait_for(lambda: len(Journal(journal).callbacks()) == 2)
    bodies = [
        callback.body for callback in sorted(Journal(journal).callbacks(), key=lambda sent: sent.run_id)
    ]
    assert bodies == [{"status": "success", "result": 1}, {"status": "success"}]


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
@pytest.mark.parametrize("https", [False, True], ids=["http", "https"])
def test_the_printed_curl_command_scripts_a_fault(https, certificate):
    options = ["--certfile", certificate / "cert.pem", "--keyfile", certificate / "key.pem"] if https else []
    with announced(*options) as printed:
        (command,) = [line for line in printed.splitlines() if line.startswith("curl ")]
        environment = {"PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            command, shell=True, env=environment, capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout)["kind"] == "busy"
        url = printed.split()[2].removesuffix("/api")
        with httpx.Client(base_url=url, verify=False, trust_env=False, timeout=60) as http:
            response = Caller(http).by_path()
            assert (response.status_code, response.headers["retry-after"]) == (429, "5")
            assert Caller(http).by_path().status_code == 201


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--key", ":flow"], "--key number 1 "),
        (["--key", "a:x", "--key", "a:y"], "Two keys"),
        (["--port", "70000"], "port is 70000"),
        (["--public-url", "here"], "public_url is 'here'"),
        (["--callback", "["], "--callback number 1 "),
        (["--callback", "--callback", "[]"], "--callback number 2 "),
        (["--callback", '{"delay": -1}'], "delay is -1"),
        (["--keyfile", "key.pem"], "keyfile needs a certfile"),
    ],
)
def test_bad_arguments(arguments, message, capfd):
    assert main(arguments) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(message)


@pytest.mark.parametrize("option", ["--certfile", "--keyfile"])
def test_a_missing_certificate_is_named(option, tmp_path, certificate, capfd):
    files = {
        "--certfile": certificate / "cert.pem",
        "--keyfile": certificate / "key.pem",
        option: tmp_path / "no",
    }
    arguments = [str(word) for pair in files.items() for word in pair]
    assert main(["--port", "0", *arguments]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith(f"No such file or directory ({tmp_path / 'no'})")


def test_a_file_that_is_not_a_certificate_is_named(tmp_path, capfd):
    path = tmp_path / "notes.txt"
    path.write_text("not a certificate\n")
    assert main(["--port", "0", "--certfile", str(path)]) == 2
    assert capfd.readouterr().err.endswith(f" ({path})\n")


def test_a_file_that_is_not_a_journal(tmp_path, capfd):
    path = tmp_path / "notes.txt"
    path.write_text("not a journal\n")
    assert main(["--port", "0", "--journal", str(path)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"{path} is not a journal: line 1 ")


def test_signals_are_as_before_once_it_returns():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert main(["--port", "0", "--journal", "/dev/full/journal.jsonl"]) == 2
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
