"""Airflow's own behaviour that the docs warn of: a mapped upload that is paired with its trigger by position."""

from __future__ import annotations

import textwrap

import pytest

DAG = """
@task
def list_customers():
    return [{"customer": name} for name in ("Ada", "Grace", "Edsger", "Barbara")]

with DAG("mapping", schedule=None, start_date=START):
    rows = list_customers()
    runs = TriggerFlowOperator.partial(task_id="trigger").expand(inputs=rows)
"""

BY_POSITION = {
    "XComArg.zip": """
        UploadFilesOperator.partial(task_id="upload", trigger_rule="all_done").expand_kwargs(
            runs.output.zip(rows).map(lambda pair: {"run_id": pair[0]["run_id"], "files": [pair[1]]})
        )
    """,
    "two lists in a task": """
        @task(trigger_rule="all_done")
        def pair(runs, rows):
            return [{"run_id": run["run_id"], "files": [row]} for run, row in zip(runs, rows)]

        UploadFilesOperator.partial(task_id="upload").expand_kwargs(pair(runs.output, rows))
    """,
}


@pytest.mark.parametrize("way", BY_POSITION)
def test_files_go_to_the_wrong_run(run_dag, workflow_automation_service, workflow_automation_connection, way):
    """A trigger that failed is missing in the list, and all behind it move up by one."""
    workflow_automation_service.faults.add("refuse", inputs={"customer": "Grace"})
    # A name of its own: some versions run what they have stored of a DAG of the same name.
    dag = DAG.replace('"mapping"', f'"mapping_{list(BY_POSITION).index(way)}"')
    run_dag(dag + textwrap.indent(textwrap.dedent(BY_POSITION[way]), "    "))
    customers = {run.run_id: run.inputs["customer"] for run in workflow_automation_service.runs}
    taken = {
        customers[upload.run_id]: upload.files[0]["customer"]
        for upload in workflow_automation_service.uploads
    }
    assert taken == {"Ada": "Ada", "Edsger": "Grace", "Barbara": "Edsger"}
