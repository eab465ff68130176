"""TriggerFlowOperator that asks a person whether a run was started: the question, and what each answer does."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    InvalidRequestError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    RunFailedError,
)
from workflow_automation_provider.execution.ask import FAIL, NOT_STARTED, STARTED
from workflow_automation_provider.execution.callback import OPTIONS, digest_of, end_key, token_key

from ..answers import TIMEOUT, person, woken
from ..starts import KEY, MAYBE, interrupted, mentions, requests, trigger

SUCCEEDED, FAILED = OPTIONS["success"], OPTIONS["failed"]


def asks(**options):
    return trigger(**{"on_unknown_start": "ask", **options})


@pytest.fixture
def now(store, context):
    return context(store)


@pytest.fixture
def then(service, now, parked):
    """What a task was parked with whose response was lost."""
    service.faults.add("drop_after")
    return parked(asks(), now)[0]


class TestQuestion:
    def test_of_a_lost_response(self, service, store, log, now, then, supervisor):
        (question,) = supervisor.questions
        assert question.ti_id == now["ti"].id
        assert question.options == [STARTED, NOT_STARTED, FAIL]
        assert set(question.params) == {"run_id", "run_link"}
        assert mentions(question.body, "flow `demo-flow`")
        ((since, until),) = re.findall(r"between (\S+) and (\S+)\.\n", question.body)
        assert since == store.entries[KEY]["at"]
        assert datetime.fromisoformat(since) < datetime.fromisoformat(until)
        assert "- Connection: `workflow_automation_default`" in question.body
        assert "      POST http://" in question.body
        assert f"{MAYBE}." in log()
        assert "Required Actions" in log()
        assert set(then) == {"pending", "ti_id"}
        assert len(service.runs) == 1

    def test_of_a_run_without_an_id(self, service, now, parked, supervisor):
        service.faults.add("garbage")
        parked(asks(), now)
        (question,) = supervisor.questions
        assert question.options == [STARTED, FAIL]

    def test_of_an_unknown_flow(self, service, now, parked, supervisor, monkeypatch):
        connection = service.airflow_connection(service.keys[0], {})
        del connection["extra"]["flow_id"]
        monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(connection))
        service.faults.add("drop_after")
        parked(asks(workflow_automation_conn_id="other"), now)
        (question,) = supervisor.questions
        assert "the flow of the API key" in question.body

    def test_lasts_for_the_ask_timeout(self, service, now, parked):
        service.faults.add("drop_after")
        _, timeout = parked(asks(ask_timeout=timedelta(hours=2)), now)
        assert timedelta(hours=1, minutes=59) < timeout <= timedelta(hours=2)

    def test_of_a_killed_try(self, service, store, context, parked, supervisor):
        service.faults.add("hang_after", seconds=5)
        with interrupted(0.7):
            asks().execute(context(store))
        parked(asks(), context(store, try_number=2))
        (question,) = supervisor.questions
        assert "Try 1 (" in question.body
        assert len(service.runs) == 1

    def test_that_cannot_be_stored(self, service, now, supervisor, log):
        supervisor.failures.append(RuntimeError("No database"))
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError) as caught:
            asks().execute(now)
        assert isinstance(caught.value, AirflowFailException)
        assert "Nobody could be asked" in log()

    def test_is_not_asked_where_nothing_was_started(self, service, now, supervisor):
        service.faults.add("reject")
        with pytest.raises(RejectedError):
            asks().execute(now)
        assert supervisor.questions == []


class TestNotifiers:
    def test_are_called_once(self, service, now, parked, resume, supervisor):
        called: list[object] = []
        service.faults.add("drop_after")
        operator = {"notifiers": [called.append, lambda context: called.append(context)]}
        then, _ = parked(asks(**operator), now)
        assert called == [now, now]
        parked(asks(**operator), now, person(STARTED, run_id=None), **then)
        assert len(called) == 2

    def test_one_alone(self, service, now, parked):
        called: list[object] = []
        service.faults.add("drop_after")
        parked(asks(notifiers=called.append), now)
        assert called == [now]

    def test_none(self):
        assert trigger(notifiers=None).notifiers == ()

    @pytest.mark.parametrize("notifiers", [[None], {"a": 1}])
    def test_of_another_kind(self, notifiers):
        with pytest.raises(ValueError, match=re.escape(f"notifiers is {notifiers!r}")):
            trigger(notifiers=notifiers)

    def test_one_that_raises(self, service, now, parked, supervisor, log):
        def notify(context):
            raise RuntimeError("No mail server")

        called: list[object] = []
        service.faults.add("drop_after")
        parked(asks(notifiers=[notify, called.append]), now)
        assert "A notifier failed." in log()
        assert called == [now]
        assert len(supervisor.questions) == 1


class TestAnswer:
    def test_a_run_was_started(self, service, store, now, then, resume, log):
        event = person(STARTED, run_id=" 77 ", run_link="http://there/77")
        run = {"run_id": "77", "run_link": "http://there/77", "flow_id": "demo-flow"}
        assert resume(asks(), now, event, **then) == run
        assert now["ti"].pushed == {"_link_FlowRunLink": "http://there/77"}
        assert store.entries[KEY]["result"] == run
        assert not any("_token/" in key for key in store.entries)
        assert mentions(log(), "ada", "run 77")
        assert requests(service) == 1

    def test_a_run_was_started_and_a_later_try_returns_it(self, service, store, context, now, then, resume):
        resume(asks(), now, person(STARTED, run_id="77"), **then)
        assert asks().execute(context(store, try_number=2))["run_id"] == "77"

    def test_a_run_that_cannot_be_recorded_is_returned(self, service, store, now, then, resume, log):
        store.failures["set started"] = 2
        assert resume(asks(), now, person(STARTED, run_id="77"), **then)["run_id"] == "77"
        assert mentions(log(), "Run 77", "not be recorded")

    @pytest.mark.parametrize("is_recorded", [True, False])
    def test_no_run_was_started(self, service, store, now, then, resume, log, is_recorded):
        if not is_recorded:
            del store.entries[KEY]
        assert resume(asks(), now, person(NOT_STARTED), **then)["run_id"] == "1002"
        assert mentions(log(), "ada", "no run")
        assert not any("_token/" in key for key in store.deleted)

    def test_no_run_was_started_and_the_next_is_in_doubt_as_well(
        self, service, now, then, parked, supervisor
    ):
        service.faults.add("drop_after")
        parked(asks(), now, person(NOT_STARTED), **then)
        assert len(supervisor.questions) == 2

    def test_no_run_was_started_is_about_that_start_alone(self, service, now, then, resume):
        """Airflow may execute a task again with the same answer: it has started a run since."""
        run = resume(asks(), now, person(NOT_STARTED), **then)
        assert resume(asks(), now, person(NOT_STARTED), **then) == run
        assert len(service.runs) == 2

    def test_no_run_was_started_is_not_about_a_later_start(self, service, store, now, then, parked):
        store.entries[KEY]["at"] = "2026-01-01T00:00:00+00:00"
        parked(asks(), now, person(NOT_STARTED), **then)
        assert requests(service) == 1

    def test_no_run_was_started_where_one_was(self, service, now, parked, supervisor, log):
        """The question was about an earlier start; Airflow keeps the options of a try's first question."""
        service.faults.add("garbage")
        then, _ = parked(asks(), now)
        parked(asks(), now, person(NOT_STARTED), **then)
        assert f"ada answered: {NOT_STARTED}" in log()
        assert len(supervisor.questions) == 2
        assert requests(service) == 1

    def test_fail(self, service, now, then, resume):
        with pytest.raises(OutcomeUnknownError) as caught:
            resume(asks(), now, person(FAIL), **then)
        error = caught.value
        assert isinstance(error, AirflowFailException)
        assert "got no response" in error.message
        assert f"ada answered: {FAIL}." in error.message
        assert error.consequence == f"{MAYBE}."
        assert "workflow_automation_run" in error.next_step
        assert requests(service) == 1

    def test_fail_with_a_run_whose_id_is_unknown(self, service, now, parked, resume):
        service.faults.add("garbage")
        then, _ = parked(asks(), now)
        with pytest.raises(ResponseUnusableError) as caught:
            resume(asks(), now, person(FAIL), **then)
        assert caught.value.accepted is Accepted.YES

    @pytest.mark.parametrize("event", [TIMEOUT, None])
    def test_none_in_time(self, service, now, then, resume, event):
        then["pending"]["until"] = datetime.now(UTC).isoformat()
        with pytest.raises(OutcomeUnknownError, match=r"ask_timeout \(7 days"):
            resume(asks(), now, event, **then)

    def test_without_the_run_id_is_asked_for_again(self, service, now, then, parked, supervisor, log):
        parked(asks(), now, person(STARTED, run_id=None, run_link="http://there"), **then)
        assert len(supervisor.questions) == 2
        assert mentions(log(), f"ada answered: {STARTED}", "no run_id")
        assert requests(service) == 1

    def test_that_cannot_be_asked_for_again(self, service, now, then, resume, supervisor, log):
        supervisor.failures.append(RuntimeError("No database"))
        with pytest.raises(OutcomeUnknownError, match="got no response"):
            resume(asks(), now, person(STARTED, run_id=None), **then)
        assert "Nobody could be asked" in log()

    def test_of_a_dag_that_no_longer_asks(self, service, now, then, resume):
        """The question was asked, and its answer counts."""
        assert resume(trigger(), now, person(STARTED, run_id="77"), **then)["run_id"] == "77"
        assert requests(service) == 1

    def test_with_files(self, service, now, then, resume):
        resume(asks(files=[{"name": "a"}]), now, person(STARTED, run_id="1001"), **then)
        assert [upload.run_id for upload in service.uploads] == ["1001"]


class TestWithAWait:
    @pytest.fixture
    def then(self, service, now, endpoint, waits, parked):
        service.faults.add("drop_after")
        return parked(waits(on_unknown_start="ask"), now)[0]

    def test_a_run_was_started(self, service, store, now, then, waits, parked, resume, supervisor):
        (question,) = supervisor.questions
        assert question.options == [STARTED, NOT_STARTED, SUCCEEDED, FAILED, FAIL]
        assert set(question.params) == {"run_id", "run_link", "result", "message"}
        operator = waits(on_unknown_start="ask")
        more, _ = parked(operator, now, person(STARTED, run_id="1001"), **then)
        assert more["run"] == {"run_id": "1001", "flow_id": "demo-flow"}
        assert token_key(store.entries[KEY]["token"], 3) in store.entries
        assert "run 1001 " in supervisor.questions[-1].subject
        event = person(SUCCEEDED, result="3", message=None)
        result = resume(waits(on_unknown_start="ask"), now, event, **more)
        assert result == {"run_id": "1001", "flow_id": "demo-flow", "result": 3}

    def test_it_has_succeeded_as_well(self, service, now, then, waits, resume):
        event = person(SUCCEEDED, run_id="1001", result="3")
        result = resume(waits(on_unknown_start="ask"), now, event, **then)
        assert result == {"run_id": "1001", "flow_id": "demo-flow", "result": 3}

    def test_it_has_failed_as_well(self, service, now, then, waits, resume):
        event = person(FAILED, run_id="1001", message="No rows")
        with pytest.raises(RunFailedError, match=r"ada .*: No rows") as caught:
            resume(waits(on_unknown_start="ask"), now, event, **then)
        assert caught.value.run_id == "1001"

    def test_it_has_ended_without_a_run_id(self, store, now, then, waits, parked, supervisor):
        parked(waits(on_unknown_start="ask"), now, person(SUCCEEDED, run_id=None), **then)
        assert len(supervisor.questions) == 2
        assert token_key(store.entries[KEY]["token"], 3) in store.entries

    def test_no_run_was_started(self, service, store, now, then, waits, parked, endpoint):
        (old,) = [key for key in store.entries if "_token/" in key]
        more, _ = parked(waits(on_unknown_start="ask"), now, person(NOT_STARTED), **then)
        assert more["run"]["run_id"] == "1002"
        assert old not in store.entries
        again, _ = parked(waits(on_unknown_start="ask"), now, person(NOT_STARTED), **then)
        assert again["run"] == more["run"]
        assert token_key(store.entries[KEY]["token"], 3) in store.entries

    def test_the_flow_has_called_meanwhile(self, service, store, now, then, waits, resume, endpoint):
        key = end_key(store.entries["workflow_automation_start"]["token"])
        store.set(key, {"status": "success", "result": 3, "at": "2026-01-01T00:00:00+00:00"})
        assert resume(waits(on_unknown_start="ask"), now, woken(SUCCEEDED), **then) == {
            "flow_id": "demo-flow",
            "result": 3,
        }
        assert len(service.runs) == 1


class TestVersions:
    def test_before_airflow_3_1_nothing_is_sent(self, service, store, context, monkeypatch):
        monkeypatch.delattr("airflow.sdk.execution_time.hitl.upsert_hitl_detail")
        with pytest.raises(InvalidRequestError, match=r"on_unknown_start='ask' .*3\.1"):
            asks().execute(context(store))
        assert (requests(service), store.entries) == (0, {})

    def test_without_a_supervisor_nothing_is_sent(self, service, store, context):
        with pytest.raises(InvalidRequestError, match=r"on_unknown_start='ask' .*supervisor") as caught:
            asks().execute(context(store))
        assert "dag.test()" in caught.value.next_step
        assert (requests(service), store.entries) == (0, {})


def test_the_digest_is_no_part_of_the_question(service, store, now, endpoint, waits, parked, supervisor):
    service.faults.add("hang_after", seconds=1)
    service.callbacks.add(delay=30)
    parked(waits(on_unknown_start="ask", request_timeout=0.5), now)
    digest = store.entries["workflow_automation_start"]["token"]
    assert digest not in repr(supervisor.questions)
    assert digest != digest_of("")
