from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time

import httpx
import pytest

from workflow_automation_provider.testing import DEMO_KEY, JournalError, LocalService

from .conftest import Caller

COMMAND = [sys.executable, "-m", "workflow_automation_provider.testing"]


def test_start_and_stop_are_quick(tmp_path):
    service = LocalService(journal=tmp_path / "journal.jsonl")
    started = time.monotonic()
    service.start()
    assert httpx.get(f"{service.url}/", trust_env=False).status_code == 200
    between = time.monotonic()
    service.stop()
    assert time.monotonic() - between < 0.3
    assert between - started < 1


def test_stopped_and_started_again_it_keeps_its_port(service, call):
    call.by_path()
    url = service.url
    service.stop()
    with pytest.raises(httpx.ConnectError):
        call.by_path()
    service.stop()
    service.start()
    assert service.url == url
    assert call.by_path().json()["run_id"] == "1002"


def test_base_url(service):
    assert service.base_url == f"http://127.0.0.1:{service.port}/api"


def test_it_cannot_be_started_twice(service):
    with pytest.raises(RuntimeError):
        service.start()


def test_a_taken_port_is_an_error_and_leaves_the_journal_free(service, tmp_path):
    journal = tmp_path / "second.jsonl"
    with pytest.raises(OSError, match="in use"):
        LocalService(port=service.port, journal=journal).start()
    with LocalService(journal=journal):
        pass


def test_a_refused_journal_leaves_the_port_free(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a journal\n")
    service = LocalService(journal=path)
    with pytest.raises(JournalError):
        service.start()
    path.unlink()
    with service, httpx.Client(base_url=service.url, trust_env=False) as http:
        assert Caller(http).by_path().status_code == 201


def test_a_bad_certificate_is_an_error_of_start(tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("x")
    with pytest.raises(ssl.SSLError):
        LocalService(journal=tmp_path / "j", certfile=str(bad), keyfile=str(bad)).start()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    trustme = pytest.importorskip("trustme")
    folder = tmp_path_factory.mktemp("certificate")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return folder


def test_https_with_faults(certificate, tmp_path):
    service = LocalService(
        journal=tmp_path / "journal.jsonl",
        certfile=str(certificate / "cert.pem"),
        keyfile=str(certificate / "key.pem"),
    )
    context = ssl.create_default_context(cafile=str(certificate / "authority.pem"))
    with service, httpx.Client(base_url=service.url, verify=context, trust_env=False) as http:
        call = Caller(http)
        assert call.by_path().json()["run_link"].startswith("https://127.0.0.1:")
        for kind in ("drop_after", "reset_after", "truncate"):
            service.faults.add(kind)
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                call.by_path()
        service.faults.add("stale")
        assert call.by_path().status_code == 201
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            call.by_path()
        assert len(service.runs) == 5


def test_many_requests_at_once(service):
    from concurrent.futures import ThreadPoolExecutor

    with (
        httpx.Client(base_url=service.url, trust_env=False) as http,
        ThreadPoolExecutor(8) as pool,
    ):
        call = Caller(http)
        ids = list(pool.map(lambda _: call.by_path().json()["run_id"], range(100)))
    assert len(set(ids)) == 100
    assert len(service.runs) == 100


def test_it_imports_neither_airflow_nor_our_client():
    code = (
        "import sys, workflow_automation_provider.testing.service\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('airflow', 'httpx')"
        " or name.startswith(('workflow_automation_provider.client', 'workflow_automation_provider.hooks'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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


def test_unknown_names_of_the_package():
    from workflow_automation_provider import testing

    with pytest.raises(AttributeError):
        testing.nonsense  # noqa: B018


def test_pytest_plugin(pytester_like):
    assert pytester_like.returncode == 0, pytester_like.stdout + pytester_like.stderr


@pytest.fixture
def pytester_like(tmp_path):
    (tmp_path / "conftest.py").write_text(
        'pytest_plugins = ["workflow_automation_provider.testing.pytest_plugin"]\n'
    )
    (tmp_path / "test_it.py").write_text(
        "import json, os\n"
        "def test_it(workflow_automation_connection, workflow_automation_service):\n"
        "    assert workflow_automation_connection == 'workflow_automation_default'\n"
        "    connection = json.loads(os.environ['AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT'])\n"
        "    assert connection == {'conn_type': 'workflow_automation',\n"
        "        'host': workflow_automation_service.base_url, 'password': 'demo-key',\n"
        "        'extra': {'flow_id': 'demo-flow'}}\n"
        "    assert workflow_automation_service.keys[0].flow_id == 'demo-flow'\n"
        "    assert workflow_automation_service.runs == []\n"
        "def test_after():\n"
        "    assert 'AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT' not in os.environ\n"
    )
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:anyio",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
