"""What a person does to a task: clear it, run its DAG again. A wish for another run starts one, nothing else does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_launcher.waiting import wait_for
from outcomes import UNKNOWN, clear_discards, outcome, run_ids

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService


def test_clear_of_a_succeeded_task_starts_another_run(deployment: Deployment, service: LocalService) -> None:
    deployment.api.trigger("patient", "clear-succeeded")
    first = outcome(deployment, service, "patient", "clear-succeeded")
    deployment.api.clear("patient", "clear-succeeded", "trigger")
    second = outcome(deployment, service, "patient", "clear-succeeded")

    assert len(first.runs) == 1
    assert (second.state, len(second.runs)) == ("success", 2)
    if not clear_discards():
        assert "Try 1 (" in second.log
        assert f"started run {first.runs[0]}" in second.log
    assert second.result is not None
    assert second.result["run_id"] == second.runs[1]


def test_clear_of_a_failed_task_starts_another_run(deployment: Deployment, service: LocalService) -> None:
    service.faults.add("drop_after", inputs={"case": "clear-failed"})
    deployment.api.trigger("patient", "clear-failed")
    first = outcome(deployment, service, "patient", "clear-failed")
    deployment.api.clear("patient", "clear-failed", "trigger")
    second = outcome(deployment, service, "patient", "clear-failed")

    assert (first.state, len(first.runs)) == ("failed", 1)
    assert UNKNOWN in first.log
    assert (second.state, len(second.runs)) == ("success", 2)


def test_clear_of_a_task_that_failed_without_its_run_id(
    deployment: Deployment, service: LocalService
) -> None:
    service.faults.add("garbage", inputs={"case": "clear-unidentified"})
    deployment.api.trigger("patient", "clear-unidentified")
    first = outcome(deployment, service, "patient", "clear-unidentified")
    deployment.api.clear("patient", "clear-unidentified", "trigger")
    second = outcome(deployment, service, "patient", "clear-unidentified")

    assert (first.state, len(first.runs)) == ("failed", 1)
    assert (second.state, len(second.runs)) == ("success", 2)


def test_clear_of_a_running_task_starts_another_run(
    deployment: Deployment, service: LocalService, tmp_path: Path
) -> None:
    deployment.api.trigger("waits_after", "clear-running", {"folder": str(tmp_path)})
    wait_for("the task", (tmp_path / "here").exists)
    deployment.api.clear("waits_after", "clear-running", "trigger")
    found = outcome(deployment, service, "waits_after", "clear-running")

    assert (found.state, len(found.runs)) == ("success", 2)
    assert found.result is not None
    assert found.result["run_id"] == found.runs[1]


def test_clear_while_the_service_works_starts_another_run(
    deployment: Deployment, service: LocalService
) -> None:
    fault = service.faults.add("delay", seconds=8, inputs={"case": "clear-starting"})
    deployment.api.trigger("patient", "clear-starting")
    wait_for("the request", lambda: fault.struck)
    deployment.api.clear("patient", "clear-starting", "trigger")
    found = outcome(deployment, service, "patient", "clear-starting")
    assert found.state == "success"
    if clear_discards():
        # The task that ends may yet store its run, after the Clear: then the next try keeps it.
        assert found.result is not None
        assert found.result["run_id"] == run_ids(service, "clear-starting")[-1]
    else:
        wait_for("both runs", lambda: len(run_ids(service, "clear-starting")) == 2)
        # The task was killed before it knew of its run: this is the one place that tells of it.
        assert f"{UNKNOWN}. The task has been cleared since" in deployment.log("patient", "clear-starting")


def test_clear_of_the_whole_dag_run_starts_another_run(deployment: Deployment, service: LocalService) -> None:
    """But on Airflow 3.4, which keeps what the tasks have stored then."""
    deployment.api.trigger("patient", "clear-dag-run")
    outcome(deployment, service, "patient", "clear-dag-run")
    deployment.api.ask("POST", "/dags/patient/dagRuns/clear-dag-run/clear", {"dry_run": False})
    found = outcome(deployment, service, "patient", "clear-dag-run")

    assert (found.state, len(found.runs)) == ("success", 1 if clear_discards() else 2)
    if clear_discards():
        assert "clear it again, alone and without keeping its task state" in found.log
        deployment.api.clear("patient", "clear-dag-run", "trigger")
        assert len(outcome(deployment, service, "patient", "clear-dag-run").runs) == 2


def test_deleted_dag_run_run_again_starts_another_run(deployment: Deployment, service: LocalService) -> None:
    deployment.api.trigger("patient", "deleted")
    first = outcome(deployment, service, "patient", "deleted")
    deployment.api.ask("DELETE", "/dags/patient/dagRuns/deleted")
    deployment.api.trigger("patient", "deleted")
    second = outcome(deployment, service, "patient", "deleted")

    assert len(first.runs) == 1
    assert (second.state, second.tries, len(second.runs)) == ("success", 1, 2)


def test_dag_test_starts_a_run_each_time(deployment: Deployment, service: LocalService) -> None:
    script = """
        import json, sys
        from datetime import datetime, timezone
        from airflow.dag_processing.dagbag import DagBag
        dag = DagBag(sys.argv[1]).dags["paused"]
        date = datetime(2026, 2, 1, tzinfo=timezone.utc)
        dag_runs = [dag.test(logical_date=date) for _ in range(2)]
        print("\\n" + json.dumps([[dag_run.state, dag_run.run_id] for dag_run in dag_runs]))
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in script.splitlines()), str(deployment.dags)],
        env={**os.environ, **deployment.env},
        cwd=deployment.home,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (first, run_id), (second, other_run_id) = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith('[["'))
    )

    assert [first, second] == ["success", "success"]
    assert [len(run_ids(service, found)) for found in (run_id, other_run_id)] == [1, 1]
