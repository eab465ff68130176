"""Uploads in real Airflow: where files come from, and what a retry sends."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest

from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

MIB = 1024 * 1024


@pytest.mark.since_3_3
def test_a_change_that_keeps_size_and_times_is_sent_again(run_dag, service, tmp_path):
    """Of files that are given in each way, rendered or as they are."""
    (tmp_path / "a.csv").write_bytes(b"1")
    (tmp_path / "b.csv").write_bytes(b"22")
    service.faults.add("delay", operation="upload", seconds=0)
    service.faults.add("busy", operation="upload")
    run_dag(f"""
        import os

        FILES = ["file://{tmp_path}/a.{{{{ params.ending }}}}", ObjectStoragePath("file://{tmp_path}") / "b.csv"]
        FILES += [Path("{tmp_path}/b.csv"), Asset("file://{tmp_path}/b.csv")]

        def change(context):  # the second time, as `touch -r` and `rsync --times` leave it
            if context["ti"].try_number == 2:
                path = Path('{tmp_path}/a.csv')
                state = path.stat()
                path.write_text('2')
                os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

        with DAG("changed", schedule=None, params={{"ending": "csv"}}):
            trigger = TriggerFlowOperator(task_id="trigger", inputs={{}})
            UploadFilesOperator(
                task_id="upload", run_id=trigger.output, files=FILES, files_per_request=1,
                pre_execute=change, retries=1, retry_delay=0, send_retry_timeout=0,
            )
    """)
    files = [file for upload in service.uploads for file in upload.files]
    sent = [(file["name"], base64.b64decode(file["content"])) for file in files]
    assert sent == [("a.csv", b"1"), ("a.csv", b"2"), *[("b.csv", b"22")] * 3]


def test_memory_does_not_grow_with_the_file(service, tmp_path):
    path = tmp_path / "sparse.bin"
    with path.open("wb") as stream:
        stream.truncate(64 * MIB)
    hook = WorkflowAutomationHook()
    run_id = hook.trigger_flow({}).run_id
    script = f"""
import resource
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
hook = WorkflowAutomationHook()
hook.get_conn()
before = peak()
hook.upload_files({run_id!r}, {str(path)!r})
print(peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.splitlines()[-1]) < 32 * 1024, "KiB"
    (taken,) = service.uploads
    assert taken.size > 64 * MIB
