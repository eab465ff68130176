"""Run example DAGs in Airflow against a local service, and show what came of them."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_launcher.airflow import VERSION, Airflow
from airflow_launcher.connections import connection_to
from airflow_launcher.ports import free_port, is_free
from airflow_launcher.processes import Program
from airflow_launcher.waiting import wait_for
from local_airflow import (
    CONN_ID,
    DAGS,
    HOMES,
    SETTINGS,
    begin,
    lose_responses,
    prepare,
    script_callbacks,
    shown,
)
from workflow_automation_provider.testing import LocalService

if TYPE_CHECKING:
    from workflow_automation_provider.testing import Run

TRIGGER_UPLOAD = "workflow_automation_trigger_upload"
CLAIM = "workflow_automation_claim"
WAIT = "workflow_automation_wait"
RUN_TIMEOUT = 180


@contextmanager
def callback_endpoint(airflow: Airflow, port: int) -> Iterator[None]:
    """Serve the callback endpoint of an Airflow that runs without its API server."""
    app = "workflow_automation_provider.plugins.callback_endpoint:app"
    # Without the access log, which shows tokens: Airflow's own API server redacts them.
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--no-access-log"]
    program = Program("callback-endpoint", command, airflow.home, airflow.env)
    program.start()
    try:
        wait_for(f"the callback endpoint; its log: {program.output}", lambda: not is_free(port))
        yield
    finally:
        program.stop()


def run_dag(airflow: Airflow, dag_id: str) -> tuple[Program, bool]:
    """Run a DAG once, and tell whether it succeeded."""
    print(f"Running {dag_id} in Airflow {VERSION} (about 10 s) …")
    began = time.monotonic()
    program = airflow.program(dag_id, "dags", "test", dag_id)
    succeeded = program.run(RUN_TIMEOUT)
    print(f"{'Succeeded' if succeeded else 'FAILED'} after {time.monotonic() - began:.0f} s.")
    return program, succeeded


def content_size(content: Any) -> int:
    """Return how many bytes came as base64; the journal only describes what is long."""
    if isinstance(content, str):
        return len(base64.b64decode(content))
    size: int = content["long_string"]["decoded"]["length"]
    return size


def show(service: LocalService, run: Run) -> None:
    """Print what the service received for a run, and what the run called back."""
    print(f"  run {run.run_id} of flow {run.flow_id}")
    print(f"    inputs    {json.dumps(run.inputs, ensure_ascii=False)}")
    for upload in service.uploads:
        if upload.run_id == str(run.run_id):
            for file in upload.files or ():
                print(f"    file      {file['name']} ({content_size(file['content'])} bytes)")
    for callback in service.journal.callbacks():
        if callback.run_id == run.run_id:
            print(f"    callback  {json.dumps(callback.body, ensure_ascii=False)} → {callback.status}")


def printed_by_announce(program: Program) -> str:
    """Return the line that the task announce printed."""
    found = re.search(r"\d+ rows are in \S+", program.output.read_text(errors="replace"))
    return found[0] if found else "nothing"


def main() -> int:
    """Run the demo; return the exit code."""
    begin()
    with LocalService() as service:
        script_callbacks(service, delay=2)
        lose_responses(service)
        port = free_port()
        connection = connection_to(service.base_url)
        connection["extra"]["callback_base_url"] = f"http://127.0.0.1:{port}"
        airflow = Airflow(HOMES / "demo", DAGS, connections={CONN_ID: connection}, settings=SETTINGS)
        prepare(airflow)
        programs = []
        with callback_endpoint(airflow, port):
            for dag_id in (TRIGGER_UPLOAD, CLAIM, WAIT):
                program, succeeded = run_dag(airflow, dag_id)
                if not succeeded:
                    print(
                        f"The end of its log:\n\n{program.tail()}\n\nThe whole log: {shown(program.output)}"
                    )
                    return 1
                programs.append(program)
        print("\nWhat the service received (it has ended: its links lead nowhere):")
        for run in service.runs:
            show(service, run)
        print(f"\nWhat the task after the wait printed: {printed_by_announce(programs[-1])}")
    print(f"\nThe task logs: {', '.join(shown(program.output) for program in programs)}")
    print("To click around in Airflow and the service: make ui")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, TimeoutError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
