"""The output file of a batch is whole, or what it was before."""

from __future__ import annotations

import gc
import json
from typing import TYPE_CHECKING

import pytest
from airflow.sdk import ObjectStoragePath

from store_proxy import Fault, StoreProxy
from workflow_automation_provider.exceptions import InvalidRequestError, WorkflowAutomationError
from workflow_automation_provider.execution.batch.output import OutputFile, OutputUnavailableError
from workflow_automation_provider.execution.batch.source import BatchSource
from workflow_automation_provider.hooks.files.sources import resolve

from ...starts import TaskTimeout

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch.item_results import BatchItem

NO_FILE = BatchSource([], None)
WHOLE: list[BatchItem] = [{"index": n, "status": "started", "run_id": f"{n}"} for n in range(3)]
TEXT = b"".join(json.dumps(item).encode() + b"\n" for item in WHOLE)


def breaking_off(number=2, size=1):
    """Yield some items, and are interrupted like a task at its ``execution_timeout``."""
    for n in range(number):
        yield {"index": n, "status": "started", "run_id": "x" * size}
    raise TaskTimeout


def test_an_interruption_leaves_a_local_file_as_it_was(tmp_path):
    path = tmp_path / "output.jsonl"
    with pytest.raises(OutputUnavailableError, match="Is a directory"):
        OutputFile(str(tmp_path)).check(NO_FILE)
    OutputFile(str(path)).check(NO_FILE)
    assert [*tmp_path.iterdir()] == []
    OutputFile(str(path)).write(WHOLE)
    assert path.read_bytes() == TEXT
    with pytest.raises(TaskTimeout):
        OutputFile(str(path)).write(breaking_off())
    assert path.read_bytes() == TEXT
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_stays_and_a_file_keeps_its_mode(tmp_path):
    path, link = tmp_path / "output.jsonl", tmp_path / "link.jsonl"
    path.touch(0o600)
    link.symlink_to(path)
    OutputFile(str(link)).write(WHOLE)
    assert link.is_symlink()
    assert path.read_bytes() == TEXT
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [2, 60], ids=["at once", "in parts"])
def test_an_interruption_aborts_an_upload(bucket, number):
    output = bucket.url("output.jsonl")
    OutputFile(output).check(NO_FILE)
    OutputFile(output).write(WHOLE)
    with pytest.raises(TaskTimeout):
        OutputFile(output).write(breaking_off(number, 1024**2))
    gc.collect()
    assert bucket.read("output.jsonl") == TEXT
    assert bucket.unfinished() == []


def test_a_bucket_that_is_not_there_is_found_by_the_check(bucket):
    with pytest.raises(OutputUnavailableError, match="nowhere"):
        OutputFile(f"s3://{bucket.conn_id}@nowhere/output.jsonl").check(NO_FILE)


@pytest.mark.parametrize("argument", ["files", "batch", "output_path"])
def test_a_connection_that_does_not_exist_is_not_replaced_by_the_workers_own(
    service, batch, bucket, s3_port, monkeypatch, argument
):
    """Airflow's amazon provider would ask with the credentials of the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_port}")
    bucket.put(a_jsonl=b"{}\n")
    url = f"s3://typo@{bucket.name}/a_jsonl"
    uses = {
        "files": lambda: resolve(url),
        "batch": lambda: batch(url),
        "output_path": lambda: batch([{}], output_path=url),
    }
    with pytest.raises(WorkflowAutomationError, match=rf"{argument}.*`typo` isn't defined"):
        uses[argument]()
    assert service.runs == []
    assert bucket.read("a_jsonl") == b"{}\n"


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_bucket_alone_is_no_output(service, batch, bucket, slash):
    with pytest.raises(InvalidRequestError, match="output_path is "):
        batch([{}], output_path=bucket.url().rstrip("/") + slash)
    assert service.runs == []


def test_a_bucket_without_the_right_to_write_is_found_by_the_check(
    service, batch, bucket, s3_port, monkeypatch
):
    denied = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    with StoreProxy(s3_port).running() as proxy:
        connection = json.dumps(bucket.connection(proxy.port))
        monkeypatch.setenv(f"AIRFLOW_CONN_{bucket.conn_id.upper()}", connection)
        proxy.faults.append(Fault(lambda seen: seen.method == "PUT", 403, denied, times=None))
        with pytest.raises(OutputUnavailableError, match="Access Denied"):
            batch([{}], output_path=bucket.url("output.jsonl"))
    assert service.runs == []


def test_who_may_write_need_not_be_allowed_to_look(bucket, monkeypatch):
    path = ObjectStoragePath(bucket.url("output.jsonl"))
    monkeypatch.setattr(type(path.fs), "exists", lambda *_: False)
    OutputFile(str(path)).check(NO_FILE)
    assert bucket.keys() == []


def test_the_object_of_the_batch_is_not_overwritten(bucket, tmp_path):
    url = bucket.url("batch.jsonl")
    source = BatchSource(url, None)
    with pytest.raises(InvalidRequestError, match="output_path is "):
        OutputFile(url).check(source)
    for other in (bucket.url("other.jsonl"), f"{tmp_path}/batch.jsonl"):
        OutputFile(other).check(source)


def test_the_same_path_on_two_sftp_hosts_is_two_files(sftp, tmp_path, monkeypatch):
    from sftp_server import SFTPServer

    other = SFTPServer(tmp_path / "other")
    other.folder.mkdir()
    with other.running():
        connection = {"conn_type": "sftp", "host": "127.0.0.1", "port": other.port, "login": "a"}
        monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(connection))
        source = BatchSource(sftp.url("a.jsonl"), None)
        with pytest.raises(InvalidRequestError, match="output_path is "):
            OutputFile(sftp.url("a.jsonl")).check(source)
        OutputFile(sftp.url("a.jsonl").replace(sftp.conn_id, "other")).check(source)


def test_a_file_of_sftp_is_replaced_at_once(sftp):
    path, url = sftp.folder / "output.jsonl", sftp.url("output.jsonl")
    OutputFile(url).check(NO_FILE)
    OutputFile(url).write([])
    OutputFile(url).write(WHOLE)
    assert path.read_bytes() == TEXT
    sftp.room = 100_000  # some of it is written
    with pytest.raises(OutputUnavailableError, match="No space"):
        OutputFile(url).write([{"index": n, "run_id": "x" * 1000} for n in range(1000)])
    assert sftp.room < 0
    assert path.read_bytes() == TEXT
    assert [*sftp.folder.iterdir()] == [path]
