"""
What a task ends with because of its earlier tries, its run or a person: each once, in golden/run_errors.txt.

With the class of the error, whether a run was started and Airflow may retry the task, how many requests were sent, and
how many entries there are.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import Accepted, WorkflowAutomationError
from workflow_automation_provider.execution.ledger import ENTERED
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once

from ..starts import before, claims, later, requests, trigger, waits

GOLDEN = Path(__file__).parents[1] / "golden" / "run_errors.txt"
"""Renewed by ``GOLDEN=1`` in the environment of these tests: read the difference before it is committed."""

FILES = [{"name": "a"}]


def upload(run_id="1001", **options):
    return UploadFilesOperator(task_id="trigger", run_id=run_id, files=FILES, send_retry_timeout=0, **options)


def batch(items, **options):
    return TriggerFlowBatchOperator(task_id="trigger", batch=items, **options)


class Tries:
    """A task instance whose tries are executed one after another, whatever they end with."""

    def __init__(self, request):
        self.fixture = request.getfixturevalue
        self.store, self.service = self.fixture("store"), self.fixture("service")
        self.left = lambda: (requests(self.service), len(self.store.entries))
        self.number = 0

    def next(self, **options):
        self.number += 1
        return self.fixture("context")(self.store, try_number=self.number, **options)

    def fails(self, operator, **options):
        operator.execute(self.next(**options))

    def fails_again(self, operator, fault, operation=None, **options):
        """Fail because of what the try before left."""
        self.service.faults.add(fault, operation=operation)
        with pytest.raises(Exception):  # noqa: B017, PT011 - a case is about the next try
            operator.execute(self.next())
        operator.execute(self.next(**options))

    def starts(self, *names, **options):
        now = self.next(task_id="customers")
        for name in names:
            trigger_flow_once(name, context=now, **{"send_retry_timeout": 0, **options})

    def starts_in_turn(self, *faults, then=None, **options):
        """Start a run by a name in each of several tries, with a fault; the last one has other options."""
        for number, fault in enumerate(faults, start=1):
            if fault:
                self.service.faults.add(fault)
            if number < len(faults):
                with contextlib.suppress(WorkflowAutomationError):
                    self.starts("ada", **options)
        self.starts("ada", **{**options, **(then or {})})


def executed_twice(tries):
    now = tries.next()
    for _ in range(2):
        trigger().execute(now)


def supplied(tries):
    tries.number = 1
    tries.store.entries[ENTERED] = {"run": "77"}
    tries.fails(trigger())


def forgets(tries):
    tries.fails(trigger())
    tries.store.lost = ["workflow_automation_start/1/0", "workflow_automation_probe"]
    tries.fails(trigger())


def without_a_value(tries):
    operator = trigger()
    operator.flow_id = "None"
    tries.fails(operator)


def inputs_of_a_list(tries):
    operator = waits()
    operator.inputs = ["a"]
    tries.fails(operator)


def files_for_no_run_id(tries):
    tries.service.faults.add("response", body={})
    tries.fails(trigger(files=FILES))


def other_items(tries):
    for number in (1, 2):
        tries.fails(batch([{"number": number}]))


def with_settings(operator, **settings):
    """Return a case: a task where these environment variables are set."""

    def case(tries):
        for name, value in settings.items():
            tries.fixture("monkeypatch").setenv(name, value)
        tries.fails(operator)

    return case


def connection(**extra):
    """Return the variable of a connection to a service that is elsewhere."""
    fields = {"conn_type": "workflow_automation", "host": "https://service.example/api", "extra": extra}
    return {"AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT": json.dumps(fields)}


def in_world(operator, *steps, fault=None):
    """Return a case: the error of a task in a database after its first try, and these steps."""

    def case(tries):
        task = tries.fixture("world")(operator)
        tries.left = lambda: (len(task.requests), len(task.rows.entries))
        task.faults.add(fault) if fault else None
        task.try_()
        for step in steps:
            step(task)
        raise task.last.error

    return case


def tries_again(task):
    task.try_()


def enters(run_id=None):
    """Return a step: a person enters a run, by default the task's own, and clears the task."""

    def step(task):
        task.mark("failed")
        task.enter(run_id or task.flow.runs[0].run_id)
        task.clear()
        task.until_end()

    return step


def cleared(task):
    task.mark("failed")
    task.clear()


def doubts(task):
    task.faults.add("drop_after")
    task.try_()


def claimed(run_id=True):
    """Return a step: the first run claims its start."""
    return lambda task: task.flow.says("started", 0, run_id=run_id)


def marked(task):
    task.try_(before("get", "workflow_automation_frozen/", lambda: task.mark("failed")))


def waits_only_now(task):
    task.operator = waits()


def broken_connection(tries):
    def breaks(task):
        task.flow.says("success", result=3)
        for name, value in connection(typo=1).items():
            tries.fixture("monkeypatch").setenv(name, value)

    in_world(waits(), breaks, tries_again)(tries)


CASES: dict[str, Callable[[Tries], object]] = {
    "an earlier try is in doubt": lambda tries: tries.fails_again(trigger(), "drop_after"),
    "an earlier try started a run without a known id": lambda tries: tries.fails_again(trigger(), "garbage"),
    "a name with other inputs": lambda tries: tries.starts_in_turn(None, None, then={"inputs": {"a": 1}}),
    "a name with another flow after a run without a known id": lambda tries: tries.starts_in_turn(
        "garbage", None, then={"flow_id": "demo-flow"}
    ),
    "a name with a wrong argument after a doubt": lambda tries: tries.starts_in_turn(
        "drop_after", None, then={"on_unknown_start": "start_again", "send_retry_timeout": -1}
    ),
    "a name that was rejected after a doubt": lambda tries: tries.starts_in_turn(
        "drop_after", "reject", on_unknown_start="start_again"
    ),
    "a name that was rejected, and a doubt before it": lambda tries: tries.starts_in_turn(
        "drop_after", "reject", None, on_unknown_start="start_again", then={"on_unknown_start": "fail"}
    ),
    "a name that was used": lambda tries: tries.starts("ada", "ada"),
    "a name of two lines": lambda tries: tries.starts("a\nb"),
    "an operator that was executed": executed_twice,
    "an operator inside a task": lambda tries: tries.fails(trigger(task_id="ada"), task_id="customers"),
    "an entered run that is none": supplied,
    "a store that forgets": forgets,
    "a template that was not rendered": lambda tries: tries.fails(trigger(flow_id="{{ ds }}")),
    "a template without a value": without_a_value,
    "a connection id that is none": lambda tries: tries.fails(trigger(workflow_automation_conn_id=None)),
    "an upload for a result without a run_id": lambda tries: tries.fails(upload({"flow_id": "demo-flow"})),
    "an upload for several results": lambda tries: tries.fails(upload([{"run_id": "1001"}])),
    "an upload for the text of a result": lambda tries: tries.fails(upload("{'run_id': '1001'}")),
    "files for a run without an id": files_for_no_run_id,
    "a batch that changed": other_items,
    "an output_path that is a folder": lambda tries: tries.fails(batch([], output_path="/")),
    "a wait without a store": lambda tries: waits().execute(tries.fixture("context")()),
    "a wait with entries that are deleted": with_settings(
        waits(), AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS="True"
    ),
    "a claim with another store": with_settings(claims(), AIRFLOW__STATE_STORE__BACKEND="their.Backend"),
    "a wait with another store of workers": with_settings(
        waits(), AIRFLOW__WORKERS__STATE_STORE_BACKEND="their.Backend"
    ),
    "a callback URL without a base": with_settings(waits(), AIRFLOW__API__BASE_URL=""),
    "a callback URL that is none": with_settings(waits(), AIRFLOW__API__BASE_URL="ftp://airflow.example"),
    "an Airflow that only this machine reaches": with_settings(
        waits(), AIRFLOW__API__BASE_URL="http://127.0.0.1", **connection()
    ),
    "a callback_base_url that only this machine reaches": with_settings(
        waits(), **connection(callback_base_url="http://127.0.0.1")
    ),
    "inputs that are a list": inputs_of_a_list,
    "inputs with the name of the callback URL": lambda tries: tries.fails(
        waits(inputs={"callback_url": "mine"})
    ),
    "the flow says failed": in_world(
        waits(), lambda task: task.flow.says("failed", message="No rows"), tries_again
    ),
    "nobody says how the run ended": in_world(waits(), lambda task: later(task, days=1), tries_again),
    "the run says nothing more": in_world(
        waits(heartbeat_timeout=timedelta(minutes=1)), lambda task: later(task, minutes=3), tries_again
    ),
    "no run claimed its start": in_world(claims(), fault="drop_after"),
    "no run claimed its start in the last try": in_world(claims(retries=0), fault="drop_after"),
    "a doubt that was closed": in_world(waits(), fault="drop_after"),
    "a task that a person marked": in_world(claims(), marked, fault="drop_after"),
    "an entered run while another has the task": in_world(waits(), claimed(), enters("77")),
    "an entered run that was told to stop": in_world(waits(), claimed(), claimed("77"), enters("77")),
    "an entered run of a start that was told to stop": in_world(waits(), cleared, claimed(), enters()),
    "an entered run that is not that of the last start": in_world(waits(), enters("77")),
    "an entered run of an earlier start": in_world(waits(), cleared, doubts, enters()),
    "an entered run of an earlier start in doubt": in_world(
        waits(on_unknown_start="start_again"), doubts, enters(), fault="drop_after"
    ),
    "an entered run that cannot be waited for": in_world(trigger(), waits_only_now, enters("77")),
    "a connection that broke while the task waited": broken_connection,
}


def expected():
    """Return the texts of the golden file, by the name of the case."""
    parts = re.split(r"^## (.+)\n", GOLDEN.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))


def renew(name, text):
    texts = {**(expected() if GOLDEN.exists() else {}), name: text}
    GOLDEN.write_text("\n\n".join(f"## {one}\n{texts[one]}" for one in CASES if one in texts) + "\n")


@pytest.mark.parametrize("name", CASES)
def test_words(request, name):
    tries = Tries(request)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is in the file
        CASES[name](tries)
    accepted = getattr(caught.value, "accepted", Accepted.NO).name
    retry = "no retry" if isinstance(caught.value, AirflowFailException) else "retry"
    text = "{}, accepted: {}, {}, requests: {}, entries: {}\n{}".format(
        type(caught.value).__name__, accepted, retry, *tries.left(), caught.value
    )
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://service", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "TIME", text)
    if os.environ.get("GOLDEN"):
        renew(name, text)
    assert text == expected()[name]


def test_no_other_words():
    assert expected().keys() == CASES.keys()
