"""The operators in real Airflow against the local service: what they send, return, push and template."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from airflow.providers.common.compat.sdk import XCom

from workflow_automation_provider.exceptions import Accepted, WorkflowAutomationError


def printed(capfd):
    """What the task log said on standard output."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", capfd.readouterr().out).split())


def only_run(service):
    (run,) = service.runs
    return run


class TestTriggerFlow:
    def test_by_key_returns_run_and_link(
        self, run_dag, workflow_automation_service, workflow_automation_connection
    ):
        result = run_dag("""
            with DAG("by_key", schedule=None, start_date=START):
                trigger = TriggerFlowOperator(task_id="trigger", inputs={"day": "{{ ds }}", "n": [1, {"t": "{{ 1 + 1 }}"}]})

                @task
                def after(flow_run_id, link):
                    return [flow_run_id, link]

                after(trigger.output["run_id"], trigger.output["run_link"])
        """)

        assert result.state == "success"
        run = only_run(workflow_automation_service)
        assert run.by == "key"
        assert run.inputs == {"day": str(result.dag_run.logical_date.date()), "n": [1, {"t": "2"}]}
        link = f"{workflow_automation_service.url}/runs/{run.run_id}"
        assert result.xcom("trigger") == {"run_id": run.run_id, "run_link": link, "flow_id": "demo-flow"}
        assert result.xcom("after") == [run.run_id, link]
        assert result.xcom("trigger", "_link_FlowRunLink") == link

    def test_dag_test_starts_a_run_each_time(
        self, run_dag, workflow_automation_service, workflow_automation_connection
    ):
        """Also for one date, whose earlier DAG run and its state Airflow deletes."""
        day = datetime(2026, 2, 1, tzinfo=UTC)
        source = """
            with DAG("again", schedule=None, start_date=START):
                TriggerFlowOperator(task_id="trigger", inputs={})
        """
        results = [run_dag(source, logical_date=day).xcom("trigger")["run_id"] for _ in range(2)]

        assert results == [run.run_id for run in workflow_automation_service.runs]
        assert len({*results}) == 2

    def test_by_path_with_templates_sends_no_key(
        self, run_dag, workflow_automation_service, workflow_automation_connection
    ):
        result = run_dag("""
            with DAG("by_path", schedule=None, start_date=START, params={"flow": "a/b", "env": "default"}):
                TriggerFlowOperator(
                    task_id="trigger", flow_id="{{ params.flow }}", inputs={},
                    workflow_automation_conn_id="workflow_automation_{{ params.env }}",
                )
        """)

        assert result.state == "success"
        run = only_run(workflow_automation_service)
        assert (run.by, run.flow_id) == ("path", "a/b")
        (request,) = workflow_automation_service.journal.requests()
        assert not request.key_sent

    def test_links_of_one_process_are_not_mixed_up(
        self, run_dag, workflow_automation_service, workflow_automation_connection, monkeypatch
    ):
        """At its end a task instance has its own link, and does not ask Airflow for what it has just stored."""
        asked = []
        get_value = XCom.get_value

        def counted(*, key, ti_key):
            asked.append((ti_key.task_id, ti_key.map_index, key))
            return get_value(key=key, ti_key=ti_key)

        monkeypatch.setattr(XCom, "get_value", counted)
        workflow_automation_service.faults.add("reject", inputs={"n": 2})
        result = run_dag("""
            with DAG("links", schedule=None, start_date=START):
                mapped = TriggerFlowOperator.partial(task_id="mapped").expand(inputs=[{"n": n} for n in (1, 2, 3)])
                mapped >> TriggerFlowOperator(task_id="single", inputs={"n": 4}, trigger_rule="all_done")
        """)

        ids = {run.inputs["n"]: run.run_id for run in workflow_automation_service.runs}
        links = {n: f"{workflow_automation_service.url}/runs/{run_id}" for n, run_id in ids.items()}
        assert {*links} == {1, 3, 4}
        key = "_link_FlowRunLink"
        found = [result.xcom("mapped", key, index) or None for index in range(3)]
        assert [*found, result.xcom("single", key)] == [links[1], None, links[3], links[4]]
        assert asked == []

    def test_chained_with_taskflow_in_a_group_natively(
        self, run_dag, workflow_automation_service, workflow_automation_connection
    ):
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
        run = only_run(workflow_automation_service)
        made = {"rows": [1, 2, 3], "big": 12345678901234567890}
        assert run.inputs == {"made": made, "rows": [1, 2, 3]}
        (upload,) = workflow_automation_service.uploads
        assert upload.run_id == run.run_id
        assert upload.files == [{"rows": [1, 2, 3]}]
        assert result.xcom("after") == result.xcom("group.upload")

    def test_a_flow_id_without_a_value_is_not_a_trigger_by_key(
        self, run_dag, workflow_automation_service, workflow_automation_connection, capfd
    ):
        result = run_dag("""
            with DAG("no_flow_id", schedule=None, start_date=START):
                TriggerFlowOperator(task_id="trigger", flow_id="{{ ti.xcom_pull('nowhere') }}", inputs={})
        """)

        assert result.task_state("trigger") == "failed"
        assert "flow_id is " in printed(capfd)
        assert workflow_automation_service.journal.requests() == []

    def test_a_mapped_flow_id_without_a_value_is_rejected(
        self, run_dag, workflow_automation_service, workflow_automation_connection
    ):
        result = run_dag("""
            with DAG("mapped_flow_id", schedule=None, start_date=START):

                @task
                def flows():
                    return ["demo-flow", None]

                TriggerFlowOperator.partial(task_id="trigger", inputs={}).expand(flow_id=flows())
        """)

        assert result.task_state("trigger", 0) == "success"
        assert result.task_state("trigger", 1) == "failed"
        assert [run.by for run in workflow_automation_service.runs] == ["path"]

    def test_a_connection_that_is_not_there_leaves_no_doubt_about_a_run(self, run_dag, capfd):
        result = run_dag("""
            with DAG("no_connection", schedule=None, start_date=START):
                TriggerFlowOperator(
                    task_id="trigger", inputs={}, workflow_automation_conn_id="nowhere",
                    retries=1, retry_delay=pendulum.duration(seconds=0),
                )
        """)

        assert result.task_state("trigger") == "failed"
        said = printed(capfd)
        assert "nowhere" in said
        assert "may have been started" not in said


class TestTriggerFlowOnce:
    """TaskFlow code starts each run once."""

    @pytest.mark.since_3_3
    def test_mapped_tasks_have_names_of_their_own(
        self, run_dag, workflow_automation_service, workflow_automation_connection
    ):
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
        started = {run.inputs["customer"]: run.run_id for run in workflow_automation_service.runs}
        assert len(workflow_automation_service.runs) == len(started) == 2
        assert [result.xcom("one", map_index=index) for index in (0, 1)] == [started["ada"], started["bob"]]


class TestErrors:
    @pytest.mark.parametrize(
        ("fault", "options", "expected"),
        [
            ("busy", {"retry_after": "1"}, ("BusyError", Accepted.NO, 429, 1.0)),
            ("status_after", {"status": 503}, ("OutcomeUnknownError", Accepted.MAYBE, 503, None)),
        ],
    )
    def test_a_listener_can_read_what_happened(
        self,
        run_dag,
        task_errors,
        workflow_automation_service,
        workflow_automation_connection,
        fault,
        options,
        expected,
    ):
        workflow_automation_service.faults.add(fault, times=None, **options)

        run_dag(f"""
            with DAG("listener_{fault}", schedule=None, start_date=START):
                TriggerFlowOperator(task_id="trigger", flow_id="demo-flow", send_retry_timeout=0)
        """)

        error = task_errors[0]
        assert isinstance(error, WorkflowAutomationError)
        assert (type(error).__name__, error.accepted, error.status, error.retry_after) == expected
        assert (error.conn_id, error.flow_id) == ("workflow_automation_default", "demo-flow")
        assert str(error).splitlines()[-2:] == ["Connection: workflow_automation_default", "Flow: demo-flow"]
