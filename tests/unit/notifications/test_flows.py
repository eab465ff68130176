"""``FlowNotifier`` called with a context: what it starts, what it logs, how long it takes, and that it never raises."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG

from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.notifications.flows import FlowNotifier

from ..starts import MAYBE, interrupted, requests

NO_RUN = "No run was started."


@pytest.fixture
def now():
    return {"dag": DAG("orders", schedule=None), "event": "failed"}


def inputs_of(service):
    return [run.inputs for run in service.runs]


def join_threads():
    for thread in threading.enumerate():
        if thread.name == "FlowNotifier":
            thread.join(10)


@pytest.fixture
def slow(monkeypatch):
    """Have a step of the hook take longer, before or after it is done."""

    def make(step, seconds, *, after=False):
        real = getattr(WorkflowAutomationHook, step)

        def late(self, *arguments, **options):
            if not after:
                time.sleep(seconds)
            found = real(self, *arguments, **options)
            if after:
                time.sleep(seconds)
            return found

        monkeypatch.setattr(WorkflowAutomationHook, step, late)

    return make


class TestStart:
    def test_by_key(self, service, now, log):
        assert FlowNotifier({"event": "{{ event }}", "deep": [{"of": "{{ dag.dag_id }}"}]})(now) is None
        (run,) = service.runs
        assert run.by == "key"
        assert run.inputs == {"event": "failed", "deep": [{"of": "orders"}]}
        assert f"Started run 1001: {service.url}/runs/1001" in log()

    def test_another_connection(self, workflow_automation_service, workflow_automation_connect, now):
        workflow_automation_connect("failed_flows")
        FlowNotifier({}, workflow_automation_conn_id="{{ event }}_flows")(now)
        assert len(workflow_automation_service.runs) == 1

    def test_each_call_has_its_own_context_and_run(self, service, now):
        """As documented: there is no record of callbacks."""
        notifier = FlowNotifier({"event": "{{ event }}"})
        notifier(now)
        notifier({**now, "event": "again"})
        assert inputs_of(service) == [{"event": "failed"}, {"event": "again"}]
        assert notifier.inputs == {"event": "{{ event }}"}

    def test_the_context_stays_as_it_is(self, service, now):
        """Airflow passes that of an ``on_execute_callback`` on to the task."""
        before = {**now}
        FlowNotifier({"flow": "{{ flow_id }}"}, "demo-flow")(now)
        assert inputs_of(service) == [{"flow": "demo-flow"}]
        assert now == before

    def test_of_an_sla_miss(self, service):
        """Airflow 2 passes five arguments, later versions would pass four."""
        notifier = FlowNotifier({"dag": "{{ dag.dag_id }}", "missed": "{{ blocking_task_list }}"})
        takes_slas = find_spec("airflow.sdk") is None
        notifier(DAG("orders", schedule=None), "tasks", "blocked", *(["slas"] if takes_slas else []), ["ti"])
        assert inputs_of(service) == [{"dag": "orders", "missed": "blocked"}]

    def test_of_a_dag_in_its_serialized_form(self, service):
        """As dag.test() has it on Airflow 3."""

        class Serialized:
            render_template_as_native_obj = False
            dag_id = "orders"

        FlowNotifier({"dag": "{{ dag.dag_id }}"})({"dag": Serialized()})
        assert inputs_of(service) == [{"dag": "orders"}]


class TestRetries:
    def test_a_busy_service(self, service, now, log):
        service.faults.add("busy", retry_after=0)
        FlowNotifier({}, timeout=20)(now)
        assert (requests(service), len(service.runs)) == (2, 1)
        assert "Retrying in" in log()

    def test_no_longer_than_the_timeout(self, service, now, log):
        service.faults.add("busy", retry_after=1, times=None)
        FlowNotifier({}, timeout=3)(now)
        assert requests(service) >= 2
        assert "[busy]" in (text := log())
        assert NO_RUN in text

    @pytest.mark.parametrize("fault", ["drop_after", "garbage"])
    def test_not_if_a_run_may_have_been_started(self, service, now, log, fault):
        service.faults.add(fault)
        FlowNotifier({}, "demo-flow")(now)
        assert requests(service) == 1
        text = log()
        assert "FlowNotifier: " in text
        assert "[start-unknown]" in text or "[run-unidentified]" in text
        assert "Connection: workflow_automation_default\nFlow: demo-flow" in text

    def test_not_if_it_was_rejected(self, service, now, log):
        service.faults.add("reject", body={"error": "No such input"})
        FlowNotifier({})(now)
        assert requests(service) == 1
        assert "No such input" in (text := log())
        assert NO_RUN in text


class TestTime:
    @pytest.mark.parametrize("fault", ["hang_after", "drip"])
    def test_no_response(self, service, now, log, fault):
        service.faults.add(fault, seconds=30)
        began = time.monotonic()
        FlowNotifier({}, timeout=0.7)(now)
        assert time.monotonic() - began < 15
        text = log()
        assert "FlowNotifier: [start-unknown] " in text
        assert MAYBE in text
        assert "Connection: workflow_automation_default" in text
        assert requests(service) == 1

    def test_no_connection(self, full_connection, now, log):
        began = time.monotonic()
        FlowNotifier({}, "f", full_connection, timeout=0.7)(now)
        assert time.monotonic() - began < 15
        assert "FlowNotifier: [not-sent] " in (text := log())
        assert f"{NO_RUN}\nConnection: full" in text

    def test_the_timeout_of_the_connection_holds_as_well(
        self, workflow_automation_service, workflow_automation_connect, now, log
    ):
        workflow_automation_connect(extra={"timeout": 0.3})
        workflow_automation_service.faults.add("hang_after", seconds=30)
        began = time.monotonic()
        FlowNotifier({})(now)
        assert time.monotonic() - began < 15
        assert "[start-unknown]" in log()

    def test_a_late_response_is_logged_as_well(self, service, now, log):
        service.faults.add("delay", seconds=1.2)
        FlowNotifier({}, timeout=0.2)(now)
        assert MAYBE in log()
        join_threads()
        assert f"Started run 1001: {service.url}/runs/1001" in log()

    def test_a_late_rejection_is_logged_as_well(self, service, now, log, slow):
        """It settles what was unknown."""
        slow("send_trigger", 1, after=True)
        service.faults.add("reject")
        FlowNotifier({}, timeout=0.2)(now)
        assert "[start-unknown]" in log()
        join_threads()
        assert "[rejected]" in log()

    def test_what_is_never_sent_is_logged_once(self, service, now, log, slow):
        slow("send_trigger", 1)
        FlowNotifier({}, timeout=0.2)(now)
        join_threads()
        assert log().count("FlowNotifier: [not-sent]") == 1
        assert requests(service) == 0

    def test_nothing_is_sent_once_it_is_over(self, service, now, log, slow):
        """Because reading the connection took too long."""
        slow("prepare_trigger", 0.6)
        FlowNotifier({}, timeout=0.5)(now)
        assert "[not-sent]" in log()
        time.sleep(0.3)
        assert requests(service) == 0

    def test_rendering_does_not_count(self, service, now):
        def slow():
            time.sleep(0.6)
            return "rendered"

        now["slow"] = slow
        FlowNotifier({"a": "{{ slow() }}"}, timeout=0.5)(now)
        assert inputs_of(service) == [{"a": "rendered"}]

    def test_not_even_the_rest_of_a_request(self, service, now, log, monkeypatch):
        real = WorkflowAutomationHook.send_trigger

        def slow(self, request, *, before_last_byte):
            def hand_over():
                time.sleep(0.6)
                before_last_byte()

            return real(self, request, before_last_byte=hand_over)

        monkeypatch.setattr(WorkflowAutomationHook, "send_trigger", slow)
        FlowNotifier({}, timeout=0.5)(now)
        assert "[not-sent]" in log()
        time.sleep(0.3)
        assert service.runs == []

    def test_interrupted(self, service, now, log):
        """As by the timeout of Airflow: the interruption goes on, and what is known is logged."""
        service.faults.add("hang_after", seconds=5)
        with interrupted(0.7):
            FlowNotifier({}, timeout=20)(now)
        assert MAYBE in log()
        assert len(service.runs) == 1

    def test_interrupted_twice(self, service, now, log):
        """The request that is under way is logged nevertheless."""
        service.faults.add("hang_after", seconds=1.5)
        with interrupted(0.7, again=0.1):
            FlowNotifier({}, timeout=20)(now)
        join_threads()
        assert "[start-unknown]" in log()


class WithoutTextError(PermissionError):
    def __str__(self):
        raise RuntimeError("no text")


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"inputs": {"a": {1}}}, "inputs.a is a set"),
            ({"inputs": "{{ event }}"}, "inputs is a str"),
            ({"inputs": {"a": "{{ missing.attribute }}"}}, "UndefinedError: 'missing' is undefined\n"),
            ({"inputs": {"a": "{{ 1 / 0 }}"}}, "ZeroDivisionError in "),
            ({"inputs": {}, "flow_id": "{{ none }}"}, "flow_id is 'None'"),
            ({"inputs": {}, "flow_id": ""}, "flow_id is ''"),
            ({"inputs": {}, "workflow_automation_conn_id": "missing"}, "`missing`"),
            (
                {"inputs": {}, "workflow_automation_conn_id": "{{ none }}"},
                "workflow_automation_conn_id is 'None'",
            ),
        ],
    )
    def test_are_logged(self, service, now, log, arguments, words):
        FlowNotifier(**arguments)(now)
        text = log()
        assert "FlowNotifier: " in text
        assert words in text
        assert NO_RUN in text or "Nothing was sent" in text
        assert requests(service) == 0

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            # As in an executor's callback on Airflow 3.3.
            (PermissionError("Access denied"), "PermissionError: Access denied"),
            # As one whose message is made when it is asked for, of what is gone by then.
            (WithoutTextError("never seen"), "WithoutTextError"),
        ],
    )
    def test_of_a_connection_that_may_not_be_read(self, service, now, log, monkeypatch, error, words):
        def deny(*_, **__):
            raise error

        monkeypatch.setattr(WorkflowAutomationHook, "get_connection", deny)
        FlowNotifier({})(now)
        assert f"FlowNotifier: {words}" in (text := log())
        assert "never seen" not in text

    @pytest.mark.parametrize(
        ("step", "is_sent"), [("prepare_trigger", False), ("send_trigger", False), ("send_trigger", True)]
    )
    def test_unexpected_ones_do_not_show_what_they_quote(self, service, now, log, monkeypatch, step, is_sent):
        real = getattr(WorkflowAutomationHook, step)

        def fail(*arguments, **options):
            if is_sent:
                real(*arguments, **options)
            raise ValueError("secret")

        monkeypatch.setattr(WorkflowAutomationHook, step, fail)
        FlowNotifier({})(now)
        text = log()
        assert "FlowNotifier: ValueError in fail (" in text
        assert (MAYBE if is_sent else NO_RUN) in text
        assert "secret" not in text

    def test_a_connection_that_cannot_be_read(self, now, log, monkeypatch):
        monkeypatch.setenv("AIRFLOW_CONN_BROKEN", '{"password": "the-key", ')
        FlowNotifier({}, workflow_automation_conn_id="broken")(now)
        text = log()
        assert "FlowNotifier: " in text
        assert "the-key" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"inputs": None}, "inputs is None"),
        *(({"inputs": {}, "timeout": value}, "timeout is") for value in (0, -1, True, "5", None, 604801)),
    ],
)
def test_wrong_arguments_are_errors_when_the_dag_is_parsed(arguments, words):
    with pytest.raises(ValueError, match=words):
        FlowNotifier(**arguments)


asynchronous = pytest.mark.skipif(
    not hasattr(FlowNotifier.__mro__[1], "__await__"), reason="Before Airflow 3.1 notifiers cannot be awaited"
)

# What a deadline alert passes: no DAG, and the DAG run as JSON.
DEADLINE = {"dag_run": {"dag_id": "orders", "dag_run_id": "manual"}, "deadline": {"id": "7"}}
ALERT: dict[str, Any] = {"inputs": {"late": "{{ dag_run.dag_id }}/{{ dag_run.dag_run_id }}"}, "timeout": 10}


@asynchronous
class TestAsync:
    def test_start(self, service, log):
        context: dict[str, Any] = {**DEADLINE}

        async def main():
            await FlowNotifier(**ALERT, context=context)

        asyncio.run(main())
        assert inputs_of(service) == [{"late": "orders/manual"}]
        assert "Started run 1001" in log()
        assert context == DEADLINE

    def test_the_loop_goes_on(self, service):
        service.faults.add("delay", seconds=1)
        ticks = []

        async def tick():
            while True:
                ticks.append(time.monotonic())
                await asyncio.sleep(0.05)

        async def main():
            ticking = asyncio.create_task(tick())
            await FlowNotifier(**ALERT, context=DEADLINE)
            ticking.cancel()

        asyncio.run(main())
        assert len(ticks) > 5
        assert len(service.runs) == 1

    @pytest.mark.parametrize("fault", [None, "hang_after"])
    def test_it_neither_raises_nor_hangs(self, service, log, fault):
        inputs = {} if fault else {"a": "{{ missing.attribute }}"}
        if fault:
            service.faults.add(fault)

        async def main():
            began = time.monotonic()
            await FlowNotifier(inputs, timeout=0.7, context=DEADLINE)
            assert time.monotonic() - began < 15

        asyncio.run(main())
        assert "FlowNotifier: " in log()

    def test_a_deadline_alert_in_the_triggerer(self, service):
        # Airflow 3.1, and later versions
        kind, *_ = [name for name in ("deadline", "callback") if find_spec(f"airflow.triggers.{name}")]
        triggers = import_module(f"airflow.triggers.{kind}")
        trigger_class = getattr(triggers, "CallbackTrigger", None) or triggers.DeadlineCallbackTrigger
        alert = import_module(f"airflow.sdk.definitions.{kind}").AsyncCallback(FlowNotifier, kwargs=ALERT)
        kwargs = json.loads(json.dumps(alert.kwargs))

        async def main():
            trigger = trigger_class(alert.path, {**kwargs, "context": DEADLINE})
            return [event.payload["state"] async for event in trigger.run()]

        assert [str(state).lower() for state in asyncio.run(main())][-1].endswith("success")
        assert inputs_of(service) == [{"late": "orders/manual"}]

    def test_a_deadline_alert_in_an_executor(self, service, tmp_path):
        supervisor = pytest.importorskip(
            "airflow.sdk.execution_time.callback_supervisor",
            reason="Before Airflow 3.2 there are no such alerts",
        )
        import structlog

        alert = import_module("airflow.sdk.definitions.callback").SyncCallback(FlowNotifier, kwargs=ALERT)
        arguments = {
            "callback_path": alert.path,
            "callback_kwargs": {**alert.kwargs, "context": DEADLINE},
            "dag_rel_path": tmp_path,
            "bundle_path": None,
            "log": structlog.get_logger(),
        }
        taken = supervisor.execute_callback.__code__.co_varnames
        done = supervisor.execute_callback(
            **{name: value for name, value in arguments.items() if name in taken}
        )
        assert done == (True, None)
        assert inputs_of(service) == [{"late": "orders/manual"}]
