"""A task that waits for its run, after a Clear, after a start in doubt, and with a run that a person entered."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    OutcomeUnknownError,
    RunFailedError,
    RunTimeoutError,
    UnidentifiedError,
)
from workflow_automation_provider.execution.errors import SUPPLIED_RUN_KEY

from ..claims import BRIEF
from ..starts import TIMEOUT, mentions, requests
from .conftest import WAIT

UNIDENTIFIED = {"flow_id": "demo-flow", "result": 1}


class TestClear:
    def test_starts_another_run_and_the_old_token_is_worthless(self, service, task):
        task.park()
        (old,) = task.tokens
        task.answer(result="old")
        task.clear()
        task.park()
        (new,) = task.tokens
        assert new.endswith("/4")
        assert old not in task.entries
        assert len(service.runs) == 2

    @pytest.mark.parametrize("answered", [True, False])
    def test_while_it_continues_starts_another_run(self, task, endpoint, log, answered):
        """Airflow then continues the next try with what the earlier one was parked with."""
        task.park()
        then = task.then
        if answered:
            task.answer(result="old")
        task.clear(clear_number=1)
        task.then = then
        endpoint.max_tries = 4
        task.park(TIMEOUT)
        assert task.then["run"]["run_id"] == "1002"
        assert mentions(log(), "cleared", "starting over")

    def test_by_which_max_tries_stays_as_it_is(self, service, task):
        """The DAG was edited to fewer retries."""
        task.begin(retries=2)
        task.park()
        task.answer(result="old")
        task.retry(retries=2, clear_number=1)
        assert task.execute(retries=2) == task.run(result="old"), "as a retry"
        assert len(service.runs) == 1

    def test_that_keeps_the_tasks_state_goes_on_waiting(self, service, task):
        """Airflow 3.4: whoever keeps it wants to keep the run."""
        task.begin(region_id=None)
        task.park()
        task.later(days=2)
        task.clear(region_id=None)
        assert task.park() == timedelta(seconds=15), "the wait begins anew"
        task.answer(result=1)
        assert task.resume(TIMEOUT) == task.run(result=1)
        assert requests(service) == 1

    def test_that_keeps_the_tasks_state_keeps_its_answer(self, task):
        task.begin(region_id=None)
        task.park()
        task.answer(result=1)
        task.clear(region_id=None)
        assert task.execute() == task.run(result=1)


class TestDoubt:
    """The start was lost, but a flow that calls back has told that there is a run, and how it ended."""

    @pytest.fixture
    def lost(self, service, task):
        """A task whose first try ended in doubt."""
        service.faults.add("drop_after")
        task.fail(OutcomeUnknownError, on_unknown_start="start_again")
        return task

    @pytest.mark.parametrize("on_unknown_start", ["fail", "start_again"])
    def test_the_flows_answer_settles_it(
        self, service, task, log, on_unknown_start, workflow_automation_connect
    ):
        workflow_automation_connect.add_extra(timeout=1)
        service.callbacks.add(result=1)
        service.faults.add("hang_after", seconds=2)
        assert task.execute(on_unknown_start=on_unknown_start) == UNIDENTIFIED
        assert "run_id is unknown" in log()
        assert len(service.runs) == 1

    def test_of_a_run_whose_id_is_unknown(self, service, task):
        service.faults.add("garbage")
        task.fail(UnidentifiedError, on_unknown_start="start_again")
        task.answer(result=1)
        task.retry()
        assert task.execute() == UNIDENTIFIED

    @pytest.mark.parametrize("on_unknown_start", ["fail", "start_again"])
    def test_of_an_earlier_try(self, service, lost, on_unknown_start):
        lost.answer(result=1)
        lost.retry()
        assert lost.execute(on_unknown_start=on_unknown_start) == UNIDENTIFIED
        assert len(service.runs) == 1

    def test_that_no_run_may_claim_any_more_asks_for_a_clear_alone(self, service, store, context, claims):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError) as caught:
            claims(**BRIEF).execute(context(store, max_tries=0))
        assert caught.value.code == "start-revoked"
        assert "Storage" not in caught.value.next_step

    def test_before_another_run_is_started(self, service, lost):
        lost.answer_before_the_token_is_deleted(result=1)
        lost.retry()
        options = {"on_unknown_start": "start_again", "completion_timeout": timedelta(seconds=0.1)}
        assert lost.execute(**options) == UNIDENTIFIED
        assert requests(service) == 1

    def test_start_again_makes_the_old_token_worthless(self, service, lost):
        (old,) = lost.tokens
        lost.retry()
        lost.park(on_unknown_start="start_again")
        assert old not in lost.tokens
        assert (len(lost.tokens), len(service.runs)) == (1, 2)

    def test_failed(self, lost):
        lost.answer("failed", message="No rows")
        lost.retry()
        error = lost.fail(RunFailedError)
        assert "No rows" in error.message
        assert error.run_id is None


class TestGiven:
    """A run that a person entered for a task that failed."""

    def fail(self, service, task, fault="drop_after"):
        service.faults.add(fault)
        task.fail(AirflowFailException, completion_timeout=timedelta(seconds=0.1))

    def test_of_a_start_in_doubt_keeps_its_token(self, service, task):
        self.fail(service, task)
        task.enter("77")
        task.clear()
        task.park()
        assert task.then["run"] == {"run_id": "77"}
        task.answer(result=1)
        assert task.resume(TIMEOUT) == {"run_id": "77", "result": 1}

    def test_of_a_start_in_doubt_keeps_its_answer(self, service, task):
        service.faults.add("drop_after")
        task.fail(OutcomeUnknownError, on_unknown_start="start_again")
        task.answer(result=1)
        task.enter("77")
        task.clear()
        assert task.execute() == {"run_id": "77", "result": 1}

    @pytest.mark.parametrize("fault", [None, "reject"])
    def test_another_run_has_no_token(self, service, task, log, fault):
        """Nobody but a person knows its end, and marks the task."""
        if fault:
            self.fail(service, task, fault)
        else:
            task.park()
        before = len(service.runs)
        task.enter("77")
        task.clear()
        task.park()
        assert task.entries[WAIT]["digest"] is None
        assert mentions(log(), "no callback URL", "marking the task")
        assert task.now["ti"].pushed["return_value"] == {"run_id": "77"}
        assert len(service.runs) == before
        task.retry(try_number=3, max_tries=4)
        task.park()
        assert task.then["run"] == {"run_id": "77"}

    def test_after_the_time_is_up_is_waited_for_anew_where_a_clear_leaves_max_tries(self, service, task):
        task.park()
        task.later(days=2)
        task.fail(RunTimeoutError, TIMEOUT)
        task.enter()
        task.retry(retries=2, clear_number=1)
        task.park(retries=2)
        assert (len(task.tokens), requests(service)) == (1, 1)

    def test_is_used_once(self, service, task):
        self.fail(service, task)
        task.enter("77")
        task.clear()
        task.park()
        assert SUPPLIED_RUN_KEY not in task.entries
        task.clear(try_number=3, max_tries=6)
        task.park()
        assert task.then["run"]["run_id"] == "1002"
