"""Run example DAGs in Airflow against a local service, and show what came of them."""

from __future__ import annotations

import json
import re
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_launcher.airflow import VERSION, Airflow, connection_to
from airflow_launcher.processes import Program, free_port, is_free, wait_for
from local_airflow import CONN_ID, DAGS, HOMES, SETTINGS, begin, prepare, script_flows, shown
from workflow_automation_provider.testing import LocalService

if TYPE_CHECKING:
    from workflow_automation_provider.testing import Run

EXAMPLES = ("workflow_automation_trigger_upload", "workflow_automation_claim", "workflow_automation_wait")


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
    succeeded = program.run(180)
    print(f"{'Succeeded' if succeeded else 'FAILED'} after {time.monotonic() - began:.0f} s.")
    return program, succeeded


def show(service: LocalService, run: Run) -> None:
    """Print what the service received for a run, and what the run called back."""
    print(f"  run {run.run_id} of flow {run.flow_id}")
    print(f"    inputs    {json.dumps(run.inputs, ensure_ascii=False)}")
    for upload in service.uploads:
        if upload.run_id == str(run.run_id):
            for file in upload.files or ():
                content = file["content"]
                # The journal only describes what is long.
                size = (
                    len(b64decode(content))
                    if isinstance(content, str)
                    else content["long_string"]["decoded"]["length"]
                )
                print(f"    file      {file['name']} ({size} bytes)")
    for callback in service.journal.callbacks():
        if callback.run_id == run.run_id:
            print(f"    callback  {json.dumps(callback.body, ensure_ascii=False)} → {callback.status}")


def main() -> int:
    """Run the demo; return the exit code."""
    begin()
    with LocalService() as service:
        script_flows(service, delay=2)
        port = free_port()
        connection = connection_to(service.base_url)
        connection["extra"]["callback_base_url"] = f"http://127.0.0.1:{port}"
        airflow = Airflow(HOMES / "demo", DAGS, connections={CONN_ID: connection}, settings=SETTINGS)
        prepare(airflow)
        programs = []
        with callback_endpoint(airflow, port):
            for dag_id in EXAMPLES:
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
        (line,) = re.findall(r"\d+ rows are in \S+", programs[-1].output.read_text(errors="replace"))[:1]
        print(f"\nWhat the task after the wait printed: {line}")
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
