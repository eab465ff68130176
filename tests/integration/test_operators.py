"""The operators in real Airflow against the local service: what they send, return, push and template."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from airflow.providers.common.compat.sdk import XCom

from workflow_automation_provider.exceptions import Accepted, OutcomeUnknownError


def test_by_key_returns_run_and_link(run_dag, service):
    result = run_dag("""
        with DAG("by_key", schedule=None, start_date=START):
            trigger = TriggerFlowOperator(task_id="trigger", inputs={"day": "{{ ds }}", "n": [1, {"t": "{{ 1 + 1 }}"}]})

            @task
            def after(flow_run_id, link):
                return [flow_run_id, link]

            after(trigger.output["run_id"], trigger.output["run_link"])
    """)
    assert result.state == "success"
    (run,) = service.runs
    assert run.by == "key"
    assert run.inputs == {"day": str(result.dag_run.logical_date.date()), "n": [1, {"t": "2"}]}
    link = f"{service.url}/runs/{run.run_id}"
    assert result.xcom("trigger") == {"run_id": run.run_id, "run_link": link, "flow_id": "demo-flow"}
    assert result.xcom("after") == [run.run_id, link]
    assert result.xcom("trigger", "_link_FlowRunLink") == link


def test_by_path_with_templates_sends_no_key(run_dag, service):
    result = run_dag("""
        with DAG("by_path", schedule=None, start_date=START, params={"flow": "a/b", "env": "default"}):
            TriggerFlowOperator(
                task_id="trigger", flow_id="{{ params.flow }}", inputs={},
                workflow_automation_conn_id="workflow_automation_{{ params.env }}",
            )
    """)
    assert result.state == "success"
    assert [(run.by, run.flow_id) for run in service.runs] == [("path", "a/b")]
    assert [request.key_sent for request in service.journal.requests()] == [False]


def test_dag_test_starts_a_run_each_time(run_dag, service):
    """Also for one date, whose earlier DAG run and its state Airflow deletes."""
    day = datetime(2026, 2, 1, tzinfo=UTC)
    source = """
        with DAG("again", schedule=None, start_date=START):
            TriggerFlowOperator(task_id="trigger", inputs={})
    """
    results = [run_dag(source, logical_date=day).xcom("trigger")["run_id"] for _ in range(2)]
    assert results == [run.run_id for run in service.runs]
    assert len({*results}) == 2


def test_links_of_one_process_are_not_mixed_up(run_dag, service, monkeypatch):
    """At its end a task instance has its own link, and does not ask Airflow for what it has just stored."""
    asked = []
    get_value = XCom.get_value

    def counted(*, key, ti_key):
        asked.append((ti_key.task_id, ti_key.map_index, key))
        return get_value(key=key, ti_key=ti_key)

    monkeypatch.setattr(XCom, "get_value", counted)
    service.faults.add("reject", inputs={"n": 2})
    result = run_dag("""
        with DAG("links", schedule=None, start_date=START):
            mapped = TriggerFlowOperator.partial(task_id="mapped").expand(inputs=[{"n": n} for n in (1, 2, 3)])
            mapped >> TriggerFlowOperator(task_id="single", inputs={"n": 4}, trigger_rule="all_done")
    """)
    links = {run.inputs["n"]: f"{service.url}/runs/{run.run_id}" for run in service.runs}
    assert {*links} == {1, 3, 4}
    key = "_link_FlowRunLink"
    found = [result.xcom("mapped", key, index) or None for index in range(3)]
    assert [*found, result.xcom("single", key)] == [links[1], None, links[3], links[4]]
    assert asked == []


def test_chained_with_taskflow_in_a_group_natively(run_dag, service):
    result = run_dag("""
        with DAG("chained", schedule=None, start_date=START, render_template_as_native_obj=True):

            @task
            def make():
                return {"rows": [1, 2, 3], "big": 12345678901234567890}

            @task_group
            def group(made):
                trigger = TriggerFlowOperator(
                    task_id="trigger", inputs={"made": made, "rows": "{{ ti.xcom_pull('make')['rows'] }}"}
                )
                upload = UploadFilesOperator(
                    task_id="upload", run_id="{{ ti.xcom_pull('group.trigger')['run_id'] }}", flow_id="demo-flow",
                    files="{{ [{'rows': ti.xcom_pull('make')['rows']}] }}",
                )
                trigger >> upload
                return upload.output

            @task
            def after(answer):
                return answer

            after(group(make()))
    """)
    assert result.state == "success"
    (run,) = service.runs
    made = {"rows": [1, 2, 3], "big": 12345678901234567890}
    assert run.inputs == {"made": made, "rows": [1, 2, 3]}
    assert [(one.run_id, one.files) for one in service.uploads] == [(run.run_id, [{"rows": [1, 2, 3]}])]
    assert result.xcom("after") == result.xcom("group.upload")


def test_what_has_no_value_starts_nothing(run_dag, service, capfd):
    """A flow_id is no trigger by key, and a connection that is not there leaves no doubt about a run."""
    result = run_dag("""
        with DAG("no_value", schedule=None, start_date=START):

            @task
            def flows():
                return ["demo-flow", None]

            TriggerFlowOperator(task_id="template", flow_id="{{ ti.xcom_pull('nowhere') }}")
            TriggerFlowOperator.partial(task_id="mapped").expand(flow_id=flows())
            TriggerFlowOperator(task_id="connection", workflow_automation_conn_id="nowhere", retries=1, retry_delay=0)
    """)
    assert [result.task_state(name) for name in ("template", "connection")] == ["failed"] * 2
    assert [result.task_state("mapped", index) for index in range(2)] == ["success", "failed"]
    assert [request.operation for request in service.journal.requests()] == ["trigger_by_path"]
    said = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", capfd.readouterr().out).split())
    assert "flow_id is " in said
    assert "nowhere" in said
    # Only the one that was started says so, beforehand.
    assert said.count("may have been started") == said.count("If no later line") == 1


@pytest.mark.since_3_3
def test_trigger_flow_once_in_mapped_tasks(run_dag, service):
    """They have names of their own."""
    result = run_dag("""
        from workflow_automation_provider.taskflow import trigger_flow_once

        with DAG("taskflow_mapped", schedule=None, start_date=START):

            @task(retries=1, retry_delay=pendulum.duration(seconds=0))
            def one(customer, ti=None):
                run = trigger_flow_once("report", inputs={"customer": customer})
                if ti.try_number == 1:
                    raise RuntimeError("After the start")
                return run["run_id"]

            one.expand(customer=["ada", "bob"])
    """)
    assert result.state == "success"
    started = {run.inputs["customer"]: run.run_id for run in service.runs}
    assert len(service.runs) == len(started) == 2
    assert [result.xcom("one", map_index=index) for index in (0, 1)] == [started["ada"], started["bob"]]


def test_a_listener_can_read_what_happened(run_dag, service, task_errors):
    service.faults.add("status_after", status=503)
    run_dag("""
        with DAG("listener", schedule=None, start_date=START):
            TriggerFlowOperator(task_id="trigger", flow_id="demo-flow")
    """)
    (error,) = task_errors
    assert isinstance(error, OutcomeUnknownError)
    assert (error.accepted, error.status) == (Accepted.MAYBE, 503)
    assert str(error).splitlines()[-2:] == ["Connection: workflow_automation_default", "Flow: demo-flow"]
