"""Run example DAGs in Airflow against a local service, and show what came of them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING
from uuid import uuid4

from local_airflow import local_airflow

if TYPE_CHECKING:
    from airflow_launcher.airflow import Airflow
    from workflow_automation_provider.testing import LocalService

EXAMPLES = (
    "workflow_automation_trigger_upload",
    "workflow_automation_claim",
    "workflow_automation_wait",
)


def show(service: LocalService, first: int) -> None:
    """Print what the service received for its runs, and what they called back."""
    for run in service.runs[first:]:
        print(f"  run {run.run_id} of flow {run.flow_id}")
        print(f"    inputs    {json.dumps(run.inputs, ensure_ascii=False)}")
        for upload in service.uploads:
            if upload.run_id == run.run_id:
                print(f"    files     {', '.join(file['name'] for file in upload.files or ())}")
        for call in service.journal.callbacks():
            if call.run_id == run.run_id:
                print(f"    callback  {json.dumps(call.body, ensure_ascii=False)} → {call.status}")


def run_example(airflow: Airflow, dag_id: str) -> bool:
    """Run a DAG once, print what its last task returned, and tell whether it succeeded."""
    run_id = f"demo-{uuid4()}"
    print(f"Running {dag_id} …")
    airflow.api.trigger(dag_id, run_id)
    state = airflow.api.finished(dag_id, run_id)
    if state == "success":
        print(f"The task announce says: {airflow.api.xcom(dag_id, run_id, 'announce')}")
    else:
        print(
            f"It ended as {state}. The logs of its tasks: "
            f"{airflow.home}/logs/dag_id={dag_id}/run_id={run_id}"
        )
    return state == "success"


def main() -> int:
    """Run the demo; return the exit code."""
    with local_airflow("demo", delay=2) as (airflow, service, _):
        first = len(service.runs)
        succeeded = [run_example(airflow, dag_id) for dag_id in EXAMPLES]
        print("\nWhat the service received (it ends now: its links lead nowhere):")
        show(service, first)
    print("To click around in Airflow and the service: make ui")
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main())
