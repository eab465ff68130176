"""A DAG that the asset of a run starts, by a real scheduler: it reads the run of the try that was killed."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from airflow_launcher.waiting import wait_for
from gate import Hold
from outcomes import outcome

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService


def test_the_next_dag_reads_the_run_of_an_earlier_try(deployment: Deployment, service: LocalService) -> None:
    case = "asset"
    hold = deployment.gate.hold(
        Hold(case, "after", "PUT", "/workflow_automation_start", '"started"', lost=True)
    )
    deployment.api.trigger("asset_start", case)
    wait_for("the held request", hold.reached.is_set)
    (first,) = deployment.gate.tries_of(case)
    os.kill(first.pid, signal.SIGKILL)
    hold.released.set()

    started = outcome(deployment, service, "asset_start", case)
    assert (started.state, started.tries, len(started.runs)) == ("success", 2, 1)
    (continued,) = wait_for(
        "the DAG run that the asset starts", lambda: deployment.api.dag_runs("asset_continue")
    )
    run_id = continued["dag_run_id"]
    assert deployment.api.finished("asset_continue", run_id) == "success"
    assert deployment.api.xcom("asset_continue", run_id, "read") == [started.result]
