"""What the fixtures for DAG authors do to Airflow, in ``dag.test()``."""

from __future__ import annotations

import json

import pytest

from s3_bucket import Bucket, s3_server


@pytest.fixture
def store(monkeypatch):
    """A stand-in for S3 of this test alone, which a connection of the same id leads to."""
    with s3_server() as port:
        extra = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
        connection = {"conn_type": "aws", "login": "test", "password": "test", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_S3_OF_A_TEST", json.dumps(connection))
        yield


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_its_own_store_and_no_task_waits_for_a_retry(run_dag, service, store, number):
    """Also where the DAG has a ``retry_delay`` of its own, and for mapped tasks."""
    Bucket(f"of-test-{number}").put(orders=b"a,b")
    service.faults.add("busy", times=3)
    run_dag(
        f"""
        arguments = {{"retries": 1, "send_retry_timeout": 0}}
        with DAG("of_a_test", default_args={{"retry_delay": pendulum.duration(minutes=5)}}):
            TriggerFlowOperator(
                task_id="single", files="s3://s3_of_a_test@of-test-{number}/orders", **arguments
            )
            TriggerFlowOperator.partial(task_id="mapped", **arguments).expand(inputs=[{{}}, {{}}])
        """
    )
    assert len(service.runs) == 3
    assert [upload.files[0]["name"] for upload in service.uploads] == ["orders"]
