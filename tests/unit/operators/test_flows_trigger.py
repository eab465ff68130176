"""TriggerFlowOperator with a context of its own: when it starts a run, and what it keeps of it."""

from __future__ import annotations

import signal
import time
from datetime import datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from entry_keys import FIRST_OUTCOME, FIRST_START, SECOND_OUTCOME
from sentences import ENDED, INTERRUPTED, NOT_STORED
from workflow_automation_provider.exceptions import (
    BusyError,
    NotSentError,
    OutcomeUnknownError,
)
from workflow_automation_provider.execution.retry import FlowRetryPolicy
from workflow_automation_provider.execution.run.start import request_digest
from workflow_automation_provider.operators.base import UNSET
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator

from ..starts import MAYBE, TaskTimeout, interrupted, mentions, requests, trigger


def began(store):
    """Return when the first start was recorded, as texts have it."""
    return datetime.fromisoformat(store.entries[FIRST_START]["at"]).isoformat(timespec="seconds")


def link(service, run_id):
    return f"{service.url}/runs/{run_id}"


class TestTries:
    def test_a_run_is_started_and_recorded(self, service, store, context, log):
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        now = context(store)
        requests_before: dict[str, int] = {}
        store.before_set = lambda key, _: requests_before.update({key: requests(service)})
        result = trigger().execute(now)

        assert result == {"run_id": "1001", "run_link": link(service, 1001), "flow_id": "demo-flow"}
        assert [run.by for run in service.runs] == ["key"]
        assert now["ti"].pushed == {}, "which Airflow does at the end"
        assert requests_before == {FIRST_START: 0, FIRST_OUTCOME: 1}
        start, outcome = store.entries.values()
        assert datetime.fromisoformat(start.pop("at")).utcoffset() == timedelta(0)
        assert start == {
            "conn_id": "workflow_automation_default",
            "flow_id": "demo-flow",
            "max_tries": 3,
            "origin": service.url,
            "request": request_digest({"a": 1}, None),
        }
        assert (outcome["status"], outcome["run"]) == ("started", result)
        assert {*store.retentions.values()} == {NEVER_EXPIRE}
        text = log()
        assert mentions(text, "1001", link(service, 1001))
        assert "before Airflow 3.3" not in text

    @pytest.mark.parametrize(
        ("changed", "is_told"),
        [
            ({"inputs": {"a": 2}}, True),
            ({"flow_id": "demo-flow"}, True),
            ({"inputs": {"a": object()}}, False),
            ({}, False),
        ],
    )
    def test_a_later_try_returns_the_run_of_an_earlier_one(
        self, service, store, context, log, changed, is_told
    ):
        """It says that the inputs have changed, if they have."""
        first = trigger().execute(context(store))
        assert trigger(**changed).execute(context(store, try_number=2)) == first
        text = log()
        assert mentions(
            text, f"Try 1 ({began(store)})", f"run 1001, {link(service, 1001)}.", "Returning"
        )
        assert mentions(text, "inputs", "flow_id", "try 1,") == is_told
        assert requests(service) == 1

    def test_a_run_id_forges_no_line_of_the_log(self, service, store, context, log):
        service.faults.add(
            "response", body={"run_id": "1\nStarted run 2: x", "run_link": "http://a\nb"}
        )
        run = trigger().execute(context(store))
        assert run["run_id"] == "1\nStarted run 2: x"
        trigger().execute(context(store, try_number=2))
        assert not any(line.startswith(("Started run 2", "b")) for line in log().splitlines())

    def test_start_again_accepts_a_second_run(self, service, store, context, log):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError, match=MAYBE) as caught:
            trigger(on_unknown_start="start_again").execute(context(store))
        assert not isinstance(caught.value, AirflowFailException)
        assert requests(service) == 1
        result = trigger(on_unknown_start="start_again").execute(context(store, try_number=2))

        assert result["run_id"] == "1002"
        assert mentions(log(), "Try 1", MAYBE, "on_unknown_start", "'start_again'")
        assert store.entries[SECOND_OUTCOME]["run"] == result

    @pytest.mark.parametrize(
        ("flow_id", "of_connection", "named"),
        [(None, None, "the flow of the API key"), ("a", "b", "flow a")],
    )
    def test_the_log_names_the_run_before_the_record(
        self,
        service,
        workflow_automation_connect,
        store,
        context,
        log,
        flow_id,
        of_connection,
        named,
    ):
        """And without a record, nothing is sent."""
        workflow_automation_connect(extra={"flow_id": of_connection})
        store.failures["set"] = 1
        with pytest.raises(RuntimeError, match="store"):
            trigger(**({"flow_id": flow_id} if flow_id else {})).execute(context(store))
        text = log()
        assert mentions(text, f"{named} via", "workflow_automation_default")
        assert MAYBE.lower() in text
        assert MAYBE not in text
        assert requests(service) == 0


def test_a_link_that_cannot_be_stored_fails_no_task(service, store, context, log):
    now = context(store, push_error=RuntimeError("No database"))
    assert trigger(files=[{"name": "a"}]).execute(now)["run_id"] == "1001"
    assert mentions(log(), "link", NOT_STORED)


def test_inputs_may_be_left_out(service, store, context):
    TriggerFlowOperator(task_id="trigger", flow_id="demo-flow").execute(context(store))
    assert [(run.by, run.inputs) for run in service.runs] == [("path", {})]
    assert repr(UNSET) == "not given", "as the default of the signature"


@pytest.mark.parametrize(
    "make",
    [trigger, lambda **options: UploadFilesOperator(task_id="a", run_id="1", files="a", **options)],
)
def test_a_retry_policy_of_the_task_or_its_dag_comes_first(make):
    own = FlowRetryPolicy()
    assert isinstance(make().retry_policy, FlowRetryPolicy)
    assert make(retry_policy=own).retry_policy is own
    assert make(default_args={"retry_policy": own}).retry_policy is own


class TestInterrupted:
    def test_before_the_request_it_leaves_no_doubt_of_its_own(
        self, service, store, context, log, full_connection
    ):
        """The service cannot be reached yet: no run can have been started by this try."""
        operator = {"on_unknown_start": "start_again"}
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            trigger(**operator).execute(context(store))
        with interrupted(0.5):
            trigger(**operator, flow_id="a", workflow_automation_conn_id=full_connection).execute(
                context(store, try_number=2)
            )
        assert store.entries[SECOND_OUTCOME]["status"] == "not started"
        assert INTERRUPTED not in log()
        with pytest.raises(OutcomeUnknownError, match=f"Try 1 .*{MAYBE}"):
            trigger().execute(context(store, try_number=3))

    def test_while_it_waits_for_the_response_it_leaves_a_doubt(self, service, store, context, log):
        service.faults.add("delay", seconds=3)
        with interrupted(0.5):
            trigger().execute(context(store))
        assert FIRST_OUTCOME not in store.entries
        assert INTERRUPTED in log()
        with pytest.raises(OutcomeUnknownError, match=MAYBE):
            trigger().execute(context(store, try_number=2))

    def test_while_the_service_is_busy_it_leaves_no_doubt(self, service, store, context, log):
        service.faults.add("busy", retry_after="3")
        with interrupted(0.5):
            trigger(send_retry_timeout=60).execute(context(store))
        assert store.entries[FIRST_OUTCOME]["status"] == "not started"
        assert INTERRUPTED not in log()

    def test_while_the_run_is_recorded_it_is_recorded_all_the_same(self, service, store, context):
        real = store.set

        def interrupted_once(key, value, **options):
            if key == FIRST_OUTCOME:
                store.set = real
                raise TaskTimeout
            real(key, value, **options)

        store.set = interrupted_once
        with pytest.raises(TaskTimeout):
            trigger().execute(context(store))
        assert trigger().execute(context(store, try_number=2))["run_id"] == "1001"
        assert requests(service) == 1


class TestEnded:
    """Airflow ended the task: nothing is sent from then on."""

    def test_before_it_began(self, service, store, context):
        operator = trigger(send_retry_timeout=120)
        operator.on_kill()
        with pytest.raises(NotSentError, match="not sent: the task was ended") as caught:
            operator.execute(context(store))

        assert (caught.value.conn_id, caught.value.flow_id) == (
            "workflow_automation_default",
            "demo-flow",
        )
        assert (store.entries, requests(service)) == ({}, 0)

    def test_by_a_signal(self, service, store, context, log):
        """As Airflow does it: the handler runs in the thread that waits."""
        service.faults.add("busy", retry_after="30", times=None)
        operator = trigger(send_retry_timeout=120)
        began, before = (
            time.monotonic(),
            signal.signal(signal.SIGALRM, lambda *_: operator.on_kill()),
        )
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            with pytest.raises(BusyError) as caught:
                operator.execute(context(store))
        finally:
            signal.signal(signal.SIGALRM, before)
        assert time.monotonic() - began < 15
        assert requests(service) == 1
        assert "Airflow retries" not in str(caught.value), "which nobody knows of an ended task"
        assert store.entries[FIRST_OUTCOME]["status"] == "not started"
        assert ENDED in log()
