"""
What runs say at two API servers at once, and against what the task, or a person.

Does at that moment.

The task's half is what the execution API does for it: its entries are written and read without a
lock. Run by tests/system/test_callbacks.py, on PostgreSQL: SQLite has one lock for all.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import delete as sql_delete

from airflow_launcher.processes import Program, free_port, wait_for
from waiting_tasks import WaitingTask, make_dag
from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.execution.record.callback import new_token

APP = "workflow_automation_provider.plugins.callback_endpoint:app"

pytestmark = pytest.mark.skipif(
    "TEST_DATABASE" not in os.environ, reason="runs in make system-test"
)

Say = Callable[..., int]


@pytest.fixture(scope="module")
def dag(airflow_home: Path) -> Any:
    return make_dag(airflow_home)


@pytest.fixture(scope="module")
def say(dag: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Say]:
    """
    Send what a run says to one of two endpoints, again while the database is locked.

    Return the status.
    """
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        clients = []
        for port in ports:
            command = [sys.executable, "-m", "uvicorn", APP, "--port", str(port), "--no-access-log"]
            program = Program(
                f"endpoint-{port}", command, tmp_path_factory.mktemp("endpoint"), os.environ
            )
            program.start()
            stack.callback(program.stop)
            client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
            clients.append(stack.enter_context(client))

        def call(url: str, status: str = "running", server: int = 0, **fields: object) -> int:
            body = {"status": status, **fields}
            while (found := clients[server].post(url, json=body)).status_code == 503:
                if "deciding" in found.json()["detail"]:
                    break
                time.sleep(0.1)
            return found.status_code

        def answers(server: int) -> bool:
            with suppress(httpx.TransportError):
                return call(f"{CALLBACK_PATH}?token={new_token(uuid4())}", server=server) == 404
            return False

        for server in range(2):
            wait_for("the endpoint", partial(answers, server))
        yield call


@pytest.fixture
def task(dag: Any) -> WaitingTask:
    return WaitingTask(dag, state="running", try_number=1)


def begin_again(task: WaitingTask) -> None:
    """Have a Clear be counted, and let the task send once more."""
    clear(task)
    task.give(waits=False)


def clear(task: WaitingTask) -> None:
    task.max_tries += 1
    task.change(max_tries=task.max_tries)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """
    Make the calls in threads, with a few milliseconds between them, in any order.

    Return what they returned.
    """

    def later(call: Callable[[], Any]) -> Any:
        time.sleep(random.uniform(0, 0.015))
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [*pool.map(later, calls)]


def test_two_runs_of_one_start(task: WaitingTask, say: Say) -> None:
    for _ in range(50):
        begin_again(task)
        calls = (
            partial(say, task.url, "started", server=server, run_id=server) for server in range(2)
        )
        found = at_once(*calls)
        assert sorted(found) == [200, 404]
        assert task.reports.run_ids == {str(found.index(200))}
        assert task.reports.refused == (str(found.index(404)),)


@pytest.mark.parametrize("status", ["started", "success"])
def test_revocation(task: WaitingTask, say: Say, status: str) -> None:
    """The task that reads nothing after it has revoked the token can rely on it."""
    for _ in range(100):
        begin_again(task)
        found, closed = at_once(partial(say, task.url, status), task.close)
        assert found == (200 if closed.has_begun else 503)
        assert task.reports == closed


def test_an_adopted_run_can_be_stopped(task: WaitingTask, say: Say) -> None:
    """
    A task that has adopted a run, and that run, which a Clear stops.

    One knows of the other.
    """
    for _ in range(50):
        begin_again(task)
        assert say(task.url, "started", run_id="7") == 200
        clear(task)
        answer, reports = at_once(
            partial(say, task.url, "running", server=1, run_id="7"), partial(task.adopt, "7")
        )
        assert answer == (404 if reports.stopped else 200)
        assert say(task.url, run_id="7") == answer


def test_clear(dag: Any, say: Say) -> None:
    for _ in range(10):
        task = WaitingTask(dag, state="up_for_retry", try_number=1)
        before = task.url
        status, _ = at_once(partial(say, before, "started"), task.clear)
        assert status in (200, 404)
        assert say(before) == say(before, "started") == 404
        task.give()
        assert say(task.url, "started", server=1) == 200


def test_the_dag_run_is_deleted(dag: Any, say: Say) -> None:
    for _ in range(20):
        task = WaitingTask(dag, state="running")

        def delete(run_id: str = task.run_id) -> None:
            with create_session() as session:
                session.execute(sql_delete(DagRun).where(DagRun.run_id == run_id))

        calls = (
            partial(say, task.url, status, server=n)
            for n, status in enumerate(("started", "success"))
        )
        *found, _ = at_once(*calls, delete)
        assert {*found} <= {200, 404}
        assert [say(task.url, status) for status in ("started", "running", "success")] == [404] * 3
