"""Uploads from S3, against a server that speaks its interface."""

from __future__ import annotations

import base64
import json
import re

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

BUCKET = "reports"
URL = f"s3://s3_test@{BUCKET}"


@pytest.fixture
def bucket(s3, monkeypatch):
    """Empty the bucket, and make the connection ``s3_test`` to it; a client of S3."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_S3_TEST", json.dumps(s3.connection))
    # Before, as an example DAG uses the same one.
    for entry in s3.client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        s3.client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    return s3.client


def put(bucket, **contents):
    for name, content in contents.items():
        bucket.put_object(Bucket=BUCKET, Key=name.replace("__", "/") + ".csv", Body=content)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (f"'{URL}/{{{{ params.day }}}}/a.csv'", ["a"]),
        (f"'{URL}/'", ["a", "b", "d", "top", "c"]),
        (f"'{URL}/**/*.csv'", ["a", "b", "d", "top", "c"]),
        (f"ObjectStoragePath('{URL}/monday/') / '**'", ["a", "b", "d"]),
        (f"ObjectStoragePath('s3://{BUCKET}/top.csv', conn_id='s3_test')", ["top"]),
        (f"Asset('{URL}/top.csv')", ["top"]),
    ],
)
def test_source(upload, bucket, workflow_automation_service, files, expected):
    put(bucket, top=b"0", monday__a=b"1", monday__b=b"", monday__deep__d=b"3", tuesday__c=b"22")
    result = upload(files)
    assert result.state == "success", result.log
    (taken,) = workflow_automation_service.uploads
    found = [file["name"].removesuffix(".csv") for file in taken.files]
    assert sorted(found) == sorted(expected)
    contents = {"top": b"0", "a": b"1", "b": b"", "c": b"22", "d": b"3"}
    for name, file in zip(found, taken.files, strict=True):
        assert base64.b64decode(file["content"]) == contents[name]
        assert file["content_type"] == "text/csv"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (f"'{URL}/missing.csv'", f"no file at '{URL}/missing.csv'"),
        ("'s3://s3_test@no-such-bucket/a.csv'", "no-such-bucket"),
    ],
)
def test_what_is_not_there_is_named(upload, bucket, workflow_automation_service, files, named):
    put(bucket, monday__a=b"1")
    result = upload(files)
    assert result.task_state("upload") == "failed"
    assert named in result.log
    assert workflow_automation_service.journal.requests("upload") == []


@pytest.mark.parametrize("later", [b"2" * 10, None], ids=["same size", "gone"])
def test_object_overwritten_before_it_is_read(
    upload, bucket, workflow_automation_service, monkeypatch, later
):
    """Between listing and reading it is another object."""
    from workflow_automation_provider.hooks.sources import resolve as original

    put(bucket, first=b"1" * 10)

    def overwrite_after_listing(*arguments, **options):
        elements = original(*arguments, **options)
        if later is None:
            bucket.delete_object(Bucket=BUCKET, Key="first.csv")
        else:
            put(bucket, first=later)
        return elements

    monkeypatch.setattr("workflow_automation_provider.execution.upload.resolve", overwrite_after_listing)
    result = upload(f"'{URL}/first.csv'", send_retry_timeout=0)
    assert result.task_state("upload") == "failed"
    assert "s3://reports/first.csv' " in result.log
    assert len(workflow_automation_service.uploads) == 0


def test_prefix_sends_only_what_is_missing(upload, bucket, workflow_automation_service):
    put(bucket, a=b"1", b=b"22")
    workflow_automation_service.faults.add("delay", operation="upload", seconds=0)
    workflow_automation_service.faults.add("busy", operation="upload")
    result = upload(
        f"'{URL}/'",
        files_per_request=1,
        retries=1,
        retry_delay="timedelta(0)",
        send_retry_timeout=0,
    )
    assert result.state == "success", result.log
    assert [[file["name"] for file in taken.files] for taken in workflow_automation_service.uploads] == [
        ["a.csv"],
        ["b.csv"],
    ]


def test_a_batch_of_a_bucket(run_dag, bucket, workflow_automation_service, workflow_automation_connection):
    """The example: rows of a CSV in a bucket, a batch in it, and its results."""
    put(bucket, customers=b"customer,region\nAda,north\nGrace,south\n")
    result = run_dag(
        "workflow_automation_batch.py", run_conf={"source": f"{URL}/customers.csv", "folder": URL}
    )
    assert result.state == "success"
    assert sorted(run.inputs["customer"] for run in workflow_automation_service.runs) == ["Ada", "Grace"]
    assert result.xcom("report") == "2 of 2 runs were started, 0 rows were rejected."
    names = [entry["Key"] for entry in bucket.list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert [name.partition("-")[0] for name in sorted(names)] == ["batch", "customers.csv", "runs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"batch='{URL}/monday'", "monday', .*: Is a directory"),
        (f"batch='{URL}/monday/'", "monday/', .*: Is a directory"),
        (f"batch=[{{}}], output_path='{URL}/monday/'", "monday/', a folder"),
        ("batch=[{}], output_path='s3://s3_test@nowhere/a.jsonl'", "'s3://s3_test@nowhere/a.jsonl', "),
    ],
)
def test_a_batch_that_is_a_folder_is_neither_empty_nor_retried(
    run_dag,
    workflow_automation_service,
    workflow_automation_connection,
    bucket,
    task_errors,
    arguments,
    words,
):
    put(bucket, monday__a=b"{}")
    result = run_dag(f"""
        from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator

        with DAG("batch", schedule=None, start_date=START):
            TriggerFlowBatchOperator(task_id="batch", retries=3, retry_delay=0.01, {arguments})
    """)

    assert result.state == "failed"
    assert workflow_automation_service.journal.requests() == []
    (error,) = task_errors
    assert isinstance(error, AirflowFailException)
    assert re.search(words, str(error))
