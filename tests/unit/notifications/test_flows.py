"""
``FlowNotifier`` called with a context.

What it starts, what it logs, and that it never raises.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from airflow.sdk import DAG

from sentences import MAYBE_STARTED, NOTHING_SENT
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.notifications.flows import FlowNotifier
from workflow_automation_provider.testing import DEMO_KEY

from ..starts import MAYBE, interrupted, mentions, requests

NO_RUN = "No run was started."


@pytest.fixture
def now():
    return {"dag": DAG("orders", schedule=None), "event": "failed"}


def test_a_run_is_started_with_what_is_rendered(
    workflow_automation_service, workflow_automation_connect, now, log
):
    workflow_automation_connect("failed_flows")
    inputs = {"event": "{{ event }}", "deep": [{"of": "{{ dag.dag_id }}"}]}
    assert FlowNotifier(inputs, workflow_automation_conn_id="{{ event }}_flows")(now) is None
    (run,) = workflow_automation_service.runs
    assert (run.by, run.inputs) == ("key", {"event": "failed", "deep": [{"of": "orders"}]})
    url = workflow_automation_service.url
    assert mentions(log(), f"{url}/runs/1001", "demo-flow")


def test_the_key_is_not_shown_as_the_flow(service, now, log):
    FlowNotifier({}, DEMO_KEY.value)(now)
    text = log()
    assert mentions(text, "flow_id", "API key")
    assert DEMO_KEY.value not in text
    assert requests(service) == 0


@pytest.mark.parametrize(
    ("flow_id", "extra", "named"),
    [
        (" {{ event }} ", {}, "flow: failed"),
        (None, {}, "flow: demo-flow"),
        (None, {"flow_id": None}, "flow: that of the API key"),
    ],
)
def test_each_line_names_the_flow(
    service, now, log, workflow_automation_connect, flow_id, extra, named
):
    workflow_automation_connect(extra=extra)
    FlowNotifier({}, flow_id)(now)
    lines = [line for line in log().splitlines() if "run may have" in line or "Started" in line]
    assert len([line for line in lines if f"({named})" in line]) >= 2
    service.faults.add("drop_after")
    FlowNotifier({}, flow_id)(now)
    if "key" not in named:
        assert named.capitalize() in log()


class TestOutcomes:
    @pytest.mark.parametrize(
        ("fault", "code", "consequence"),
        [
            ("drop_after", "start-unknown", MAYBE),
            ("garbage", "unidentified", MAYBE),
            ("busy", "busy", NO_RUN),
        ],
    )
    def test_are_logged_and_nothing_is_sent_again(
        self, service, now, log, fault, code, consequence
    ):
        service.faults.add(fault)
        FlowNotifier({}, "demo-flow")(now)
        assert requests(service) == 1
        text = log()
        assert f"FlowNotifier: [{code}] " in text
        assert consequence in text
        assert "Connection: workflow_automation_default\nFlow: demo-flow" in text

    def test_interrupted(self, service, now, log):
        """
        As by the timeout of Airflow.

        The interruption goes on, and a run that may be there is mentioned.
        """
        service.faults.add("hang_after", seconds=5)
        with interrupted(0.7):
            FlowNotifier({})(now)
        assert MAYBE_STARTED.lower() in log().lower()
        assert len(service.runs) == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"inputs": {"a": {1}}}, "inputs.a is a set"),
            ({"inputs": {"a": "{{ missing.attribute }}"}}, "UndefinedError.\n"),
            ({"inputs": {"a": "{{ 1 / 0 }}"}}, "ZeroDivisionError.\n"),
            ({"inputs": {}, "flow_id": "{{ none }}"}, "flow_id is 'None'"),
            ({"inputs": {1: 2}, "flow_id": "{{ event }}"}, "Flow: failed"),
            ({"inputs": {}, "workflow_automation_conn_id": "missing"}, "`missing`"),
        ],
    )
    def test_are_logged(self, service, now, log, arguments, words):
        FlowNotifier(**arguments)(now)
        text = log()
        assert "FlowNotifier: " in text
        assert words in text
        assert NO_RUN in text or NOTHING_SENT in text
        assert requests(service) == 0

    @pytest.mark.parametrize(
        ("step", "error", "said"),
        [
            # As in an executor's callback on Airflow 3.3.
            (
                "get_connection",
                PermissionError("Access denied"),
                f"PermissionError: Access denied\n{NO_RUN}",
            ),
            ("get_conn", ValueError("secret"), f"ValueError.\n{NO_RUN}"),
            ("trigger_flow", ValueError("secret"), f"ValueError.\n{MAYBE}"),
        ],
    )
    def test_unexpected_ones_do_not_show_what_they_quote(
        self, service, now, log, monkeypatch, step, error, said
    ):
        def fail(*_arguments, **_options):
            raise error

        monkeypatch.setattr(WorkflowAutomationHook, step, fail)
        FlowNotifier({}, "demo-flow")(now)
        text = log()
        assert f"FlowNotifier: {said}" in text
        assert "\nFlow: demo-flow" in text
        assert "secret" not in text


# What a deadline alert passes: no DAG, and the DAG run as JSON.
DEADLINE = {"dag_run": {"dag_id": "orders", "dag_run_id": "manual"}, "deadline": {"id": "7"}}
ALERT: dict[str, Any] = {"inputs": {"late": "{{ dag_run.dag_id }}/{{ dag_run.dag_run_id }}"}}


class TestAsync:
    def test_the_loop_goes_on(self, service):
        service.faults.add("delay", seconds=0.5)

        async def main():
            notified = asyncio.ensure_future(FlowNotifier(**ALERT, context={**DEADLINE}))
            ticks = 0
            while not notified.done():
                ticks += 1
                await asyncio.sleep(0.05)
            return ticks

        assert asyncio.run(main()) > 3
        assert len(service.runs) == 1

    def test_a_deadline_alert_in_the_triggerer(self, service):
        from airflow.sdk.definitions.callback import AsyncCallback
        from airflow.triggers.callback import CallbackTrigger

        alert = AsyncCallback(FlowNotifier, kwargs=ALERT)
        kwargs = json.loads(json.dumps(alert.kwargs))

        async def main():
            trigger = CallbackTrigger(alert.path, {**kwargs, "context": DEADLINE})
            return [event.payload["state"] async for event in trigger.run()]

        assert [str(state).lower() for state in asyncio.run(main())][-1].endswith("success")
        assert [run.inputs for run in service.runs] == [{"late": "orders/manual"}]

    def test_a_deadline_alert_in_an_executor(self, service, tmp_path):
        import structlog
        from airflow.sdk.definitions.callback import SyncCallback
        from airflow.sdk.execution_time import callback_supervisor as supervisor

        alert = SyncCallback(FlowNotifier, kwargs=ALERT)
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
        assert [run.inputs for run in service.runs] == [{"late": "orders/manual"}]
