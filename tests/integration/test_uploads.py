"""Uploads in real Airflow: where files come from, and what a retry sends."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest

from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

KIB, MIB = 1024, 1024 * 1024


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


@pytest.mark.since_3_3
def test_a_change_that_keeps_size_and_times_is_sent_again(run_dag, service, folder):
    (folder / "a.csv").write_bytes(b"1")
    (folder / "b.csv").write_bytes(b"22")
    service.faults.add("delay", operation="upload", seconds=0)
    service.faults.add("busy", operation="upload")
    run_dag(f"""
        import os

        def change(context):  # the second time, as `touch -r` and `rsync --times` leave it
            if context["ti"].try_number == 2:
                path = Path('{folder}/a.csv')
                state = path.stat()
                path.write_text('2')
                os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

        with DAG("changed", schedule=None):
            trigger = TriggerFlowOperator(task_id="trigger", inputs={{}})
            UploadFilesOperator(
                task_id="upload", run_id=trigger.output, files="file://{folder}/*.csv", files_per_request=1,
                pre_execute=change, retries=1, retry_delay=0, send_retry_timeout=0,
            )
    """)
    files = [file for upload in service.uploads for file in upload.files]
    sent = [(file["name"], base64.b64decode(file["content"])) for file in files]
    assert sent == [("a.csv", b"1"), ("a.csv", b"2"), ("b.csv", b"22")]


def test_what_an_operator_is_given(run_dag, service, folder):
    """Rendered, or as it is."""
    for name in ("a.csv", "b.csv", "c.txt"):
        (folder / name).write_text(name)
    run_dag(f"""
        SOURCES = [
            "file://{folder}/*.{{{{ params.ending }}}}",
            [ObjectStoragePath("file://{folder}") / "b.csv", Path("{folder}/a.csv")],
            Asset("file://{folder}/a.csv"),
        ]

        with DAG("sources", schedule=None, params={{"ending": "csv"}}):
            tasks = [TriggerFlowOperator(task_id="trigger", inputs={{}})]
            for number, files in enumerate(SOURCES):
                task = UploadFilesOperator(task_id=f"upload_{{number}}", run_id=tasks[0].output, files=files)
                tasks.append(task)
            chain(*tasks)
    """)
    taken = ["".join(file["name"][0] for file in upload.files) for upload in service.uploads]
    assert taken == ["ab", "ba", "a"]


def test_memory_does_not_grow_with_the_file(service, folder):
    path = folder / "sparse.bin"
    with path.open("wb") as stream:
        stream.truncate(64 * MIB)
    with WorkflowAutomationHook() as hook:
        run_id = hook.trigger_flow({}).run_id
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
    assert taken.size > 64 * MIB
