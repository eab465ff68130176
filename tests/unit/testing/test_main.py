"""
The command line.

Python -m workflow_automation_provider.testing; as a process, it is in test_journal.py.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import httpx
import pytest

from workflow_automation_provider.testing import DEMO_KEY, Journal
from workflow_automation_provider.testing.__main__ import main

from .conftest import Caller, wait_for


@pytest.fixture
def serve_and(monkeypatch, capfd):
    """
    Run the command until a function returns that is called with what it has printed.

    What the function returns.
    """

    def run(*arguments, then):
        found = []
        monkeypatch.setattr(signal, "sigwait", lambda _: found.append(then(capfd.readouterr().out)))
        assert main(["--port", "0", *map(str, arguments)]) == 0
        return found[0]

    return run


def client(printed):
    url = printed.split()[2].removesuffix("/api")
    return httpx.Client(base_url=url, verify=False, trust_env=False, timeout=60)


def connections(printed):
    """The connections after the printed lines were pasted into a shell."""
    exports = "".join(
        line for line in printed.splitlines(keepends=True) if line.startswith("export ")
    )
    command = ["sh", "-c", f"{exports}env -0"]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    found = dict(entry.partition("=")[::2] for entry in done.stdout.split("\0"))
    return {
        name.removeprefix("AIRFLOW_CONN_WORKFLOW_AUTOMATION_"): json.loads(value)
        for name, value in found.items()
        if name.startswith("AIRFLOW_CONN_")
    }


def test_the_demo_key_is_shown_and_its_connection_is_ready(serve_and):
    printed = serve_and(then=lambda printed: printed)
    assert f"value {DEMO_KEY.value}" in printed
    demo = {
        "conn_type": "workflow_automation",
        "host": printed.split()[2],
        "password": DEMO_KEY.value,
    }
    assert connections(printed) == {"DEFAULT": {**demo, "extra": {"flow_id": DEMO_KEY.flow_id}}}


def test_each_key_has_a_connection_with_a_placeholder_for_its_value(serve_and):
    def use(printed):
        with client(printed) as http:
            keys = ("hidden", "secret", "demo-key")
            assert [Caller(http).by_key(key=key).status_code for key in keys] == [201, 201, 401]
        return printed

    printed = serve_and("--key", "hidden:it's a flow", "--key", "secret", then=use)
    assert "hidden" not in printed
    assert "secret" not in printed
    assert {name: (c["password"], c["extra"]) for name, c in connections(printed).items()} == {
        "DEFAULT": ("VALUE OF KEY 1", {"flow_id": "it's a flow"}),
        "2": ("VALUE OF KEY 2", {"flow_id": "demo-flow"}),
    }


def test_flows_that_it_knows(serve_and):
    def use(printed):
        with client(printed) as http:
            flows = ("a", "b", "demo-flow", "c")
            return [Caller(http).by_path(flow_id=flow).status_code for flow in flows]

    assert serve_and("--flow", "a", "--flow", "b", then=use) == [201, 201, 201, 404]


def test_callbacks(serve_and, tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")

    def start(printed):
        with client(printed) as http:
            for day in "xy":
                Caller(http).by_path({"day": day, "callback_url": f"{http.base_url}here"})
        wait_for(lambda: len(journal.callbacks()) == 2)

    options = ["--callback", '{"result": 1, "inputs": {"day": "x"}}', "--callback"]
    serve_and(*options, "--journal", journal.path, then=start)
    bodies = [sent.body for sent in sorted(journal.callbacks(), key=lambda sent: sent.run_id)]
    assert bodies == [{"status": "success", "result": 1}, {"status": "success"}]


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_printed_curl_command_scripts_a_fault(serve_and, certificate, monkeypatch):
    """Over HTTPS; tests/integration/test_docs_testing.py does it over HTTP."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def script(printed):
        (command,) = [line for line in printed.splitlines() if line.startswith("curl ")]
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["kind"] == "busy"
        with client(printed) as http:
            assert Caller(http).by_path().status_code == 429

    serve_and("--certfile", certificate.certfile, then=script)


def error_of(capfd, *arguments):
    assert main(["--port", "0", *map(str, arguments)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--key", ":flow"], "--key number 1 "),
        (["--port", "70000"], "port is 70000"),
        (["--callback", "["], "--callback number 1 "),
        (["--callback", "--callback", "[]"], "--callback number 2 "),
        (["--callback", '{"delay": -1}'], "delay is -1"),
    ],
)
def test_bad_arguments(arguments, message, capfd):
    assert error_of(capfd, *arguments).startswith(message)


def test_what_cannot_be_used_is_named(service, certificate, tmp_path, capfd):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    missing, notes = tmp_path / "no", tmp_path / "notes.txt"
    notes.write_text("neither a certificate nor a journal\n")
    files = ("--certfile", certificate.certfile, "--keyfile", missing)
    assert error_of(capfd, *files).endswith(f"No such file or directory ({missing})")
    assert error_of(capfd, "--certfile", notes).endswith(f" ({notes})")
    assert error_of(capfd, "--journal", notes).startswith(f"{notes} is not a journal: line 1 ")
    assert f"127.0.0.1 port {service.port}: " in error_of(capfd, "--port", service.port)
    # What the caller starts afterwards can be stopped.
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


@pytest.mark.parametrize("missing", ["starlette.responses", "uvicorn"])
def test_without_the_extra(missing, monkeypatch, capfd):
    for name in [*sys.modules]:
        if name.startswith("workflow_automation_provider.testing._server"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert "pip install 'airflow-provider-workflow-automation[testing]'" in error_of(capfd)
