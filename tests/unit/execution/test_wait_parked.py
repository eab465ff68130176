"""TriggerFlowOperator that is parked until the end of its run: the checks, the question, and who wakes it."""

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
from workflow_automation_provider.execution.callback import OPTIONS, PATH
from workflow_automation_provider.execution.wait_state import WaitRecord
from workflow_automation_provider.failures import SUPPLIED_RUN_KEY, run_started

from ..answers import TIMEOUT, person, woken
from ..claims import ISSUED
from ..starts import mentions, requests
from .conftest import WAIT

SUCCEEDED, FAILED = OPTIONS["success"], OPTIONS["failed"]
EDITED = {"wait_for_completion": False}


class TestPark:
    def test_a_run_id_is_shown_as_it_is(self, service, task, supervisor):
        body = {"run_id": "`[here](http://evil)`", "run_link": "http://a> [here](http://evil) <http://b"}
        service.faults.add("response", body=body)
        task.park()
        (question,) = supervisor.questions
        assert question.body.splitlines()[1] == "- Run: `` `[here](http://evil)` ``"

    def test_it_asks_and_parks(self, service, task, supervisor, log):
        assert task.park() == timedelta(seconds=15)
        ti = task.now["ti"]
        assert task.then == {"run": task.run(), "checks": 1, "timeout": 86400.0, "ti_id": str(ti.id)}
        assert ti.pushed == {"_link_FlowRunLink": f"{service.url}/runs/1001"}
        (question,) = supervisor.questions
        assert question.ti_id == ti.id
        assert "run 1001 " in question.subject
        assert question.options == [SUCCEEDED, FAILED]
        assert set(question.params) == {"result", "message"}
        assert question.body.splitlines()[1:] == [
            f"- Run: `1001` <{service.url}/runs/1001>",
            "- Connection: `workflow_automation_default`",
            "- Flow: `demo-flow`",
        ]
        assert mentions(log(), "run 1001", "until 20")

    def test_it_parks_for_at_least_the_time_in_which_the_scheduler_notices(self, service, task):
        assert task.park(completion_timeout=timedelta(seconds=3)) == timedelta(seconds=5)

    def test_the_checks_become_rarer(self, service, task, supervisor):
        found = [task.park(), *(task.park(TIMEOUT) for _ in range(11))]
        minutes = [1 / 4, 1, 4, 16, 64, 256, *[360] * 6]
        assert found == [timedelta(minutes=number) for number in minutes]
        assert len(supervisor.questions) == 1, "asking again would delete an answer"
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

    @pytest.mark.parametrize("event", [woken(SUCCEEDED), woken(), TIMEOUT, None, person(FAILED)])
    def test_woken_with_the_flows_answer(self, task, event):
        """Whatever Airflow and persons say, and even after the time, the row is what the flow said."""
        task.park()
        task.later(days=2)
        task.answer(result=[1])
        assert task.resume(event) == task.run(result=[1])

    def test_the_flow_is_believed_until_its_token_is_deleted(self, task):
        task.park()
        task.answer_before_the_token_is_deleted("failed", message="rows lost")
        assert mentions(task.fail(RunFailedError, person(SUCCEEDED)).message, "The flow ", "rows lost")

    @pytest.mark.parametrize("event", [woken(SUCCEEDED), person("A run was started")])
    def test_woken_without_an_answer_it_asks_again(self, task, supervisor, event):
        """The endpoint closed the question: a task whose question is answered could not park."""
        task.park()
        task.park(event)
        assert len(supervisor.questions) == 2
        task.park(TIMEOUT)
        assert len(supervisor.questions) == 2

    def test_answered_before_it_parks(self, task, supervisor):
        real = supervisor.send

        def send(msg):
            real(msg)
            if type(msg).__name__ == "CreateHITLDetailPayload":
                task.answer(result=2)

        supervisor.send = send
        assert task.execute()["result"] == 2

    def test_a_question_that_cannot_be_stored_is_asked_at_the_next_check(self, task, supervisor, log):
        supervisor.failures.append(RuntimeError("No database"))
        task.park()
        assert mentions(log(), "not be listed", "Required Actions")
        assert supervisor.questions == []
        task.park(TIMEOUT)
        assert len(supervisor.questions) == 1

    def test_a_later_try_asks_anew_and_goes_on_waiting(self, service, task, supervisor):
        """The question is that of the killed try."""
        task.park()
        task.later(hours=1)
        since = task.entries[WAIT]["since"]
        task.retry()
        task.park()
        assert len({question.ti_id for question in supervisor.questions}) == 2
        assert task.entries[WAIT]["since"] == since
        assert requests(service) == 1

    def test_it_never_starts_a_run_once_it_was_parked_with_one(self, service, task):
        """A Clear on Airflow 3.4 deletes the record, but the process may be older."""
        task.park()
        task.entries.clear()
        task.park(TIMEOUT)
        assert requests(service) == 1

    def test_a_run_without_an_id(self, service, task, supervisor):
        service.faults.add("response", body={"run_link": "javascript:alert(1)"})
        task.park()
        (question,) = supervisor.questions
        assert question.options == [SUCCEEDED, FAILED]
        assert "- Run: unknown\n" in question.body
        assert "javascript" not in question.body
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
        error = task.fail(InvalidRequestError, woken(SUCCEEDED))
        assert not isinstance(error, AirflowFailException)
        assert mentions(error.message, ended, words)
        assert "Run 1001" in error.consequence
        assert "(try 2 of 4)" in error.next_step
        assert (error.flow_id, error.run_id) == ("demo-flow", "1001")

    def test_the_error_mentions_a_run_without_an_id(self, service, task, broken):
        service.faults.add("response", body={})
        task.park()
        task.answer(result=3)
        broken()
        assert task.fail(InvalidRequestError, woken(SUCCEEDED)).consequence == run_started("")

    @pytest.mark.parametrize("by", ["flow", "person"])
    def test_a_retry_returns_it_once_the_connection_works(self, task, broken, mend, by):
        task.park()
        event = person(SUCCEEDED, result="3", message=None)
        if by == "flow":
            event = woken(SUCCEEDED)
            task.answer(result=3)
        broken()
        task.fail(InvalidRequestError, event)
        mend()
        task.retry()
        assert task.execute() == task.run(result=3)

    def test_after_the_last_try_a_person_can_enter_the_run(self, task, broken, mend):
        task.retry(try_number=4)
        task.park()
        task.answer(result=3)
        broken()
        assert SUPPLIED_RUN_KEY in task.fail(InvalidRequestError, woken(SUCCEEDED)).next_step
        mend()
        task.enter()
        task.clear(try_number=5, max_tries=7)
        assert task.execute() == {"run_id": "1001", "result": 3}


class TestEditedDag:
    """The DAG is edited to wait no longer, while a task waits or asks: its run is waited for all the same."""

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
        assert task.resume(woken(SUCCEEDED), **EDITED) == task.run(result=1)

    def test_a_person_says_that_a_run_in_doubt_failed(self, service, task):
        service.faults.add("drop_after")
        task.park(on_unknown_start="ask")
        error = task.fail(RunFailedError, person(FAILED, run_id="1001"), **EDITED)
        assert "ada said" in error.message

    def test_a_clear_starts_a_run_as_the_dag_says_now(self, service, task):
        task.park()
        task.clear()
        assert task.execute(**EDITED)["run_id"] == "1002"
        assert "callback_url" not in service.runs[1].inputs

    def test_that_waits_only_now(self, task, supervisor, log):
        """The run was started without a URL."""
        task.execute(**EDITED)
        task.retry()
        task.park()
        assert "no callback URL" in log()
        (question,) = supervisor.questions
        assert "no callback URL" in question.body.splitlines()[0]
        task.later(days=1)
        error = task.fail(RunTimeoutError, TIMEOUT)
        assert "no callback URL" in error.next_step
        assert "callback_base_url" not in str(error)

    def test_a_run_that_never_waited_is_not_waited_for(self, service, task):
        service.faults.add("busy", operation="upload")
        task.fail(BusyError, **EDITED, files=[{"name": "a"}])
        task.retry()
        assert task.execute(**EDITED) == task.run()


class TestPerson:
    @pytest.fixture(autouse=True)
    def _parked(self, task):
        task.park()

    @pytest.mark.parametrize(
        ("given", "result"),
        [
            ('{"rows": 3}', {"rows": 3}),
            ("7", 7),
            *((text, text) for text in ("all there", "NaN", "{", "[" * 60 + "]" * 60, "9" * 30)),
            ('"text"', "text"),
            ('{"__type": 1}', '{"__type": 1}'),
            ("[" * 100_000, "[" * 100_000),
        ],
    )
    def test_succeeded_with_a_result(self, task, log, given, result):
        event = person(SUCCEEDED, result=given, message="looked at it")
        assert task.resume(event) == task.run(result=result)
        assert mentions(log(), "ada", "succeeded. looked at it")

    @pytest.mark.parametrize("given", [None, "", " ", "null"])
    def test_succeeded_without_a_result(self, task, log, given):
        assert task.resume(person(SUCCEEDED, result=given, message=None)) == task.run()
        assert mentions(log(), "ada", "succeeded.")

    def test_failed(self, task):
        error = task.fail(RunFailedError, person(FAILED, result=None, message="disk full"))
        assert mentions(error.message, "ada ", ": disk full")

    def test_a_later_try_finds_it(self, task):
        """As after a kill while the result was stored."""
        task.resume(person(SUCCEEDED, result="7", message="m"))
        task.retry()
        assert task.execute() == task.run(result=7)
