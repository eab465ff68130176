"""Mapped uploads: over the results of mapped triggers, and the pairing by position that the docs warn of."""

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


OVER_RESULTS = """
with DAG("over_results", schedule=None, start_date=START):
    runs = TriggerFlowOperator.partial(task_id="trigger").expand(inputs=[{"n": 1}, {"n": 2}, {"n": 3}])
    UploadFilesOperator.partial(task_id="upload", files=[{"name": "terms"}]).expand(run_id=runs.output)
"""


def test_an_upload_maps_over_the_results_of_triggers(
    run_dag, workflow_automation_service, workflow_automation_connection
):
    result = run_dag(OVER_RESULTS)
    assert result.state == "success"
    runs = [run.run_id for run in workflow_automation_service.runs]
    assert len(runs) == 3
    assert sorted(upload.run_id for upload in workflow_automation_service.uploads) == runs
    assert [result.xcom("upload", map_index=index)["run_id"] for index in range(3)] == [
        result.xcom("trigger", map_index=index)["run_id"] for index in range(3)
    ]


def test_an_upload_of_a_mapped_group_takes_its_own_triggers_result(
    run_dag, workflow_automation_service, workflow_automation_connection
):
    result = run_dag("""
        with DAG("group_result", schedule=None, start_date=START):

            @task_group
            def customer(name):
                trigger = TriggerFlowOperator(task_id="trigger", inputs={"customer": name})
                UploadFilesOperator(task_id="upload", run_id=trigger.output, files=[{"customer": name}])

            customer.expand(name=["Ada", "Grace"])
    """)
    assert result.state == "success"
    customers = {run.run_id: run.inputs["customer"] for run in workflow_automation_service.runs}
    uploads = workflow_automation_service.uploads
    assert len(uploads) == 2
    assert all(upload.files == [{"customer": customers[upload.run_id]}] for upload in uploads)


@pytest.mark.parametrize("way", BY_POSITION)
def test_files_go_to_the_wrong_run(run_dag, workflow_automation_service, workflow_automation_connection, way):
    """A trigger that failed is missing in the list, and all behind it move up by one."""
    workflow_automation_service.faults.add("reject", inputs={"customer": "Grace"})
    # A name of its own: some versions run what they have stored of a DAG of the same name.
    dag = DAG.replace('"mapping"', f'"mapping_{list(BY_POSITION).index(way)}"')
    run_dag(dag + textwrap.indent(textwrap.dedent(BY_POSITION[way]), "    "))
    customers = {run.run_id: run.inputs["customer"] for run in workflow_automation_service.runs}
    taken = {
        customers[upload.run_id]: upload.files[0]["customer"]
        for upload in workflow_automation_service.uploads
    }
    assert taken == {"Ada": "Ada", "Edsger": "Grace", "Barbara": "Edsger"}
