"""Uploads in real Airflow: where files come from, how they are split, and what a retry sends."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import time

import httpx
import pytest

KIB, MIB = 1024, 1024 * 1024


@pytest.fixture
def service(workflow_automation_service, workflow_automation_connection):
    return workflow_automation_service


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


def write(folder, **contents):
    for name, content in contents.items():
        (folder / name.replace("_", ".")).write_bytes(content)


def names(uploads):
    return [[file["name"] for file in upload.files] for upload in uploads]


def content_of(file):
    return base64.b64decode(file["content"])


class TestRequests:
    def test_one_request_by_default(self, upload, service, folder):
        write(folder, a_csv=b"1", b_csv=b"22", c_csv=b"")
        result = upload(f"'{folder}/*.csv'")
        assert names(service.uploads) == [["a.csv", "b.csv", "c.csv"]]
        returned = result.xcom("upload")
        assert (returned["run_id"], returned["files"], returned["bytes"]) == (service.runs[0].run_id, 3, 3)
        (request,) = returned["requests"]
        assert (request["files"], request["bytes"]) == (["a.csv", "b.csv", "c.csv"], 3)
        assert request["response"]


RETRY = {"retries": 1, "retry_delay": "timedelta(0)", "send_retry_timeout": 0}


class TestTries:
    def test_a_retry_sends_only_what_is_missing(self, upload, service, folder, airflow_state_store):
        write(folder, a_csv=b"1", b_csv=b"22", c_csv=b"333")
        # Strikes the second request.
        service.faults.add("delay", operation="upload", seconds=0)
        service.faults.add("busy", operation="upload")
        result = upload(f"'{folder}/*.csv'", files_per_request=1, **RETRY)
        assert result.state == "success"
        assert names(service.uploads) == [["a.csv"], ["b.csv"], ["c.csv"]]
        assert len(service.journal.requests("upload")) == 4
        returned = result.xcom("upload")
        assert (returned["files"], returned["bytes"]) == (3, 6)
        assert [request["files"] for request in returned["requests"]] == [["a.csv"], ["b.csv"], ["c.csv"]]
        assert "uploaded 1 of" in result.log
        assert "2 files of 5 bytes" in result.log

    @pytest.mark.parametrize("url", ["", "file://"])
    def test_a_change_that_keeps_size_and_times_is_sent_again(
        self, upload, service, folder, airflow_state_store, url
    ):
        write(folder, a_csv=b"1", b_csv=b"22")
        service.faults.add("delay", operation="upload", seconds=0)
        service.faults.add("busy", operation="upload")
        before = f"""
            import os
            def change(context):  # the second time, as `touch -r` and `rsync --times` leave it
                if Path('{folder}/seen').exists():
                    path = Path('{folder}/a.csv')
                    state = path.stat()
                    path.write_text('2')
                    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
                Path('{folder}/seen').touch()
        """
        result = upload(
            f"'{url}{folder}/*.csv'", before=before, files_per_request=1, pre_execute="change", **RETRY
        )
        assert result.state == "success"
        assert names(service.uploads) == [["a.csv"], ["a.csv"], ["b.csv"]]
        assert content_of(service.uploads[1].files[0]) == b"2"

    def test_all_was_sent_before(self, upload, service, folder, airflow_state_store):
        write(folder, a_csv=b"1", b_csv=b"22")
        before = """
            def fail_first(context, result):
                if context["ti"].try_number == 1:
                    raise ValueError("after the upload")
        """
        result = upload(f"'{folder}/*.csv'", before=before, post_execute="fail_first", **RETRY)
        assert result.state == "success"
        assert names(service.uploads) == [["a.csv", "b.csv"]]
        assert result.xcom("upload")["requests"][0]["files"] == ["a.csv", "b.csv"]

    def test_unknown_is_left_to_airflow_after_that(self, upload, service, folder):
        write(folder, a_csv=b"1")
        service.faults.add("drop_after", operation="upload")
        result = upload(f"'{folder}/*.csv'", **RETRY)
        assert result.state == "success"
        assert names(service.uploads) == [["a.csv"], ["a.csv"]]

    def test_unknown_fails_where_it_shall(self, upload, service, folder):
        write(folder, a_csv=b"1")
        service.faults.add("drop_after", operation="upload")
        result = upload(f"'{folder}/*.csv'", on_unknown_upload="'fail'", **RETRY)
        assert result.task_state("upload") == "failed"
        assert len(service.journal.requests("upload")) == 1

    def test_fail_holds_for_a_try_that_was_cut_off(self, upload, service, folder, airflow_state_store):
        write(folder, a_csv=b"1")
        service.faults.add("hang_after", operation="upload", seconds=60)
        result = upload(
            f"'{folder}/*.csv'",
            on_unknown_upload="'fail'",
            execution_timeout="pendulum.duration(seconds=8)",
            **RETRY,
        )
        assert result.task_state("upload") == "failed"
        assert len(service.journal.requests("upload")) == 1
        assert "[upload-unknown]" in result.log

    def test_not_sent_is_left_to_airflow(self, upload, service, folder, monkeypatch):
        write(folder, a_csv=b"1")
        before = """
            import os
            def go_on(context):
                os.environ["AIRFLOW_CONN_WORKFLOW_AUTOMATION_UPLOAD"] = os.environ["AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT"]
        """
        away = {
            "conn_type": "workflow_automation",
            "host": "http://127.0.0.1:9",
            "password": "wak-123456",
            "extra": {"flow_id": "demo-flow"},
        }
        monkeypatch.setenv("AIRFLOW_CONN_WORKFLOW_AUTOMATION_UPLOAD", json.dumps(away))
        result = upload(
            f"'{folder}/*.csv'",
            before=before,
            workflow_automation_conn_id="'workflow_automation_upload'",
            on_retry_callback="go_on",
            **RETRY,
        )
        assert result.state == "success"
        assert names(service.uploads) == [["a.csv"]]


@pytest.fixture
def airflow_state_store():
    """Skip where Airflow keeps no state between tries."""
    pytest.importorskip("airflow.sdk.execution_time.context")
    from airflow.sdk.execution_time import context

    if not hasattr(context, "NEVER_EXPIRE"):
        pytest.skip("this Airflow keeps no state between tries")


class TestElements:
    def test_format_that_is_a_callable(self, upload, service, folder):
        write(folder, a_csv=b"1")
        before = (
            "shape = lambda file: {'file': {'name': file.name.upper(), 'parts': [file.base64, file.text]}}"
        )
        result = upload(f"['{folder}/a.csv', {{'b': 1}}]", before=before, file_format="shape")
        assert result.state == "success"
        assert service.uploads[0].files == [{"file": {"name": "A.CSV", "parts": ["MQ==", "1"]}}, {"b": 1}]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("'FOLDER/*.{{ params.ending }}'", "ab"),
        ("'file://FOLDER/*.{{ params.ending }}'", "ab"),
        ("['file://FOLDER/{{ \"b.csv\" }}', {'name': '{{ \"x\" }}'}]", "bx"),
        ("[ObjectStoragePath('file://FOLDER') / 'b.csv', Path('FOLDER/a.csv')]", "ba"),
        ("Asset('file://FOLDER/a.csv')", "a"),
        ("[Asset(uri='file://FOLDER/b.csv')]", "b"),
    ],
)
def test_source(upload, service, folder, files, expected):
    """What an operator is given, rendered or as it is."""
    write(folder, a_csv=b"1", b_csv=b"22", c_txt=b"333")
    assert upload(files.replace("FOLDER", str(folder))).state == "success"
    (taken,) = service.uploads
    assert "".join(file["name"][0] for file in taken.files) == expected


def test_a_source_that_is_none_sends_nothing(upload, service, folder):
    result = upload(f"['{folder}/missing.csv']")
    assert result.task_state("upload") == "failed"
    assert service.journal.requests("upload") == []


class TestLargeFiles:
    def test_file_that_grows_while_it_is_sent(self, upload, service, folder):
        path = folder / "grows.bin"
        with path.open("wb") as stream:
            stream.truncate(400 * MIB)
        stop = threading.Event()

        def grow():
            # Not before the upload began: resolving would only find a larger file.
            while not stop.wait(0.02):
                if service.journal.requests("trigger_by_key"):
                    with path.open("ab") as stream:
                        stream.write(b"x")

        thread = threading.Thread(target=grow)
        thread.start()
        try:
            result = upload(f"'{path}'", send_retry_timeout=0)
        finally:
            stop.set()
            thread.join()
        assert result.task_state("upload") == "failed"
        assert f"{str(path)!r} changed" in result.log or "is longer than" in result.log
        # The service learns only after the task that the client is gone.
        deadline = time.monotonic() + 300
        while not (requests := service.journal.requests("upload")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [request.outcome for request in requests] == ["client left"]
        assert service.uploads == []

    def test_memory_does_not_grow_with_the_file(self, service, folder):
        path = folder / "sparse.bin"
        with path.open("wb") as stream:
            stream.truncate(300 * MIB)
        run_id = _start(service)
        script = f"""
import resource
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with WorkflowAutomationHook() as hook:
    hook.get_conn()
    before = peak()
    hook.upload_files({run_id!r}, {str(path)!r})
print(peak() - before)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert int(done.stdout.splitlines()[-1]) < 32 * KIB
        (taken,) = service.uploads
        assert taken.size > 400 * MIB


def _start(service):
    url = f"{service.base_url}/flows/demo-flow/trigger"
    return httpx.post(url, json={"inputs": {}}, trust_env=False, timeout=60).json()["run_id"]
