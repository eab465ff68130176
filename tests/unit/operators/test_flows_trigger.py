"""TriggerFlowOperator with a context of its own: when it starts a run, and what it keeps of it."""

from __future__ import annotations

import signal
import threading
import time
from datetime import datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    BusyError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
)
from workflow_automation_provider.execution.errors import how_to_continue
from workflow_automation_provider.execution.start import request_digest

from ..starts import KEY, MAYBE, TaskTimeout, interrupted, mentions, requests, trigger


def link(service, run_id):
    return f"{service.url}/runs/{run_id}"


class TestTries:
    def test_a_run_is_started_and_recorded(self, service, store, context, log):
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        now = context(store)
        result = trigger().execute(now)

        assert result == {"run_id": "1001", "run_link": link(service, 1001), "flow_id": "demo-flow"}
        assert [run.by for run in service.runs] == ["key"]
        assert now["ti"].pushed == {"_link_FlowRunLink": link(service, 1001)}
        assert store.writes == [(KEY, "starting", 0), (KEY, "started", 1)]
        assert datetime.fromisoformat(store.entries[KEY]["at"]).utcoffset() == timedelta(0)
        assert store.entries[KEY].pop("sent") <= store.entries[KEY]["at"]
        assert store.entries[KEY] | {"at": ""} == {
            "state": "started",
            "at": "",
            "conn_id": "workflow_automation_default",
            "flow_id": "demo-flow",
            "result": result,
            "try_number": 1,
            "max_tries": 3,
            "clear_number": 0,
            "request": request_digest({"a": 1}, None),
        }
        assert store.retentions[KEY] is NEVER_EXPIRE
        assert f"Started run 1001: {link(service, 1001)}" in (text := log())
        assert "before Airflow 3.3" not in text

    @pytest.mark.parametrize(
        ("body", "facts"), [({"run_link": "http://there/9"}, ["http://there/9"]), ({}, ["runs: {}"])]
    )
    def test_a_run_without_an_id_is_told_of(self, service, store, context, log, body, facts):
        service.faults.add("response", body=body)
        trigger().execute(context(store))
        assert mentions(text := log(), "no run_id", *facts)
        assert "None" not in text

    def test_a_later_try_returns_the_run_of_an_earlier_one(self, service, store, context, log):
        first = trigger().execute(context(store))
        now = context(store, try_number=2)
        second = trigger().execute(now)

        assert second == first
        assert now["ti"].pushed == {"_link_FlowRunLink": link(service, 1001)}
        assert requests(service) == 1
        at = store.entries[KEY]["at"]
        assert mentions(log(), f"Try 1 ({at})", f"run 1001, {link(service, 1001)}.", "Returning")

    @pytest.mark.parametrize(
        "changed", [{"inputs": {"a": 2}}, {"flow_id": "demo-flow"}, {"inputs": {"a": object()}}, {}]
    )
    def test_a_later_try_says_that_the_inputs_have_changed(self, service, store, context, log, changed):
        first = trigger().execute(context(store))
        assert trigger(**changed).execute(context(store, try_number=2)) == first
        assert mentions(log(), "inputs", "flow_id", "try 1,") == (
            changed in ({"inputs": {"a": 2}}, {"flow_id": "demo-flow"})
        )
        assert requests(service) == 1

    def test_what_is_not_known_is_left_out(self, service, store, context, log):
        service.faults.add("response", body={"accepted": True})
        first = trigger().execute(context(store))
        second = trigger().execute(context(store, try_number=2))

        assert first == second == {"flow_id": "demo-flow", "response": {"accepted": True}}
        assert requests(service) == 1
        assert mentions(log(), "Try 1", "without a run_id", "Returning")

    def test_a_run_without_a_link(self, service, store, context):
        service.faults.add("response", body={"run_id": 7})
        now = context(store)

        assert trigger().execute(now) == {"run_id": "7", "flow_id": "demo-flow"}
        assert now["ti"].pushed == {}

    @pytest.mark.parametrize("lost", [1, 3])
    @pytest.mark.parametrize("again", [{"try_number": 2}, {"task_reschedule_count": 1}])
    def test_a_404_for_the_record_starts_no_second_run(self, service, store, context, again, lost):
        first = trigger().execute(context(store))
        store.lost = [KEY] * lost
        now = context(store, try_number=again.get("try_number", 1))

        assert trigger().execute({**now, **again}) == first
        assert requests(service) == 1
        assert store.entries.keys() == {KEY}

    def test_a_store_that_forgets_starts_no_second_run(self, service, store, context):
        trigger().execute(context(store))
        store.lost = [KEY, KEY, "workflow_automation_probe"]
        with pytest.raises(RuntimeError, match="task state store"):
            trigger().execute(context(store, try_number=2))
        assert requests(service) == 1
        assert trigger().execute(context(store, try_number=2))["run_id"] == "1001"

    def test_a_run_id_forges_no_line_of_the_log(self, service, store, context, log):
        service.faults.add("response", body={"run_id": "1\nStarted run 2: x", "run_link": "http://a\nb"})
        run = trigger().execute(context(store))
        assert run["run_id"] == "1\nStarted run 2: x"
        trigger().execute(context(store, try_number=2))
        assert not any(line.startswith(("Started run 2", "b")) for line in log().splitlines())

    def test_a_404_for_the_run_that_was_entered(self, service, store, context):
        store.set("workflow_automation_run", {"run_id": "77"})
        store.lost = ["workflow_automation_run"]
        assert trigger().execute(context(store, try_number=2)) == {"run_id": "77"}
        assert requests(service) == 0

    def test_a_start_of_unknown_outcome_is_not_repeated(self, service, store, context):
        service.faults.add("drop_after")
        errors = []
        for try_number in (1, 2):
            with pytest.raises(OutcomeUnknownError, match=MAYBE) as caught:
                trigger().execute(context(store, try_number=try_number))
            errors.append(caught.value)
            assert isinstance(caught.value, AirflowFailException)
            assert (caught.value.code, caught.value.conn_id) == (
                "start-unknown",
                "workflow_automation_default",
            )
            assert how_to_continue() in caught.value.next_step
        assert f"Try 1 ({store.entries[KEY]['at']})" in errors[1].message
        assert requests(service) == 1

    def test_a_run_of_unknown_id_is_not_started_again(self, service, store, context):
        service.faults.add("garbage")
        errors = []
        for try_number in (1, 2):
            with pytest.raises(UnidentifiedError, match="not JSON") as caught:
                trigger(flow_id="demo-flow").execute(context(store, try_number=try_number))
            errors.append(caught.value)
            assert isinstance(caught.value, AirflowFailException)
            assert (caught.value.code, caught.value.flow_id) == ("unidentified", "demo-flow")
            assert how_to_continue() in caught.value.next_step
        assert errors[0].message in errors[1].message
        assert f"Try 1 ({store.entries[KEY]['at']})" in errors[1].consequence
        assert requests(service) == 1

    @pytest.mark.parametrize("status", [408, 503])
    def test_a_gateway_that_asks_to_retry_later_gets_no_second_run(self, service, store, context, status):
        """As Varnish does, if the service failed after the request was forwarded to it."""
        service.faults.add("status_after", status=status, headers={"Retry-After": "1"})
        with pytest.raises(OutcomeUnknownError, match=MAYBE) as caught:
            trigger(send_retry_timeout=30).execute(context(store))
        assert isinstance(caught.value, AirflowFailException)
        assert requests(service) == 1

    def test_start_again_accepts_a_second_run(self, service, store, context, log):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError, match=MAYBE) as caught:
            trigger(on_unknown_start="start_again").execute(context(store))
        assert not isinstance(caught.value, AirflowFailException)
        assert requests(service) == 1
        result = trigger(on_unknown_start="start_again").execute(context(store, try_number=2))

        assert result["run_id"] == "1002"
        assert mentions(log(), "Try 1", MAYBE, "on_unknown_start", "'start_again'")
        assert store.entries[KEY]["result"] == result

    def test_a_doubt_outlives_a_try_that_started_nothing(self, service, store, context, log):
        service.faults.add("drop_after")
        service.faults.add("busy", retry_after="0")
        with pytest.raises(OutcomeUnknownError):
            trigger(on_unknown_start="start_again").execute(context(store))
        with pytest.raises(BusyError):
            trigger(on_unknown_start="start_again").execute(context(store, try_number=2))
        assert mentions(log(), "no run", "earlier try")
        with pytest.raises(AirflowFailException, match=MAYBE):
            trigger().execute(context(store, try_number=3))

    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            (("reject", {}), AirflowFailException),
            (("busy", {"status": 429}), BusyError),
            (("busy", {"status": 425, "retry_after": "0"}), BusyError),
        ],
    )
    def test_nothing_started_leaves_nothing_behind(self, service, store, context, log, fault, error):
        kind, options = fault
        service.faults.add(kind, **options)
        with pytest.raises(error):
            trigger().execute(context(store))
        assert store.entries == {}
        assert "earlier try" not in log()

        assert trigger().execute(context(store, try_number=2))["run_id"] == "1001"

    def test_without_a_store_the_log_says_what_that_means(self, service, context, log):
        assert trigger().execute(context())["run_id"] == "1001"
        assert log().count("before Airflow 3.3") == 1

    @pytest.mark.parametrize(
        ("flow_id", "of_connection", "named"),
        [
            (None, None, "the flow of the API key"),
            (None, "demo-flow", "flow demo-flow"),
            ("a", "b", "flow a"),
        ],
    )
    def test_before_the_record_the_log_has_word_of_the_run(
        self, service, workflow_automation_connect, store, context, log, flow_id, of_connection, named
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


class TestBeforeTheRequest:
    """What goes wrong before anything is sent leaves no word of a run."""

    def check_nothing_happened(self, service, store, log):
        assert (store.writes, store.entries, requests(service)) == ([], {}, 0)
        assert MAYBE.lower() not in log().lower()

    def test_inputs_that_cannot_be_read(self, service, store, context, log):
        class Unreadable(dict[str, object]):
            def items(self):
                raise ConnectionError("The XCom backend is not there")

        with pytest.raises(ConnectionError):
            trigger(inputs=Unreadable(a=1)).execute(context(store))
        self.check_nothing_happened(service, store, log)


@pytest.mark.parametrize("is_set_later", [False, True])
def test_a_flow_is_triggered_by_its_path(service, store, context, is_set_later):
    operator = trigger() if is_set_later else trigger(flow_id="demo-flow")
    operator.flow_id = "demo-flow"
    operator.execute(context(store))
    assert [(run.by, run.flow_id) for run in service.runs] == [("path", "demo-flow")]


class TestAfterTheStart:
    """A run that was started is worth more than anything that could fail after."""

    def test_a_link_that_cannot_be_stored(self, service, store, context, log):
        now = context(store, push_error=RuntimeError("No database"))
        assert trigger().execute(now)["run_id"] == "1001"
        assert mentions(log(), "link", "could not be stored")

    def test_a_record_that_cannot_be_completed(self, service, store, context, log):
        store.failures["set started"] = 2
        assert trigger().execute(context(store))["run_id"] == "1001"
        assert mentions(log(), "Run 1001", "not be recorded", MAYBE.lower())
        assert (store.entries[KEY]["state"], store.entries[KEY]["result"]) == ("starting", {})

    def test_a_record_that_cannot_tell_of_a_run_without_an_id(self, service, store, context, log):
        service.faults.add("garbage")
        store.failures["set unidentified"] = 1
        with pytest.raises(AirflowFailException, match="not JSON"):
            trigger().execute(context(store))
        assert "record could not be completed" in log()
        assert store.entries[KEY]["state"] == "starting"

    def test_a_record_that_is_taken_back_at_the_second_attempt(self, service, store, context, log):
        service.faults.add("reject")
        store.failures["delete"] = 1
        with pytest.raises(AirflowFailException, match="400"):
            trigger().execute(context(store))
        assert store.entries == {}
        assert "not be recorded" not in log()


class TestInterrupted:
    @pytest.mark.parametrize("in_doubt", [False, True])
    def test_before_the_request_it_leaves_no_doubt_of_its_own(
        self, service, store, context, log, full_connection, in_doubt
    ):
        """The service cannot be reached yet: no run can have been started by this try."""
        operator = {"on_unknown_start": "start_again"}
        if in_doubt:
            service.faults.add("drop_after")
            with pytest.raises(OutcomeUnknownError):
                trigger(**operator).execute(context(store))
        with interrupted(1):
            trigger(**operator, flow_id="a", workflow_automation_conn_id=full_connection).execute(
                context(store, try_number=2)
            )
        assert store.writes[-1][1] == "starting"
        assert [entry["state"] for entry in store.entries.values()] == (["starting"] if in_doubt else [])
        assert mentions(log(), "no run", "earlier try") == in_doubt
        assert "Interrupted" not in log()

    def test_while_the_run_is_recorded_it_is_recorded_all_the_same(self, service, store, context):
        real = store.set

        def interrupted_once(key, value, **options):
            if value["state"] == "started":
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

    def test_while_it_waits(self, service, store, context, log):
        fault = service.faults.add("busy", retry_after="30", times=None)
        operator = trigger(send_retry_timeout=120)
        ending = threading.Thread(target=lambda: (self.wait_for(fault), operator.on_kill()))
        ending.start()
        began = time.monotonic()
        with pytest.raises(BusyError) as caught:
            operator.execute(context(store))
        ending.join()

        assert time.monotonic() - began < 15
        assert requests(service) == 1
        assert "Airflow retries" not in str(caught.value), "which nobody knows of an ended task"
        assert store.entries == {}
        assert "nothing more is sent" in log()

    def wait_for(self, fault):
        while not fault.struck:
            time.sleep(0.01)
        time.sleep(0.3)  # until the response was read

    def test_before_it_began(self, service, store, context):
        operator = trigger(send_retry_timeout=120)
        operator.on_kill()
        began = time.monotonic()
        with pytest.raises(NotSentError) as caught:
            operator.execute(context(store))

        error = caught.value
        assert (error.code, error.conn_id, error.flow_id) == (
            "not-sent",
            "workflow_automation_default",
            "demo-flow",
        )
        assert store.writes == []
        assert time.monotonic() - began < 15
        assert requests(service) == 0
        assert store.entries == {}

    def test_its_hook_sends_nothing_either(self, service):
        operator = trigger()
        with operator.hook as hook:
            operator.on_kill()
            with pytest.raises(NotSentError, match="task was ended"):
                hook.trigger_flow({})
        assert requests(service) == 0

    def test_by_a_signal(self, service, store, context):
        """As Airflow does it: the handler runs in the thread that waits."""
        service.faults.add("busy", retry_after="30", times=None)
        operator = trigger(send_retry_timeout=120)
        before = signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
        timer = threading.Timer(1, signal.raise_signal, [signal.SIGTERM])
        timer.start()
        try:
            began = time.monotonic()
            with pytest.raises(BusyError):
                operator.execute(context(store))
        finally:
            timer.cancel()
            signal.signal(signal.SIGTERM, before)
        assert time.monotonic() - began < 15
        assert requests(service) == 1


ALREADY = "already executed"


class TestTwice:
    """Executed again in the same try, as by a subclass, and in the next."""

    def test_the_same_operator_twice_is_rejected_in_a_later_try_as_well(self, service, store, context):
        trigger().execute(context(store))
        operator, now = trigger(), context(store, try_number=2)
        assert operator.execute(now)["run_id"] == "1001"
        with pytest.raises(AirflowFailException, match=ALREADY):
            operator.execute(now)

    def test_not_even_if_it_started_nothing(self, service, store, context):
        operator, now = trigger(), context(store)
        service.faults.add("reject")
        with pytest.raises(RejectedError):
            operator.execute(now)
        with pytest.raises(AirflowFailException, match=ALREADY):
            operator.execute(now)
        assert requests(service) == 1

    def test_a_rescheduled_task_is_executed_again_in_the_same_try(self, service, store, context):
        """With the same number and the same id, as dag.test() does it in one process on Airflow 3.4."""
        service.faults.add("drop_after")
        service.faults.add("busy")
        operator = {"on_unknown_start": "start_again"}
        with pytest.raises(OutcomeUnknownError):
            trigger(**operator).execute(context(store))
        with pytest.raises(BusyError):
            trigger(**operator).execute(context(store, try_number=2))
        assert trigger(**operator).execute(context(store, try_number=2))["run_id"] == "1002"

    def test_without_a_store_it_is_executed_once_in_a_try(self, service, context):
        operator, now = trigger(), context()
        assert operator.execute(now)["run_id"] == "1001"
        with pytest.raises(InvalidRequestError, match=ALREADY):
            operator.execute(now)
        assert operator.execute(context(try_number=2))["run_id"] == "1002"
