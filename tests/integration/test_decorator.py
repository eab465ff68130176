"""
``@task.trigger_flow`` in real Airflow.

Calls, mapping, skips, what Airflow shows; retries are in ``test_operators.py``.
"""

from __future__ import annotations


def test_calls_mapping_and_skips(run_dag, service):
    result = run_dag("""
        @task
        def customer():
            return "Ada"

        @task.trigger_flow
        def trigger(name, greeting="Hello", *, params, ti=None):
            if name == "Grace":
                raise AirflowSkipException
            texts = [greeting, params["day"], "{{ 1 / 0 }}"]
            return {"name": name, "task": ti.task_id, "texts": texts}

        @task
        def announce(run, run_id_of_flow):
            return [run["run_link"], run_id_of_flow]

        with DAG("decorated", schedule=None, params={"day": "monday"}):
            run = trigger(customer(), greeting="Good {{ params.day }}")
            announce(run, run["run_id"])
            trigger.override(task_id="mapped").expand(name=["Edsger", "Grace"])
            partial = trigger.override(task_id="partial", flow_id="{{ 'demo-flow' }}").partial(greeting="Hallo")
            partial.expand(name=["Alan"])
            trigger.override(task_id="kwargs").expand_kwargs([{"name": "Barbara", "greeting": "Hola"}])
    """)
    greetings = {"Ada": "Good monday", "Edsger": "Hello", "Alan": "Hallo", "Barbara": "Hola"}
    tasks = {"Ada": "trigger", "Edsger": "mapped", "Alan": "partial", "Barbara": "kwargs"}
    runs = {run.inputs["name"]: run for run in service.runs}
    inputs = {
        name: {"name": name, "task": tasks[name], "texts": [greeting, "monday", "{{ 1 / 0 }}"]}
        for name, greeting in greetings.items()
    }
    assert {name: run.inputs for name, run in runs.items()} == inputs
    assert {name: run.by for name, run in runs.items()} == {
        **dict.fromkeys(tasks, "key"),
        "Alan": "path",
    }
    assert [result.ti("mapped", index).state for index in (0, 1)] == ["success", "skipped"]

    run_id = runs["Ada"].run_id
    link = f"{service.url}/runs/{run_id}"
    assert result.xcom("trigger") == {"run_id": run_id, "run_link": link, "flow_id": "demo-flow"}
    assert result.xcom("trigger", "run_id") == run_id
    assert result.xcom("announce") == [link, run_id]
    assert result.xcom("trigger", "_link_FlowRunLink") == link
    mapped_link = result.xcom("mapped", "_link_FlowRunLink", map_index=0)
    assert mapped_link == f"{service.url}/runs/{runs['Edsger'].run_id}"
    assert result.xcom("partial", "run_id", map_index=0) == runs["Alan"].run_id

    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session

    with create_session() as session:
        rendered = [
            row.rendered_fields.get("inputs") for row in session.query(RenderedTaskInstanceFields)
        ]
    assert inputs["Ada"] in rendered
