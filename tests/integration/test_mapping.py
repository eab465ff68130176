"""Mapped uploads: in a mapped group, and the pairing by position that the docs warn of."""

from __future__ import annotations


def uploads(service):
    """Return which customer's file the run of each customer was given."""
    customers = {run.run_id: run.inputs["customer"] for run in service.runs}
    return {customers[upload.run_id]: upload.files[0]["customer"] for upload in service.uploads}


def test_an_upload_of_a_mapped_group_takes_its_own_triggers_result(run_dag, service):
    result = run_dag("""
        with DAG("group_result", schedule=None, start_date=START):

            @task_group
            def customer(name):
                trigger = TriggerFlowOperator(task_id="trigger", inputs={"customer": name})
                UploadFilesOperator(task_id="upload", run_id=trigger.output, files=[{"customer": name}])

            customer.expand(name=["Ada", "Grace"])
    """)
    assert result.state == "success"
    assert uploads(service) == {"Ada": "Ada", "Grace": "Grace"}


def test_by_position_files_go_to_the_wrong_run(run_dag, service):
    """A trigger that failed is missing in the list, and all behind it move up by one."""
    service.faults.add("reject", inputs={"customer": "Grace"})
    run_dag("""
        with DAG("by_position", schedule=None, start_date=START):

            @task
            def list_customers():
                return [{"customer": name} for name in ("Ada", "Grace", "Edsger")]

            rows = list_customers()
            runs = TriggerFlowOperator.partial(task_id="trigger").expand(inputs=rows)
            UploadFilesOperator.partial(task_id="upload", trigger_rule="all_done").expand_kwargs(
                runs.output.zip(rows).map(lambda pair: {"run_id": pair[0]["run_id"], "files": [pair[1]]})
            )
    """)
    assert uploads(service) == {"Ada": "Ada", "Edsger": "Grace"}
