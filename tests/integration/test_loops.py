"""Task loops of Airflow 3.4: each iteration has a record of its own."""

from __future__ import annotations

import json

import airflow.sdk
import pytest

from entry_keys import OUTCOME

pytestmark = pytest.mark.skipif(
    not hasattr(airflow.sdk, "LoopDecision"), reason="Airflow has task loops from 3.4 on"
)


def runs_on_record(dag_run):
    """Return the run that each iteration has recorded, by its place in the loop."""
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(TaskStateStoreModel).filter_by(run_id=dag_run.run_id).all()
        return sorted(
            (row.region_index, json.loads(row.value)["run"]["run_id"])
            for row in rows
            if row.key.startswith(OUTCOME)
        )


def test_each_iteration_starts_a_run(run_dag, service):
    result = run_dag("""
        @task_group
        def again():
            TriggerFlowOperator(task_id="trigger", inputs={"n": "{{ loop.index }}"}, retries=1)

        with DAG("loop", schedule=None):
            again.loop(max_iterations=3)
    """)
    assert [run.inputs["n"] for run in service.runs] == ["0", "1", "2"]
    assert runs_on_record(result.dag_run) == [
        (place, run.run_id) for place, run in enumerate(service.runs)
    ]
