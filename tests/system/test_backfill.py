"""
A backfill is a person's wish for a run for each of its dates.

It wants PostgreSQL: Airflow makes none on SQLite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_launcher.processes import wait_for

if TYPE_CHECKING:
    from services import Service
    from stack import Stack


def test_backfill_starts_a_run_for_each_date_and_again_when_reprocessed(
    stack: Stack, service: Service
) -> None:
    def backfill(behaviour: str) -> list[str]:
        asked = {
            "dag_id": "system_daily",
            "from_date": "2026-01-01T00:00:00Z",
            "to_date": "2026-01-03T00:00:00Z",
            "reprocess_behavior": behaviour,
        }
        made = stack.api.ask("POST", "/backfills", asked)

        def dag_runs() -> list[str]:
            found = [
                run for run in stack.api.dag_runs("system_daily") if run["run_type"] == "backfill"
            ]
            done = [run["dag_run_id"] for run in found if run["state"] == "success"]
            return sorted(done) if len(done) == 3 else []

        dates = wait_for("the backfill", dag_runs)
        # Airflow itself finds it to be complete within half a minute, and perhaps has already.
        try:
            stack.api.ask("PUT", f"/backfills/{made['id']}/cancel")
        except RuntimeError as error:
            if "already completed" not in str(error):
                raise
        return dates

    stack.api.unpause("system_daily")
    dates = backfill("none")
    assert [len(service.runs_of(date)) for date in dates] == [1, 1, 1]
    assert backfill("completed") == dates
    assert [len(service.runs_of(date)) for date in dates] == [2, 2, 2]
