"""TriggerFlowOperator that is parked until the end of its run: the checks, and what is there meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    BusyError,
    InvalidRequestError,
    RunFailedError,
    RunTimeoutError,
)
from workflow_automation_provider.execution.callback import PATH, claim_key
from workflow_automation_provider.execution.errors import SUPPLIED_RUN_KEY
from workflow_automation_provider.execution.wait_state import WaitRecord

from ..starts import TIMEOUT, mentions, requests
from .conftest import ISSUED, WAIT

EDITED = {"wait_for_completion": False}


class TestPark:
    def test_it_parks_and_asks_nobody(self, service, task, supervisor, log):
        assert task.park() == timedelta(seconds=15)
        ti = task.now["ti"]
        assert task.then == {"run": task.run(), "checks": 1, "timeout": 86400.0, "ti_id": str(ti.id)}
        assert {type(message).__name__ for message in supervisor.sent} <= {"MaskSecret"}
        assert mentions(log(), "run 1001", "until 20")

    def test_its_xcoms_are_there_before_it_parks(self, service, task):
        """A task that a person then marks as success leaves its run to the next one."""
        task.park()
        link = f"{service.url}/runs/1001"
        expected = {**task.run(), "return_value": task.run(), "_link_FlowRunLink": link}
        assert task.now["ti"].pushed == expected
        task.now["ti"].pushed.clear()
        task.park(TIMEOUT)
        assert set(task.now["ti"].pushed) == {"_link_FlowRunLink"}, "a park keeps them"
        task.retry()
        task.park()
        assert task.now["ti"].pushed == expected, "Airflow deletes them at the start of a try"

    @pytest.mark.parametrize(
        ("settings", "keys"),
        [({"do_xcom_push": False}, set()), ({"multiple_outputs": False}, {"return_value"})],
    )
    def test_only_the_xcoms_that_the_task_wants(self, task, settings, keys):
        vars(task.now["task"]).update(settings)
        task.park()
        assert set(task.now["ti"].pushed) == {"_link_FlowRunLink", *keys}

    def test_xcoms_that_cannot_be_pushed_do_not_end_the_wait(self, task, log):
        task.begin(push_error=RuntimeError("No database"))
        task.park()
        assert mentions(log(), "not be pushed")

    def test_the_xcoms_are_those_of_the_run_that_claimed(self, task):
        """A proxy sent the request twice; the other run claims once the task is parked."""
        task.park()
        digest = task.entries[WAIT]["digest"]
        task.entries[claim_key(3)] = {"digest": digest, "run_id": "77", "at": "2026-01-01T00:00:00+00:00"}
        task.park(TIMEOUT)
        assert task.now["ti"].pushed["return_value"]["run_id"] == "77"

    def test_it_parks_for_at_least_the_time_in_which_the_scheduler_notices(self, service, task):
        assert task.park(completion_timeout=timedelta(seconds=3)) == timedelta(seconds=5)

    def test_the_checks_become_rarer(self, service, task):
        found = [task.park(), *(task.park(TIMEOUT) for _ in range(11))]
        minutes = [1 / 4, 1, 4, 16, 64, 256, *[360] * 6]
        assert found == [timedelta(minutes=number) for number in minutes]
        assert requests(service) == 1

    def test_no_longer_than_the_time_that_is_left(self, task):
        options = {"completion_timeout": timedelta(seconds=90)}
        task.park(**options)
        task.later(seconds=60)
        assert timedelta(seconds=25) < task.park(TIMEOUT, **options) <= timedelta(seconds=30)

    def test_once_the_time_is_up_a_flow_is_told_that_nobody_waits(self, task, endpoint, issued):
        task.park()
        task.later(days=1)
        assert "(1 day, 0:00:00)" in task.fail(RunTimeoutError, TIMEOUT).message
        assert endpoint.answer(f"/team{PATH}?token={ISSUED[0]}", b'{"status": "success"}') == 404

    @pytest.mark.parametrize("supervised", [False, True])
    def test_an_answer_in_the_last_moment_counts(self, task, supervised, request, monkeypatch):
        """It comes after the task has found none, and the flow is told 200: the task must not miss it."""
        if supervised:
            request.getfixturevalue("supervisor")
        close = WaitRecord.close

        def answer_and_close(record, digest):
            task.answer(result=1)
            return close(record, digest)

        monkeypatch.setattr(WaitRecord, "close", answer_and_close)
        assert task.execute(completion_timeout=timedelta(microseconds=1)) == task.run(result=1)

    @pytest.mark.parametrize("event", [TIMEOUT, None])
    def test_continued_with_the_flows_answer(self, task, event):
        """Even after the time."""
        task.park()
        task.later(days=2)
        task.answer(result=[1])
        assert task.resume(event) == task.run(result=[1])

    def test_the_flow_is_believed_until_its_token_is_deleted(self, task):
        task.park()
        task.later(days=2)
        task.answer_before_the_token_is_deleted("failed", message="rows lost")
        assert mentions(task.fail(RunFailedError, TIMEOUT).message, "The flow ", "rows lost")

    def test_a_later_try_goes_on_waiting(self, service, task):
        task.park()
        task.later(hours=1)
        since = task.entries[WAIT]["since"]
        task.retry()
        task.park()
        assert task.entries[WAIT]["since"] == since
        assert requests(service) == 1

    def test_it_never_starts_a_run_once_it_was_parked_with_one(self, service, task):
        """A Clear on Airflow 3.4 deletes the record, but the process may be older."""
        task.park()
        task.entries.clear()
        task.park(TIMEOUT)
        assert requests(service) == 1

    def test_a_run_without_an_id(self, service, task):
        service.faults.add("response", body={"run_link": "https://there/1"})
        task.park()
        assert "run_id" not in task.now["ti"].pushed["return_value"]
        task.later(days=1)
        assert "Look at " in task.fail(RunTimeoutError, TIMEOUT).next_step


class TestBrokenConnection:
    """The connection breaks while the task is parked: what the flow said is neither shown unredacted nor lost."""

    @pytest.fixture(params=["invalid", "missing"])
    def broken(self, request, workflow_automation_connect, monkeypatch):
        """Return a function that breaks the connection, and what the error then says of it."""

        def break_it():
            if request.param == "invalid":
                workflow_automation_connect(extra={"typo": 1})
                return "'typo'"
            monkeypatch.delenv("AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT")
            return "`workflow_automation_default`"

        return break_it

    @pytest.fixture
    def mend(self, workflow_automation_connect, endpoint):
        return lambda: workflow_automation_connect(extra={"callback_base_url": endpoint.url})

    @pytest.mark.parametrize(("status", "ended"), [("success", "succeeded"), ("failed", "failed")])
    def test_the_error_names_the_run_and_airflow_retries(self, task, broken, status, ended):
        task.park()
        task.answer(status, message="x")
        words = broken()
        error = task.fail(InvalidRequestError, TIMEOUT)
        assert not isinstance(error, AirflowFailException)
        assert mentions(error.message, ended, words)
        assert "Run 1001" in error.consequence
        assert not isinstance(error, AirflowFailException)
        assert (error.flow_id, error.run_id) == ("demo-flow", "1001")

    def test_the_error_mentions_a_run_without_an_id(self, service, task, broken):
        service.faults.add("response", body={})
        task.park()
        task.answer(result=3)
        broken()
        assert task.fail(InvalidRequestError, TIMEOUT).consequence == "A run was started."

    def test_a_retry_returns_it_once_the_connection_works(self, task, broken, mend):
        task.park()
        task.answer(result=3)
        broken()
        task.fail(InvalidRequestError, TIMEOUT)
        mend()
        task.retry()
        assert task.execute() == task.run(result=3)

    def test_after_the_last_try_a_person_can_enter_the_run(self, task, broken, mend):
        task.retry(try_number=4)
        task.park()
        task.answer(result=3)
        broken()
        assert SUPPLIED_RUN_KEY in task.fail(InvalidRequestError, TIMEOUT).next_step
        mend()
        task.enter()
        task.clear(try_number=5, max_tries=7)
        assert task.execute() == {"run_id": "1001", "result": 3}


class TestEditedDag:
    """The DAG is edited to wait no longer, while a task waits: it goes on waiting for its run."""

    def test_a_retry_after_the_wait_has_begun(self, task):
        """As where the task is killed once it was woken."""
        task.park()
        task.answer("failed")
        task.retry()
        task.fail(RunFailedError, **EDITED)

    def test_nobody_has_said_yet(self, task):
        task.park(completion_timeout=timedelta(days=7))
        for days in (2, 6):
            task.later(days=days)
            task.park(TIMEOUT, **EDITED)
        task.answer(result=1)
        assert task.resume(TIMEOUT, **EDITED) == task.run(result=1)

    def test_a_clear_starts_a_run_as_the_dag_says_now(self, service, task):
        task.park()
        task.clear()
        assert task.execute(**EDITED)["run_id"] == "1002"
        assert "callback_url" not in service.runs[1].inputs

    def test_that_waits_only_now(self, task, log):
        """The run was started without a URL."""
        task.execute(**EDITED)
        task.retry()
        task.park()
        assert mentions(log(), "no callback URL", "marking the task")
        task.later(days=1)
        error = task.fail(RunTimeoutError, TIMEOUT)
        assert "no callback URL" in error.next_step
        assert "callback_base_url" not in str(error)

    def test_a_run_that_never_waited_is_not_waited_for(self, service, task):
        service.faults.add("busy", operation="upload")
        task.fail(BusyError, **EDITED, files=[{"name": "a"}])
        task.retry()
        assert task.execute(**EDITED) == task.run()
