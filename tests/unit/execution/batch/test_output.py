"""The output file is whole or what it was before, locally and in a store."""

from __future__ import annotations

import gc
import json
import stat
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from airflow.providers.common.compat.sdk import ObjectStoragePath

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.batch.output import OutputFile
from workflow_automation_provider.execution.batch.source import BatchSource

from ...starts import TaskTimeout

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch_state import BatchItem

WHOLE: list[BatchItem] = [{"index": n, "status": "started", "run_id": f"{n}"} for n in range(3)]
TEXT = b"".join(json.dumps(item).encode() + b"\n" for item in WHOLE)


def breaking_off(number=2, size=1):
    """Yield some items, and are interrupted like a task at its ``execution_timeout``."""
    for n in range(number):
        yield {"index": n, "status": "started", "run_id": "x" * size}
    raise TaskTimeout


def test_an_interruption_leaves_a_local_file_as_it_was(tmp_path):
    path = tmp_path / "output.jsonl"
    output = OutputFile(str(path))
    output.check()
    assert [*tmp_path.iterdir()] == []
    output.write(iter(WHOLE))
    assert path.read_bytes() == TEXT
    with pytest.raises(TaskTimeout):
        output.write(breaking_off())
    assert path.read_bytes() == TEXT
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_and_the_mode_of_a_file_stay(tmp_path):
    path, link = tmp_path / "output.jsonl", tmp_path / "link.jsonl"
    path.touch()
    path.chmod(0o640)
    link.symlink_to(path)
    OutputFile(str(link)).write(iter(WHOLE))
    assert link.is_symlink()
    assert path.read_bytes() == TEXT
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.fixture
def s3(monkeypatch):
    pytest.importorskip("s3fs")
    moto_server = pytest.importorskip("moto.server")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    access = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    client = pytest.importorskip("boto3").client("s3", endpoint_url=endpoint, **access)
    client.create_bucket(Bucket="bucket")
    extra = {"endpoint_url": endpoint, "region_name": "us-east-1"}
    connection = {"conn_type": "aws", "login": "testing", "password": "testing", "extra": extra}
    # Airflow keeps the file system of a connection.
    names = [f"s3_{uuid4().hex}" for _ in range(2)]
    for name in names:
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    yield client, *names
    server.stop()


@pytest.mark.parametrize("number", [2, 60], ids=["at once", "in parts"])
def test_an_interruption_aborts_an_upload(s3, number):
    s3, name, _ = s3
    output = OutputFile(f"s3://{name}@bucket/output.jsonl")
    output.check()
    output.write(iter(WHOLE))
    with pytest.raises(TaskTimeout):
        output.write(breaking_off(number, 1024**2))
    gc.collect()
    assert s3.get_object(Bucket="bucket", Key="output.jsonl")["Body"].read() == TEXT
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="bucket")


def test_a_bucket_that_is_not_there_is_found_before_anything_is_started(s3):
    _, name, _ = s3
    with pytest.raises(InvalidRequestError, match="nowhere"):
        OutputFile(f"s3://{name}@nowhere/output.jsonl").check()


def test_who_may_write_need_not_be_allowed_to_look(s3, monkeypatch):
    s3, name, _ = s3
    path = ObjectStoragePath(f"s3://{name}@bucket/{name}/output.jsonl")
    monkeypatch.setattr(type(path.fs), "exists", lambda *_: False)
    OutputFile(str(path)).check()
    assert "Contents" not in s3.list_objects_v2(Bucket="bucket", Prefix=name)


def test_an_object_of_a_batch_is_recognized(s3):
    _, name, other = s3
    source = BatchSource(f"s3://{name}@bucket/batch.jsonl", None)
    for url in ("s3://bucket/batch.jsonl", f"s3a://{other}@bucket/batch.jsonl"):
        assert source.is_read_from(url)
    for url in (f"s3://{name}@bucket/other.jsonl", f"s3://{name}@other/batch.jsonl", "/bucket/batch.jsonl"):
        assert not source.is_read_from(url)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InvalidRequestError, match="Is a directory"):
        OutputFile(str(tmp_path)).check()
