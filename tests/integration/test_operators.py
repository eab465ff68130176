"""
The operators in real Airflow against the local service.

What they send, return, push, template and pass on.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest
from airflow.providers.common.compat.sdk import XCom

from sentences import ASKING, MAYBE_STARTED

RESULT = {"rows": 3, "files": [{"name": "a.csv"}, {"name": "b.csv"}]}


def test_by_key_returns_run_and_link(run_dag, service):
    """
    It starts a run each time, also for one date.

    Whose earlier DAG run and its state Airflow deletes.
    """
    source = """
        with DAG("by_key", schedule=None):
            trigger = TriggerFlowOperator(task_id="trigger", inputs={"day": "{{ ds }}", "n": [1, {"t": "{{ 1 + 1 }}"}]})

            @task
            def after(flow_run_id, link):
                return [flow_run_id, link]

            after(trigger.output["run_id"], trigger.output["run_link"])
    """
    for number in range(2):
        result = run_dag(source, logical_date=datetime(2026, 2, 1, tzinfo=UTC))
        run = service.runs[number]
        assert (run.by, run.inputs) == ("key", {"day": "2026-02-01", "n": [1, {"t": "2"}]})
        link = f"{service.url}/runs/{run.run_id}"
        assert result.xcom("trigger") == {
            "run_id": run.run_id,
            "run_link": link,
            "flow_id": "demo-flow",
        }
        assert result.xcom("after") == [run.run_id, link]
        assert result.xcom("trigger", "_link_FlowRunLink") == link
    assert len({run.run_id for run in service.runs}) == 2


def test_links_of_one_process_are_not_mixed_up(run_dag, service, monkeypatch):
    """
    At its end a task instance has its own link.

    And does not ask Airflow for what it has just stored.

    One of them starts its run by path, with templates, and without the key.
    """
    asked = []
    get_value = XCom.get_value

    def counted(*, key, ti_key):
        asked.append((ti_key.task_id, ti_key.map_index, key))
        return get_value(key=key, ti_key=ti_key)

    monkeypatch.setattr(XCom, "get_value", counted)
    service.faults.add("reject", inputs={"n": 2})
    result = run_dag("""
        with DAG("links", schedule=None, params={"flow": "a/b", "env": "default"}):
            mapped = TriggerFlowOperator.partial(task_id="mapped").expand(inputs=[{"n": n} for n in (1, 2, 3)])
            mapped >> TriggerFlowOperator(
                task_id="single", flow_id="{{ params.flow }}", inputs={"n": 4}, trigger_rule="all_done",
                workflow_automation_conn_id="workflow_automation_{{ params.env }}",
            )
    """)
    links = {run.inputs["n"]: f"{service.url}/runs/{run.run_id}" for run in service.runs}
    assert {*links} == {1, 3, 4}
    key = "_link_FlowRunLink"
    found = [result.xcom("mapped", key, index) or None for index in range(3)]
    assert [*found, result.xcom("single", key)] == [links[1], None, links[3], links[4]]
    assert asked == []
    assert (service.runs[-1].by, service.runs[-1].flow_id) == ("path", "a/b")
    assert [request.key_sent for request in service.journal.requests()] == [True, True, True, False]


def test_chained_with_taskflow_in_a_group_natively(run_dag, service):
    result = run_dag("""
        with DAG("chained", schedule=None, render_template_as_native_obj=True):

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
    (run,) = service.runs
    made = {"rows": [1, 2, 3], "big": 12345678901234567890}
    assert run.inputs == {"made": made, "rows": [1, 2, 3]}
    assert [(one.run_id, one.files) for one in service.uploads] == [
        (run.run_id, [{"rows": [1, 2, 3]}])
    ]
    assert result.xcom("after") == result.xcom("group.upload")


def test_text_without_a_template_arrives_exactly_natively(run_dag, service):
    run_dag("""
        TEXT = "1_000\\r\\n"

        with DAG("texts", schedule=None, render_template_as_native_obj=True):
            on_success = FlowNotifier({"text": TEXT, "from": "{{ ti.task_id }}"})
            TriggerFlowOperator.partial(
                task_id="mapped", flow_id="007", on_success_callback=on_success
            ).expand(inputs=[{"text": TEXT, "from": "{{ task.task_id }}"}])

            @task.trigger_flow
            def decorated(text):
                return {"text": text, "from": "decorated"}

            decorated(TEXT)
    """)
    assert sorted((run.inputs["from"], run.inputs["text"]) for run in service.runs) == [
        ("decorated", "1_000\r\n"),
        ("mapped", "1_000\r\n"),
        ("mapped", "1_000\r\n"),
    ]
    assert "007" in {run.flow_id for run in service.runs}


def test_what_has_no_value_starts_nothing(run_dag, service, capfd):
    """
    A flow_id is no trigger by key.

    And a connection that is not there leaves no doubt about a run.
    """
    result = run_dag(
        """
        with DAG("no_value", schedule=None):

            @task
            def flows():
                return ["demo-flow", None]

            TriggerFlowOperator(task_id="template", flow_id="{{ ti.xcom_pull('nowhere') }}")
            TriggerFlowOperator.partial(task_id="mapped").expand(flow_id=flows())
            TriggerFlowOperator(task_id="connection", workflow_automation_conn_id="nowhere", retries=1, retry_delay=0)
        """,
        ends="failed",
    )
    assert [result.ti(name).state for name in ("template", "connection")] == ["failed"] * 2
    assert [result.ti("mapped", index).state for index in range(2)] == ["success", "failed"]
    assert [request.operation for request in service.journal.requests()] == ["trigger_by_path"]
    output = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", capfd.readouterr().out).split())
    assert "flow_id is " in output
    assert "nowhere" in output
    # Only the one that was started says so, beforehand.
    assert output.lower().count(MAYBE_STARTED.lower()) == output.count(ASKING) == 1


@pytest.mark.since_3_3
def test_a_retry_returns_the_run(run_dag, service, tmp_path):
    """
    That of a decorated function, which is not called again.

    Those of mapped tasks have names of their own.
    """
    result = run_dag(f"""
        CALLS = Path("{tmp_path}/calls")

        def fail_once(context, result):
            if context["ti"].try_number == 1:
                raise ValueError("After the start")

        retried = {{"retries": 1, "retry_delay": pendulum.duration(seconds=0), "post_execute": fail_once}}

        @task.trigger_flow(**retried)
        def decorated():
            with CALLS.open("a") as calls:
                calls.write(".")
            return {{"customer": CALLS.read_text()}}

        @task(**retried)
        def mapped(customer):
            return trigger_flow_once("report", inputs={{"customer": customer}})["run_id"]

        with DAG("retried", schedule=None):
            decorated()
            mapped.expand(customer=["ada", "bob"])
    """)
    started = {run.inputs["customer"]: run.run_id for run in service.runs}
    assert len(service.runs) == len(started) == 3
    assert result.xcom("decorated", "run_id") == started["."]
    assert (tmp_path / "calls").read_text() == "."
    assert [result.xcom("mapped", map_index=index) for index in (0, 1)] == [
        started["ada"],
        started["bob"],
    ]
    assert [
        result.ti(*one).try_number for one in (("decorated",), ("mapped", 0), ("mapped", 1))
    ] == [2] * 3


@pytest.mark.since_3_3
def test_a_field_of_the_result_is_passed_on(
    run_dag, service, workflow_automation_callback_base_url, task_errors
):
    """
    To the next start, and to any task.

    One that is not there fails that task before it starts anything.
    """
    service.callbacks.add(result=RESULT)
    result = run_dag(
        """
        with DAG("chain", schedule=None):
            first = TriggerFlowOperator(task_id="first", inputs={}, wait_for_completion=True)
            rows, files = first.output["result"]["rows"], first.output["result"]["files"]
            TriggerFlowOperator(
                task_id="second",
                inputs={"rows": rows, "deep": {"file": [files[1]["name"]]}, "text": f"{rows} of run {first.output['run_id']}"},
            )
            TriggerFlowOperator(task_id="third", inputs={"a": files[7]})

            @task
            def after(file, whole):
                return [file, whole]

            after(files[0]["name"], first.output["result"])
        """,
        ends="failed",
    )
    first, second = service.runs
    assert second.inputs == {
        "rows": 3,
        "deep": {"file": ["b.csv"]},
        "text": f"3 of run {first.run_id}",
    }
    assert result.xcom("after") == ["a.csv", RESULT]
    assert result.ti("third").state == "failed"
    (error,) = task_errors
    assert "['result'] of task first" in str(error)


@pytest.mark.since_3_3
def test_a_field_of_a_result_that_is_text(
    run_dag, service, workflow_automation_callback_base_url, task_errors
):
    """
    As HTTP steps often send it.

    A task that needs a field says that there is text in its place, and starts nothing.
    """
    texts = [json.dumps(RESULT), "[3]", "3 rows", "7"]
    for number, text in enumerate(texts):
        service.callbacks.add(result=text, inputs={"number": number})
    result = run_dag(
        """
        with DAG("text", schedule=None):
            for number in range(4):
                first = TriggerFlowOperator(
                    task_id=f"first_{number}", inputs={"number": number}, wait_for_completion=True
                )
                TriggerFlowOperator(task_id=f"field_{number}", inputs={"a": first.output["result"]["rows"]})
                TriggerFlowOperator(task_id=f"item_{number}", inputs={"a": first.output["result"][0]})
        """,
        ends="failed",
    )
    assert [result.xcom(f"first_{number}", "result") for number in range(4)] == texts
    assert len(service.runs) == 4
    errors = {error.args[0] for error in task_errors}
    assert errors == {
        f"The output['result'] of task first_{number} has no {part} in {text!a:.60}"
        for number, text in enumerate(texts)
        for part in ("'rows'", "0")
    }


def test_paired_by_position_files_go_to_the_wrong_run(run_dag, service):
    """
    As docs/trigger.md warns.

    A trigger that failed is missing in the list, and all behind it move up by one.
    """
    service.faults.add("reject", inputs={"customer": "Grace"})
    run_dag(
        """
        with DAG("by_position", schedule=None):

            @task
            def list_customers():
                return [{"customer": name} for name in ("Ada", "Grace", "Edsger")]

            rows = list_customers()
            runs = TriggerFlowOperator.partial(task_id="trigger").expand(inputs=rows)
            UploadFilesOperator.partial(task_id="upload", trigger_rule="all_done").expand_kwargs(
                runs.output.zip(rows).map(lambda pair: {"run_id": pair[0]["run_id"], "files": [pair[1]]})
            )
        """
    )
    customers = {run.run_id: run.inputs["customer"] for run in service.runs}
    given = {customers[upload.run_id]: upload.files[0]["customer"] for upload in service.uploads}
    assert given == {"Ada": "Ada", "Edsger": "Grace"}
