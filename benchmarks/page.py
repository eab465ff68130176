"""
Measure what the page **Flow runs** costs, beside Airflow's own list of task instances.

``make bench-page``.

An API server with PostgreSQL has 300,000 task instances that ended, each with two entries, 500 that
wait, and 10 batches with 2,000 entries each. The page is asked for as a browser does that leaves it
open, and so is Airflow's endpoint that the UI lists task instances with, for its largest page, 100
rows, in turn; the page of the runs counts and sorts all 510, and shows 200.
"""

from __future__ import annotations

import json
import statistics
import time

import httpx
from sqlalchemy import create_engine, text

from airflow_launcher.airflow import API_SERVER, PASSWORD, USER, Airflow, temporary_home
from airflow_launcher.databases import PostgreSQL
from batch_counts import batch_counts
from common import cpu_seconds, pick, report

OLD, PER_DAG_RUN, WAITING, ROUNDS = pick(300_000, 3_000), 100, 500, pick(30, 3)
BATCHES, ENTRIES = 10, 2_000
LIST = "/workflow-automation/runs/"
THEIRS = (
    "/api/v2/dags/~/dagRuns/~/taskInstances?state=awaiting_input&limit=100&order_by=-start_date"
)

# A waiting task has three entries; a third of the flows have said something. One in a hundred old
# tasks failed last week.
FILL = f"""
SET LOCAL session_replication_role = replica;  -- without the checks of foreign keys, which take most of the time

INSERT INTO dag_bundle (name, active) VALUES ('bench', true);
INSERT INTO dag (dag_id, is_paused, is_stale, bundle_name, max_active_tasks, max_consecutive_failed_dag_runs,
    has_task_concurrency_limits, fail_fast, exceeds_max_non_backfill, timetable_type,
    partition_mapper_info)
SELECT 'flows-' || i, false, false, 'bench', 16, 0, false, false, false, '', '[]'
FROM generate_series(0, 19) i;

INSERT INTO dag_run (id, dag_id, run_id, run_type, state, run_after, queued_at, clear_number)
SELECT r, 'flows-' || r % 20, 'run-' || r, 'manual', 'success', now(), now(), 0
FROM generate_series(1, {OLD // PER_DAG_RUN}) r;

INSERT INTO task_instance (id, dag_id, run_id, task_id, map_index, state, try_number, max_tries, pool, pool_slots,
    queue, priority_weight, hostname, unixname, start_date, end_date, updated_at, operator, custom_operator_name)
SELECT gen_random_uuid(), 'flows-' || r % 20, 'run-' || r, 'trigger', i,
    CASE WHEN r <= {WAITING // PER_DAG_RUN} THEN 'awaiting_input' WHEN i = 0 THEN 'failed' ELSE 'success' END,
    1, 3, 'default_pool', 1, 'default', 1, '', '', now() - i * interval '1 second',
    now() - r * interval '1 hour', now(), 'TriggerFlowOperator', ''
FROM generate_series(1, {OLD // PER_DAG_RUN}) r, generate_series(0, {PER_DAG_RUN - 1}) i;

INSERT INTO task_state_store (dag_run_id, dag_id, run_id, task_id, map_index, key, value, updated_at)
SELECT r, 'flows-' || r % 20, 'run-' || r, 'trigger', i, 'workflow_automation_start/1/0', :start, now()
FROM generate_series(1, {OLD // PER_DAG_RUN}) r, generate_series(0, {PER_DAG_RUN - 1}) i;

INSERT INTO task_state_store (dag_run_id, dag_id, run_id, task_id, map_index, key, value, updated_at)
SELECT r, 'flows-' || r % 20, 'run-' || r, 'trigger', i, e2.key, e.value, now()
FROM generate_series(1, {OLD // PER_DAG_RUN}) r, generate_series(0, {PER_DAG_RUN - 1}) i, (VALUES
    ('outcome/1/0', :outcome), ('report/d', :run), ('message/d', :word)) e (name, value),
    concat('workflow_automation_', e.name) e2 (key)
WHERE e.name = 'outcome/1/0' OR r <= {WAITING // PER_DAG_RUN} AND (e.name = 'report/d' OR i % 3 = 0);

-- Batches of many entries.
UPDATE task_instance SET state = 'running', task_id = 'batch'
WHERE run_id = 'run-{OLD // PER_DAG_RUN}' AND map_index < {BATCHES};
INSERT INTO task_state_store (dag_run_id, dag_id, run_id, task_id, map_index, key, value, updated_at)
SELECT {OLD // PER_DAG_RUN}, dag_id, run_id, task_id, map_index, 'workflow_automation_batch_' || lpad(n::text, 6, '0'), :batch, now()
FROM task_instance, generate_series(0, {ENTRIES - 1}) n WHERE task_id = 'batch';

ANALYZE;
"""


def fill(url: str) -> None:
    """Write what the page is to find, and what not."""
    at, century = "2026-01-01T00:00:00+00:00", 100 * 365 * 24 * 60 * 60
    run = {"run_id": "1001", "run_link": "https://app.example.com/runs/1001", "flow_id": "nightly"}
    target = {"conn_id": "workflow_automation_default", "flow_id": "nightly"}
    values = {
        "start": {
            "at": at,
            "max_tries": 3,
            "token_hash": "d",
            "completion_timeout": century,
            "callback_url": "https://airflow.example.com/workflow-automation/callback",
            **target,
        },
        "outcome": {"status": "started", "at": at, "run": run},
        "run": {"claim": {"at": at, "run_id": "1001"}},
        "word": {"message": "Reading orders", "progress": 0.5, "at": at},
        "batch": {
            "max_tries": 3,
            "at": at,
            "counts": batch_counts(400, started=280),
            "opened": {str(n): "0123456789ab" for n in range(64)},
        },
    }
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(FILL), {name: json.dumps(value) for name, value in values.items()})
    engine.dispose()


def measure(airflow: Airflow) -> None:
    """Ask for both in turn, and print what they took."""
    with httpx.Client(base_url=airflow.url, timeout=60, trust_env=False) as http:
        token = http.post("/auth/token", json={"username": USER, "password": PASSWORD}).json()[
            "access_token"
        ]
        http.cookies.set("_token", token)
        server = airflow.programs[API_SERVER.name].family()
        took: dict[str, list[float]] = {LIST: [], THEIRS: []}
        cpu = dict.fromkeys(took, 0.0)
        for number in range(ROUNDS + 3):
            for path in took:
                before, began = cpu_seconds(server), time.perf_counter()
                response = http.get(path)
                seconds = time.perf_counter() - began
                response.raise_for_status()
                if number >= 3:  # the first ones import, and fill caches
                    took[path].append(seconds)
                    cpu[path] += cpu_seconds(server) - before
        page = http.get(LIST).text
    assert page.count("<tr") == 201
    assert f"all {WAITING + BATCHES}" in page
    print(
        f"{2 * OLD:,} old entries, {WAITING} waiting tasks, {BATCHES} batches of {ENTRIES:,} entries\n"
    )
    rows = []
    for path, name in ((LIST, "Flow runs"), (THEIRS, "Airflow's task instances, a page of 100")):
        quantiles = statistics.quantiles(took[path], n=20)
        values = (quantiles[9], quantiles[18], cpu[path] / ROUNDS)
        rows.append([name, *(f"{value * 1000:.0f} ms" for value in values)])
    report(["", "median", "95 %", "CPU of the API server"], rows)


def main() -> None:
    """Run the benchmark."""
    with temporary_home("bench-page") as home:
        (home / "dags").mkdir()
        database = PostgreSQL(home)
        with Airflow(home, home / "dags", components=[API_SERVER], database=database) as airflow:
            fill(database.url)
            measure(airflow)


if __name__ == "__main__":
    main()
