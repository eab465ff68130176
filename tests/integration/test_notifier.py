"""``FlowNotifier`` as a callback in real Airflow: it starts a run, and changes nothing of what it reports on."""

from __future__ import annotations

import pytest

PREAMBLE = """
from __future__ import annotations
import pendulum
from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException
from workflow_automation_provider.notifications.flows import FlowNotifier

START = pendulum.datetime(2026, 1, 1, tz="UTC")
EVENT = {"event": "{{ dag.dag_id }}/{{ ti.task_id }}/{{ ti.map_index }}/{{ ti.try_number }}"}
"""


@pytest.fixture
def service(workflow_automation_service, workflow_automation_connection):
    return workflow_automation_service


@pytest.fixture
def run(run_dag):
    return lambda source: run_dag(source, preamble=PREAMBLE)


def events(service):
    return sorted(run.inputs["event"] for run in service.runs)


def test_on_success_retry_and_skip(run, service):
    result = run("""
        with DAG("other_ends", schedule=None, start_date=START):
            @task(on_success_callback=[FlowNotifier(EVENT), FlowNotifier(EVENT, "demo-flow")])
            def succeed():
                pass

            @task(on_retry_callback=FlowNotifier(EVENT), retries=1, retry_delay=0)
            def retry(ti=None):
                if ti.try_number == 1:
                    raise AirflowException

            @task(on_skipped_callback=FlowNotifier(EVENT))
            def skip():
                raise AirflowSkipException

            succeed(), retry(), skip()
    """)
    assert result.state == "success"
    assert events(service) == [
        "other_ends/retry/-1/1",
        "other_ends/skip/-1/1",
        "other_ends/succeed/-1/1",
        "other_ends/succeed/-1/1",
    ]
    assert sorted(run.by for run in service.runs) == ["key", "key", "key", "path"]


def test_before_a_task(run, service):
    """The task gets none of the notifier's arguments, although some have the names of its own."""
    result = run("""
        with DAG("before", schedule=None, start_date=START):
            @task(on_execute_callback=FlowNotifier(EVENT, "demo-flow"))
            def succeed(inputs=None, flow_id=None):
                return [inputs, flow_id]

            succeed()
    """)
    assert result.xcom("succeed") == [None, None]
    assert events(service) == ["before/succeed/-1/1"]


def test_one_notifier_for_many_tasks(run, service):
    """It is called several times in one process, each time with templates of its own."""
    run("""
        with DAG("many", schedule=None, start_date=START, default_args={"on_failure_callback": FlowNotifier(EVENT)}):
            @task
            def fail(number):
                raise AirflowException

            fail.expand(number=[1, 2, 3])
    """)
    assert events(service) == ["many/fail/0/1", "many/fail/1/1", "many/fail/2/1"]


def test_of_a_dag(run, service):
    result = run("""
        with DAG(
            "whole",
            schedule=None,
            start_date=START,
            on_failure_callback=FlowNotifier({"event": "{{ dag.dag_id }} {{ reason }}"}),
        ):
            @task
            def fail():
                raise AirflowException

            fail()
    """)
    assert result.state == "failed"
    assert events(service) == ["whole task_failure"]


def test_nothing_is_raised(run, service, task_errors, capfd):
    result = run("""
        def after(context):
            print("The next callback")

        with DAG("nothing_raised", schedule=None, start_date=START):
            @task(on_success_callback=[
                FlowNotifier({"a": "{{ missing.attribute }}"}),
                FlowNotifier({}, workflow_automation_conn_id="missing"),
                after,
            ])
            def succeed():
                pass

            succeed()
    """)
    assert (result.state, task_errors, service.runs) == ("success", [], [])
    out = capfd.readouterr().out
    assert out.count("FlowNotifier: ") >= 2
    assert "The next callback" in out
    assert "Failed to" not in out
