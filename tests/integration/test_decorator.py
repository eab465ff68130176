"""``@task.trigger_flow`` in real Airflow: calls, mapping, retries, skips, what Airflow shows."""

from __future__ import annotations

import textwrap

import pytest


@pytest.fixture
def run_tasks(run_dag, request):
    """Run a DAG of functions and calls of them, both given as Python text."""

    def run(functions, calls, **options):
        name = f"dag_{request.node.name}".replace("[", "_").replace("]", "").replace(" ", "_")
        return run_dag(
            textwrap.dedent(functions)
            + f"\nwith DAG({name!r}, schedule=None, start_date=START, params={{'day': 'monday'}}):\n"
            + textwrap.indent(textwrap.dedent(calls), "    "),
            **options,
        )

    return run


@pytest.fixture
def service(workflow_automation_service, workflow_automation_connection):
    return workflow_automation_service


def inputs_of(service):
    return [run.inputs for run in service.runs]


def test_arguments_templates_context_and_result(run_tasks, service):
    result = run_tasks(
        """
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
                "text": "{{ params.day }}",
            }

        @task
        def announce(run, run_id_of_flow):
            return [run["run_link"], run_id_of_flow]
        """,
        """
        run = trigger(customer(), greeting="Good {{ params.day }}")
        announce(run, run["run_id"])
        """,
    )
    assert result.state == "success"
    assert inputs_of(service) == [
        {
            "name": "Ada",
            "greeting": "Good monday",
            "day": "monday",
            "task": "trigger",
            "text": "{{ params.day }}",
        }
    ]
    link = f"{service.url}/runs/1001"
    assert result.xcom("trigger") == {"run_id": "1001", "run_link": link, "flow_id": "demo-flow"}
    assert result.xcom("trigger", "run_id") == "1001"
    assert result.xcom("announce") == [link, "1001"]
    assert result.xcom("trigger", "_link_FlowRunLink") == link


def test_expand_partial_override_and_kwargs(run_tasks, service):
    result = run_tasks(
        """
        @task.trigger_flow
        def trigger(customer, language="en"):
            return {"customer": customer, "language": language}
        """,
        """
        trigger.expand(customer=["Ada", "Grace"])
        trigger.override(task_id="partial", flow_id="demo-flow").partial(language="de").expand(customer=["Edsger"])
        trigger.override(task_id="kwargs").expand_kwargs([{"customer": "Barbara", "language": "es"}])
        trigger.override(task_id="one")("Alan")
        """,
    )
    assert result.state == "success"
    assert sorted((run.inputs["customer"], run.inputs["language"]) for run in service.runs) == [
        ("Ada", "en"),
        ("Alan", "en"),
        ("Barbara", "es"),
        ("Edsger", "de"),
        ("Grace", "en"),
    ]
    started = {run.run_id: run for run in service.runs}
    for index, customer in enumerate(["Ada", "Grace"]):
        run_id = result.xcom("trigger", "run_id", map_index=index)
        assert started[run_id].inputs["customer"] == customer
        link = f"{service.url}/runs/{run_id}"
        assert result.xcom("trigger", "_link_FlowRunLink", map_index=index) == link
    assert started[result.xcom("partial", "run_id", map_index=0)].by == "path"
    assert started[result.xcom("one", "run_id")].by == "key"


def test_a_function_that_skips(run_tasks, service):
    result = run_tasks(
        """
        from airflow.providers.common.compat.sdk import AirflowSkipException

        @task.trigger_flow
        def trigger(customer):
            if customer == "Grace":
                raise AirflowSkipException
            return {"customer": customer}
        """,
        'trigger.expand(customer=["Ada", "Grace"])',
    )
    assert [result.task_state("trigger", index) for index in (0, 1)] == ["success", "skipped"]
    assert inputs_of(service) == [{"customer": "Ada"}]


# A function whose task fails once, after its run was started.
FAILS_AFTER_THE_START = """
    from pathlib import Path
    from airflow.sdk.exceptions import AirflowException

    CALLS = Path({calls!r})

    def fail_once(context, result):
        if context["ti"].try_number == 1:
            raise AirflowException("After the start")

    def note(context):
        CALLS.with_name("noted").touch()

    @task.trigger_flow(retries=1, retry_delay=0, post_execute=fail_once, on_retry_callback=note)
    def trigger():
        CALLS.write_text(CALLS.read_text() + "." if CALLS.exists() else ".")
        return {{"call": len(CALLS.read_text())}}
"""


@pytest.mark.since_3_3
def test_a_retry_after_the_start(run_tasks, service, tmp_path):
    """It returns the recorded run without calling the function."""
    calls = tmp_path / "calls"
    result = run_tasks(FAILS_AFTER_THE_START.format(calls=str(calls)), "trigger()")
    assert result.state == "success"
    assert inputs_of(service) == [{"call": 1}]
    assert calls.read_text() == "."
    assert result.xcom("trigger", "run_id") == service.runs[-1].run_id
    assert calls.with_name("noted").exists()


def test_the_inputs_are_shown(run_tasks, service):
    run_tasks(
        """
        @task.trigger_flow
        def trigger():
            return {"shown": "{{ 1 / 0 }}"}
        """,
        "trigger()",
    )
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session

    with create_session() as session:
        rendered = [row.rendered_fields.get("inputs") for row in session.query(RenderedTaskInstanceFields)]
    assert {"shown": "{{ 1 / 0 }}"} in rendered
