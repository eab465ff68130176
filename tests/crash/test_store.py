"""A 404 in place of an entry of the task state store, as of an API server without the route: no second run."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from airflow_launcher.waiting import wait_for
from gate import Hold
from outcomes import outcome

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService


@pytest.mark.parametrize("dag_id", ["patient", "taskflow"])
def test_a_404_for_the_record(deployment: Deployment, service: LocalService, dag_id: str) -> None:
    case, record = f"store-404-{dag_id}", "/workflow_automation_start"
    recorded = deployment.gate.hold(Hold(case, "after", "PUT", record, '"started"'))
    deployment.api.trigger(dag_id, case)
    wait_for("the record", recorded.reached.is_set)
    lost = deployment.gate.hold(Hold(case, "before", "GET", record, status=404))
    lost.released.set()
    (first,) = deployment.gate.tries_of(case)
    os.kill(first.pid, signal.SIGKILL)
    recorded.released.set()

    found = outcome(deployment, service, dag_id, case)
    assert lost.reached.is_set()
    assert (found.state, found.tries, len(found.runs)) == ("success", 2, 1), found.log
    assert found.result
    assert found.result["run_id"] == found.runs[0]
