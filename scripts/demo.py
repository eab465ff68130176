"""
Run example DAGs in Airflow against a local service, and show what came of them.

The last one loses the response to its start: there is one run, and an error that says what to do.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
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
LOST = "workflow_automation_trigger_upload"


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


def run_dag(airflow: Airflow, dag_id: str) -> tuple[str, str]:
    """Run a DAG once; return the id of its run, and its state at the end."""
    run_id = f"demo-{uuid4()}"
    print(f"\nRunning {dag_id} …")
    airflow.api.unpause(dag_id)
    airflow.api.trigger(dag_id, run_id)
    return run_id, airflow.api.finished(dag_id, run_id)


def logs_of(airflow: Airflow, dag_id: str, run_id: str) -> Path:
    """Return the folder with the logs of a DAG run."""
    return airflow.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}"


def run_example(airflow: Airflow, dag_id: str) -> bool:
    """Run a DAG once, print what its last task returned, and tell whether it succeeded."""
    run_id, state = run_dag(airflow, dag_id)
    if state == "success":
        print(f"The task announce says: {airflow.api.xcom(dag_id, run_id, 'announce')}")
    else:
        print(f"It ended as {state}. The logs of its tasks: {logs_of(airflow, dag_id, run_id)}")
    return state == "success"


def lose_a_response(airflow: Airflow, service: LocalService) -> bool:
    """Lose the response to a start, print the task's error, and tell whether there is one run."""
    service.faults.add("drop_after", inputs={"customer": "Ada"})
    print("\nOnce more, but the response to the start is lost.")
    before = len(service.runs)
    run_id, state = run_dag(airflow, LOST)
    log = logs_of(airflow, LOST, run_id) / "task_id=trigger" / "attempt=1.log"
    started = len(service.runs) - before
    print(
        f"The task, with retries=3, ended as {state}. Runs that were started: {started}. The error "
        "says what to do:\n"
    )
    print(textwrap.indent(error_in(log), "  "))
    return state == "failed" and started == 1


def error_in(log: Path) -> str:
    """Return the text of the first error in the log of a task."""
    for line in log.read_text(encoding="utf-8").splitlines():
        for raised in json.loads(line).get("error_detail", ()):
            return str(raised["exc_value"])
    return f"(there is none in {log})"


def main() -> int:
    """Run the demo; return the exit code."""
    with local_airflow("demo", delay=2) as (airflow, service, _):
        first = len(service.runs)
        succeeded = [run_example(airflow, dag_id) for dag_id in EXAMPLES]
        succeeded.append(lose_a_response(airflow, service))
        print("\nWhat the service received (it ends now: its links lead nowhere):")
        show(service, first)
    print("To click around in Airflow and the service: make ui")
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main())
