"""Run an example DAG in Airflow against a local service, and show what came of it."""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from airflow_launcher.airflow import VERSION, Airflow
from airflow_launcher.connections import connection_to
from local_airflow import CONN_ID, DAGS, HOMES, SETTINGS, begin, prepare, shown
from workflow_automation_provider.testing import LocalService

if TYPE_CHECKING:
    from airflow_launcher.processes import Program

DAG_ID = "workflow_automation_trigger_upload"
RUN_TIMEOUT = 180


def run_dag(service: LocalService) -> tuple[Program, bool]:
    """Run the DAG once, and tell whether it succeeded."""
    airflow = Airflow(
        HOMES / "demo", DAGS, connections={CONN_ID: connection_to(service.base_url)}, settings=SETTINGS
    )
    prepare(airflow)
    print(f"Running {DAG_ID} in Airflow {VERSION} (about 10 s) …")
    began = time.monotonic()
    program = airflow.program("demo", "dags", "test", DAG_ID)
    succeeded = program.run(RUN_TIMEOUT)
    print(f"{'Succeeded' if succeeded else 'FAILED'} after {time.monotonic() - began:.0f} s.")
    return program, succeeded


def content_size(content: Any) -> int:
    """Return how many bytes came as base64; the journal only describes what is long."""
    if isinstance(content, str):
        return len(base64.b64decode(content))
    size: int = content["long_string"]["decoded"]["length"]
    return size


def main() -> int:
    """Run the demo; return the exit code."""
    begin()
    with LocalService() as service:
        program, succeeded = run_dag(service)
        if not succeeded:
            print(f"The end of its log:\n\n{program.tail()}\n\nThe whole log: {shown(program.output)}")
            return 1
        print("\nWhat the service received:")
        for run in service.runs:
            print(f"  run {run.run_id} of flow {run.flow_id}: {service.url}/runs/{run.run_id}")
            print(f"    inputs  {json.dumps(run.inputs, ensure_ascii=False)}")
            for upload in service.uploads:
                if upload.run_id == str(run.run_id):
                    for file in upload.files or ():
                        print(f"    file    {file['name']} ({content_size(file['content'])} bytes)")
    print(f"\nThe task log: {shown(program.output)}")
    print("The run's page went with the service. To click around in Airflow and the service: make ui")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, TimeoutError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
