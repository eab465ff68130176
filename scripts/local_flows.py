"""What the flows of the examples do as their last step, besides calling back."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_launcher.api import AirflowApi

if TYPE_CHECKING:
    from local_s3 import LocalS3
    from workflow_automation_provider.testing import LocalService
    from workflow_automation_provider.testing.journal import Run

USER = "flow"
"""Airflow's user of the flows, who may do as little as possible."""
ROLE = "user"

_REPORT = b'{"rows": 1250, "file": "orders.csv"}'


class LocalFlows:
    """
    Play the flows whose runs a service has started.

    :param service: the service; it also has its callbacks scripted for runs with an object to write
    :param s3: where they write objects
    :param airflow: Airflow's address, for those that start a DAG
    :param delay: seconds from the start of a run to its last step
    """

    def __init__(self, service: LocalService, s3: LocalS3, airflow: str, delay: float) -> None:
        self._service = service
        self._s3 = s3
        self._airflow = airflow
        self._delay = delay
        self._played = len(service.runs)
        service.callbacks.add(result=self._write_object, inputs={"bucket": s3.bucket}, delay=delay)

    def play(self) -> None:
        """Do the last step of the runs that are old enough."""
        due = datetime.now(UTC) - timedelta(seconds=self._delay)
        for run in self._service.runs[self._played :]:
            if datetime.fromisoformat(run.at) > due:
                break
            self._played += 1
            if "result_file" in run.inputs:
                self._write_file(run.inputs["result_file"])
            elif "dag_run_id" in run.inputs:
                self._start_dag(run.inputs["dag_run_id"])

    def _write_object(self, run: Run) -> None:
        self._s3.put(run.inputs["key"], b"customer,total\nAda,19.99\nGrace,240.00\n")

    def _write_file(self, url: str) -> None:
        scheme, _, path = url.partition("://")
        if scheme == "s3":
            self._s3.put(path.partition("/")[2], _REPORT)
        else:
            # Whoever waits for the file must not see half of it.
            half = Path(f"{path}.part")
            half.write_bytes(_REPORT)
            half.rename(path)

    def _start_dag(self, dag_run_id: str) -> None:
        body = {
            "dag_run_id": dag_run_id,
            "logical_date": None,
            "conf": {"rows": 1250, "file": "orders.csv"},
        }
        with contextlib.closing(AirflowApi(self._airflow)) as api:
            api.log_in(USER, USER)
            try:
                api.ask("POST", "/dags/workflow_automation_next_dag/dagRuns", body)
            except RuntimeError as error:
                print(f"A flow could not start its DAG: {error}")
