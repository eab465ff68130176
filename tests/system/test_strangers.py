"""The callback endpoint against strangers: whoever knows its path, and tries tokens with large bodies."""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from uuid import UUID, uuid4

import httpx
import psutil
import pytest
from sqlalchemy import create_engine, text

from airflow_launcher.airflow import API_SERVER, Airflow, temporary_home
from airflow_launcher.databases import PostgreSQL
from workflow_automation_provider.execution.callback import MAX_BODY, PATH, digest_of, new_token

OLD = 300_000
PER_DAG_RUN = 100
A_SECOND = 25
AT_ONCE = 50
CALLS = 600
MIB = 1024 * 1024

NESTED = b'{"status": "success", "result": [' + b"[]," * 21_800 + b"[]]}"
ANSWER = {"status": "success", "result": {"rows": 3}}

NO_TOKEN = "d" * 64
START = json.dumps({"at": "2026-01-01T00:00:00+00:00", "max_tries": 3, "token": NO_TOKEN, "waits": True})

# Tasks that ended long ago, each with its start.
FILL = f"""
SET LOCAL session_replication_role = replica;  -- without the checks of foreign keys, which take most of the time

INSERT INTO dag_run (id, dag_id, run_id, run_type, state, run_after, queued_at)
SELECT r, 'old', 'run-' || r, 'manual', 'success', now(), now() FROM generate_series(1, {OLD // PER_DAG_RUN}) r;

INSERT INTO task_instance (id, dag_id, run_id, task_id, map_index, state, try_number, max_tries, pool, pool_slots)
SELECT gen_random_uuid(), 'old', 'run-' || r, 'trigger', i, 'success', 1, 3, 'default_pool', 1
FROM generate_series(1, {OLD // PER_DAG_RUN}) r, generate_series(1, {PER_DAG_RUN}) i;

INSERT INTO task_state_store (dag_run_id, dag_id, run_id, task_id, map_index, key, value, updated_at)
SELECT r, 'old', 'run-' || r, 'trigger', i, 'workflow_automation_start/1/0', '{START}', now()
FROM generate_series(1, {OLD // PER_DAG_RUN}) r, generate_series(1, {PER_DAG_RUN}) i;

ANALYZE;
"""

WAITING = """
UPDATE task_instance SET state = 'awaiting_input', queued_by_job_id = 1
WHERE run_id = 'run-7' AND map_index = 7 RETURNING id
"""

GIVE = """
UPDATE task_state_store SET value = replace(value, :old, :new) WHERE run_id = 'run-7' AND map_index = 7
"""


@pytest.fixture
def airflow() -> Iterator[Airflow]:
    """An API server alone, with PostgreSQL."""
    with temporary_home("strangers") as home:
        dags = home / "dags"
        dags.mkdir()
        with Airflow(home, dags, components=[API_SERVER], database=PostgreSQL(home)) as found:
            yield found


@pytest.fixture
def waiting(airflow: Airflow) -> tuple[UUID, str]:
    """One task that waits among all that have ended: its id and its token."""
    engine = create_engine(airflow.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    with engine.begin() as connection:
        connection.execute(text(FILL))
        ti_id: UUID = connection.execute(text(WAITING)).scalar_one()
        token = new_token(ti_id)
        connection.execute(text(GIVE), {"old": NO_TOKEN, "new": digest_of(token)})
    engine.dispose()
    return ti_id, token


def url_of(token: str) -> str:
    return f"{PATH}?token={token}"


@asynccontextmanager
async def strangers(http: httpx.AsyncClient, ti_id: UUID) -> AsyncIterator[Counter[int | str]]:
    """Have so many of them call a second, and at once; count the statuses."""
    statuses: Counter[int | str] = Counter()
    free = asyncio.Semaphore(AT_ONCE)

    async def call(known: bool) -> None:
        try:
            response = await http.post(url_of(new_token(ti_id if known else uuid4())), content=NESTED)
        except httpx.TransportError as error:
            statuses[type(error).__name__] += 1
        else:
            statuses[response.status_code] += 1
        finally:
            free.release()

    async def call_on() -> None:
        async with asyncio.TaskGroup() as calls:
            number = 0
            while True:
                await free.acquire()
                calls.create_task(call(known=bool(number % 2)))
                number += 1
                await asyncio.sleep(1 / A_SECOND)

    calling = asyncio.ensure_future(call_on())
    try:
        yield statuses
    finally:
        calling.cancel()
        with suppress(asyncio.CancelledError):
            await calling


async def answer(http: httpx.AsyncClient, token: str) -> int:
    """Answer as a flow does: again, if it is to come again."""
    while (status := (await http.post(url_of(token), json=ANSWER)).status_code) == 503:
        await asyncio.sleep(1)
    return status


def memory(processes: list[psutil.Process]) -> float:
    return float(sum(process.memory_info().rss for process in processes) / MIB)


def test_strangers(airflow: Airflow, waiting: tuple[UUID, str], note: Callable[[str], None]) -> None:
    """The API server serves others meanwhile, uses little memory, takes a flow's answer, and ends when asked to."""
    assert MAX_BODY - 200 < len(NESTED) <= MAX_BODY
    assert len(json.loads(NESTED)["result"]) > 20_000
    ti_id, token = waiting
    server = airflow.programs[API_SERVER.name].family()

    async def main() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=airflow.url, timeout=60, trust_env=False, limits=limits
        ) as http:
            assert (await http.post(url_of(new_token(uuid4())), json=ANSWER)).status_code == 404
            before, overtaken, peak = memory(server), [], 0.0
            async with strangers(http, ti_id) as statuses:
                while statuses.total() < CALLS:
                    begun = statuses.total()
                    (await http.get("/api/v2/version")).raise_for_status()
                    overtaken.append(statuses.total() - begun)
                    peak = max(peak, memory(server))
                    await asyncio.sleep(0.25)
                answered, again = await answer(http, token), await answer(http, token)
                median, grown = statistics.median(overtaken), peak - before
                note(
                    f"strangers: of {CALLS}, {median:.0f} come before a GET /version, at most {max(overtaken)}; "
                    f"{grown:+.0f} MiB; {statuses}"
                )
                asked = time.monotonic()
                server[0].send_signal(signal.SIGTERM)
                _, alive = await asyncio.to_thread(psutil.wait_procs, server, 300)
                ended = time.monotonic() - asked
        note(f"strangers: the API server ended {ended:.1f} s after SIGTERM; {statuses}")
        assert alive == []
        # It waits for those that were there before, and for no others.
        assert median <= AT_ONCE
        assert grown < 150
        assert (answered, again) == (200, 200)
        assert statuses[404] > CALLS / 2
        assert {status for status in statuses if isinstance(status, int)} <= {404, 503}

    asyncio.run(main())
