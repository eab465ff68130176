"""What came of a DAG run: as Airflow has it, and as the service's journal does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService

# What the log of each try says beforehand, for one that cannot say anything afterwards.
ASKING = "If no later line"


def clear_discards() -> bool:
    """Tell whether a Clear discards what the task has stored (Airflow 3.4+)."""
    from airflow.api_fastapi.core_api.datamodels.task_instances import ClearTaskInstancesBody

    return "keep_task_state" in ClearTaskInstancesBody.model_fields


@dataclass(frozen=True)
class Outcome:
    """What came of a DAG run."""

    runs: list[str]
    state: str
    tries: int
    log: str
    result: dict[str, Any] | None


def run_ids(service: LocalService, case: str) -> list[str]:
    """Return the runs that were started for a case, by the service's journal."""
    return [str(run.run_id) for run in service.runs if run.inputs["case"] == case]


def outcome(deployment: Deployment, service: LocalService, dag_id: str, case: str) -> Outcome:
    """Wait for a DAG run's end, and tell what came of it."""
    deployment.api.finished(dag_id, case)
    state = deployment.api.task(dag_id, case, "trigger")["state"]
    return Outcome(
        runs=run_ids(service, case),
        state=state,
        tries=len(deployment.api.tries(dag_id, case, "trigger")),
        log=deployment.log(dag_id, case),
        result=deployment.api.xcom(dag_id, case, "trigger") if state == "success" else None,
    )
