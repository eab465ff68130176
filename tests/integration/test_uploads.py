"""Uploads in real Airflow: where files come from, how they are split, and what a retry sends."""

from __future__ import annotations

import base64
import subprocess
import sys

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


RETRY = {"retries": 1, "retry_delay": "timedelta(0)", "send_retry_timeout": 0}


class TestTries:
    @pytest.mark.since_3_3
    def test_a_change_that_keeps_size_and_times_is_sent_again(self, upload, service, folder):
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
            f"'file://{folder}/*.csv'", before=before, files_per_request=1, pre_execute="change", **RETRY
        )
        assert result.state == "success"
        assert names(service.uploads) == [["a.csv"], ["a.csv"], ["b.csv"]]
        assert content_of(service.uploads[1].files[0]) == b"2"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("'file://FOLDER/*.{{ params.ending }}'", "ab"),
        ("[ObjectStoragePath('file://FOLDER') / 'b.csv', Path('FOLDER/a.csv')]", "ba"),
        ("Asset('file://FOLDER/a.csv')", "a"),
    ],
)
def test_source(upload, service, folder, files, expected):
    """What an operator is given, rendered or as it is."""
    write(folder, a_csv=b"1", b_csv=b"22", c_txt=b"333")
    assert upload(files.replace("FOLDER", str(folder))).state == "success"
    (taken,) = service.uploads
    assert "".join(file["name"][0] for file in taken.files) == expected


class TestLargeFiles:
    def test_memory_does_not_grow_with_the_file(self, service, folder):
        path = folder / "sparse.bin"
        with path.open("wb") as stream:
            stream.truncate(100 * MIB)
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
        assert taken.size > 130 * MIB


def _start(service):
    url = f"{service.base_url}/flows/demo-flow/trigger"
    return httpx.post(url, json={"inputs": {}}, trust_env=False, timeout=60).json()["run_id"]
