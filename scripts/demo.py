"""Run an example DAG in Airflow against a local service, and show what came of it."""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from local_airflow import AIRFLOW_VERSION, CONN_ID, PROJECT, LocalAirflow, begin, shown, tail

from workflow_automation_provider.testing import DEMO_FLOW_ID, DEMO_KEY, LocalService

if TYPE_CHECKING:
    from pathlib import Path

DAG_ID = "workflow_automation_trigger_upload"


def run_dag(service: LocalService, log: Path) -> bool:
    """Run the DAG once, and tell whether it succeeded."""
    connection = {
        "conn_type": "workflow_automation",
        "host": service.base_url,
        "password": DEMO_KEY.value,
        "extra": {"flow_id": DEMO_FLOW_ID},
    }
    airflow = LocalAirflow("demo", {f"AIRFLOW_CONN_{CONN_ID.upper()}": json.dumps(connection)})
    airflow.prepare()
    print(f"Running {DAG_ID} in Airflow {AIRFLOW_VERSION} (about 10 s) …")
    began = time.monotonic()
    succeeded = airflow.run(["dags", "test", DAG_ID], log)
    print(f"{'Succeeded' if succeeded else 'FAILED'} after {time.monotonic() - began:.0f} s.")
    return succeeded


def content_size(content: Any) -> int:
    """Return how many bytes came as base64; the journal only describes what is long."""
    if isinstance(content, str):
        return len(base64.b64decode(content))
    size: int = content["long_string"]["decoded"]["length"]
    return size


def main() -> int:
    """Run the demo; return the exit code."""
    begin()
    log = PROJECT / ".airflow" / "demo" / "logs" / "demo.log"
    with LocalService() as service:
        if not run_dag(service, log):
            print(f"The end of its log:\n\n{tail(log)}\n\nThe whole log: {shown(log)}")
            return 1
        print("\nWhat the service received:")
        for run in service.runs:
            print(f"  run {run.run_id} of flow {run.flow_id}: {service.url}/runs/{run.run_id}")
            print(f"    inputs  {json.dumps(run.inputs, ensure_ascii=False)}")
            for upload in service.uploads:
                if upload.run_id == str(run.run_id):
                    for file in upload.files or ():
                        print(f"    file    {file['name']} ({content_size(file['content'])} bytes)")
    print(f"\nThe task log: {shown(log)}")
    print("The run's page went with the service. To click around in Airflow and the service: make ui")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
