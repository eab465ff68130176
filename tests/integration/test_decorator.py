"""``@task.trigger_flow`` in real Airflow: calls, mapping, retries, skips, what Airflow shows."""

from __future__ import annotations

import pytest


def test_arguments_templates_context_and_result(run_dag, service):
    result = run_dag("""
        @task
        def customer():
            return "Ada"

        @task.trigger_flow(flow_id="{{ 'demo-flow' }}", retries=2)
        def trigger(name, greeting, params, *, ti=None):
            return {
                "name": name,
                "greeting": greeting,
                "day": params["day"],
                "task": ti.task_id,
                "text": "{{ 1 / 0 }}",
            }

        @task
        def announce(run, run_id_of_flow):
            return [run["run_link"], run_id_of_flow]

        with DAG("decorated", schedule=None, start_date=START, params={"day": "monday"}):
            run = trigger(customer(), greeting="Good {{ params.day }}")
            announce(run, run["run_id"])
    """)
    assert result.state == "success"
    inputs = {
        "name": "Ada",
        "greeting": "Good monday",
        "day": "monday",
        "task": "trigger",
        "text": "{{ 1 / 0 }}",
    }
    assert [run.inputs for run in service.runs] == [inputs]
    link = f"{service.url}/runs/1001"
    assert result.xcom("trigger") == {"run_id": "1001", "run_link": link, "flow_id": "demo-flow"}
    assert result.xcom("trigger", "run_id") == "1001"
    assert result.xcom("announce") == [link, "1001"]
    assert result.xcom("trigger", "_link_FlowRunLink") == link

    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session

    with create_session() as session:
        rendered = [row.rendered_fields.get("inputs") for row in session.query(RenderedTaskInstanceFields)]
    assert inputs in rendered


def test_expand_partial_override_kwargs_and_skip(run_dag, service):
    result = run_dag("""
        from airflow.providers.common.compat.sdk import AirflowSkipException

        @task.trigger_flow
        def trigger(customer, language="en"):
            if customer == "Grace":
                raise AirflowSkipException
            return {"customer": customer, "language": language}

        with DAG("expanded", schedule=None, start_date=START):
            trigger.expand(customer=["Ada", "Grace"])
            partial = trigger.override(task_id="partial", flow_id="demo-flow").partial(language="de")
            partial.expand(customer=["Edsger"])
            trigger.override(task_id="kwargs").expand_kwargs([{"customer": "Barbara", "language": "es"}])
            trigger.override(task_id="one")("Alan")
    """)
    assert result.state == "success"
    assert [result.task_state("trigger", index) for index in (0, 1)] == ["success", "skipped"]
    runs = {run.inputs["customer"]: run for run in service.runs}
    assert {name: run.inputs["language"] for name, run in runs.items()} == {
        "Ada": "en",
        "Alan": "en",
        "Barbara": "es",
        "Edsger": "de",
    }
    link = f"{service.url}/runs/{runs['Ada'].run_id}"
    assert result.xcom("trigger", "_link_FlowRunLink", map_index=0) == link
    assert result.xcom("partial", "run_id", map_index=0) == runs["Edsger"].run_id
    assert (runs["Edsger"].by, runs["Alan"].by) == ("path", "key")


@pytest.mark.since_3_3
def test_a_retry_after_the_start(run_dag, service, tmp_path):
    """It returns the recorded run without calling the function."""
    calls = tmp_path / "calls"
    result = run_dag(f"""
        from pathlib import Path
        from airflow.sdk.exceptions import AirflowException

        CALLS = Path({str(calls)!r})

        def fail_once(context, result):
            if context["ti"].try_number == 1:
                raise AirflowException("After the start")

        def note(context):
            CALLS.with_name("noted").touch()

        @task.trigger_flow(retries=1, retry_delay=0, post_execute=fail_once, on_retry_callback=note)
        def trigger():
            CALLS.write_text(CALLS.read_text() + "." if CALLS.exists() else ".")
            return {{"call": len(CALLS.read_text())}}

        with DAG("retried", schedule=None, start_date=START):
            trigger()
    """)
    assert result.state == "success"
    (run,) = service.runs
    assert run.inputs == {"call": 1}
    assert calls.read_text() == "."
    assert result.xcom("trigger", "run_id") == run.run_id
    assert calls.with_name("noted").exists()
