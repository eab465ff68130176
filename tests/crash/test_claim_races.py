"""
Claims at two API servers against each other, against the task's revocation, and against a Clear.

The task's half is what the execution API does for it: its entries are written, deleted and read without a lock. On
SQLite, which has one lock for all; tests/system/test_callbacks.py has it on PostgreSQL.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from airflow_launcher.ports import free_port
from airflow_launcher.processes import Program
from airflow_launcher.waiting import wait_for
from waiting_tasks import WaitingTask, make_dag
from workflow_automation_provider.execution.callback import PATH, new_token

APP = "workflow_automation_provider.plugins.callback_endpoint:app"

Say = Callable[..., int]


@pytest.fixture(scope="module")
def dag(airflow_home: Path) -> Any:
    return make_dag(airflow_home)


def _answers(http: httpx.Client) -> bool:
    """Return whether an endpoint has imported Airflow."""
    try:
        return http.post(f"{PATH}?token={new_token(uuid4())}").status_code == 404
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def say(dag: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Say]:
    """Send what a run says to one of two endpoints; return the status."""
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        for port in ports:
            command = [sys.executable, "-m", "uvicorn", APP, "--port", str(port), "--no-access-log"]
            program = Program(f"endpoint-{port}", command, tmp_path_factory.mktemp("endpoint"), os.environ)
            program.start()
            stack.callback(program.stop)
        clients = []
        for port in ports:
            client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
            clients.append(stack.enter_context(client))
            wait_for("the endpoint", partial(_answers, client))

        def call(url: str, status: str = "running", server: int = 0, **fields: object) -> int:
            body = {"status": status, **fields}
            while (found := clients[server].post(url, json=body).status_code) == 503:
                time.sleep(0.1)  # it is to ask again
            return found

        yield call


@pytest.fixture
def task(dag: Any) -> WaitingTask:
    return WaitingTask(dag, state="running", try_number=1)


def begin_again(task: WaitingTask) -> None:
    """Let the task instance be as it was, but for its max_tries."""
    task.max_tries += 1
    task.change(max_tries=task.max_tries, state="running")
    task.renew()


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Make the calls in threads, with a few milliseconds between them, in any order; return what they returned."""

    def later(call: Callable[[], Any], wait: float) -> Any:
        time.sleep(wait)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        futures: list[Future[Any]] = [pool.submit(later, call, random.uniform(0, 0.015)) for call in calls]
    return [future.result() for future in futures]


def test_two_tokens(task: WaitingTask, say: Say, note: Callable[[str], None]) -> None:
    winners: Counter[int] = Counter()
    for _ in range(50):
        begin_again(task)
        first = task.url
        task.renew()
        second = task.url
        found = at_once(partial(say, first, "started"), partial(say, second, "started", server=1))
        assert sorted(found) == [200, 409]
        assert [say(first), say(second)] == found
        winners[found.index(200)] += 1
    note(f"claims: of 50 pairs, the first won {winners[0]}, the second {winners[1]}")


def test_revocation(task: WaitingTask, say: Say, note: Callable[[str], None]) -> None:
    """The task that reads no claim after it has deleted its token's entry can rely on it."""
    claimed = 0
    for _ in range(120):
        begin_again(task)

        def revoke() -> bool:
            task.close()
            return task.claim is not None

        status, found = at_once(partial(say, task.url, "started"), revoke)
        assert (status == 200) == found
        assert status in (200, 404)
        claimed += found
        assert (task.claim is not None) == found
    note(f"claims: of 120 against a revocation, {claimed} came first")


def test_stop(task: WaitingTask, say: Say) -> None:
    """A cleared task that returns its run, and a run that is told to stop: one of them knows of the other."""
    for _ in range(40):
        begin_again(task)
        assert say(task.url, "started") == 200
        claimed = task.max_tries
        task.max_tries += 1
        task.change(max_tries=task.max_tries)

        def adopt() -> bool:
            task.reopen()
            task.max_tries -= 1
            try:
                return "stopped" not in task.claim
            finally:
                task.max_tries += 1

        told, is_adopted = at_once(partial(say, task.url, "running", server=1), adopt)
        assert (told, is_adopted) in [(200, True), (404, False)]
        assert say(task.url) == (200 if is_adopted else 404)
        assert task.max_tries == claimed + 1


def test_clear(dag: Any, say: Say) -> None:
    for _ in range(10):
        task = WaitingTask(dag, state="up_for_retry", try_number=1)
        before = task.url
        status, _ = at_once(partial(say, before, "started"), task.clear)
        assert status in (200, 404)
        assert say(before) == say(before, "running") == 404
        assert task.claim is None
        task.renew()
        assert say(task.url, "started", server=1) == 200
