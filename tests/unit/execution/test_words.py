"""What a task ends with because of its earlier tries, its run or a person: each once, in golden/run_errors.txt."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from workflow_automation_provider.execution.callback import end_key
from workflow_automation_provider.execution.errors import SUPPLIED_RUN_KEY
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once

from ..starts import KEY, TIMEOUT, trigger

GOLDEN = Path(__file__).parents[1] / "golden" / "run_errors.txt"
"""Renewed by ``GOLDEN=1`` in the environment of these tests: read the difference before it is committed."""

FILES = [{"name": "a"}]
WAIT = "workflow_automation_wait"


def upload(run_id="1001", **options):
    return UploadFilesOperator(task_id="trigger", run_id=run_id, files=FILES, send_retry_timeout=0, **options)


def batch(items, **options):
    return TriggerFlowBatchOperator(task_id="trigger", batch=items, **options)


class Tries:
    """A task instance whose tries are executed one after another, whatever they end with."""

    def __init__(self, request):
        self.fixture = request.getfixturevalue
        self.store, self.service = self.fixture("store"), self.fixture("service")
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

    def starts(self, *names, inputs=None):
        now = self.next(task_id="customers")
        for name in names:
            trigger_flow_once(name, inputs=inputs or {}, context=now)

    def waits(self, **options):
        self.fixture("endpoint")
        return self.fixture("waits")(**options)

    def parks(self, operator, event, change=lambda: None):
        """Park, and continue with an event after a change."""
        now = self.next()
        then, _ = self.fixture("parked")(operator, now)
        change()
        self.fixture("resume")(operator, now, event, **then)


def other_inputs(tries):
    for number in (1, 2):
        tries.starts("ada", inputs={"number": number})


def executed_twice(tries):
    now = tries.next()
    for _ in range(2):
        trigger().execute(now)


def supplied(tries):
    tries.number = 1
    tries.store.entries[SUPPLIED_RUN_KEY] = {"run": "77"}
    tries.fails(trigger())


def forgets(tries):
    tries.fails(trigger())
    tries.store.lost = [KEY, KEY, "workflow_automation_probe"]
    tries.fails(trigger())


def slow(tries):
    tries.service.faults.add("busy", retry_after=0)
    tries.store.failures["delete"] = 1
    tries.fails(trigger(send_retry_timeout=60))


def without_a_value(tries):
    operator = trigger()
    operator.flow_id = "None"
    tries.fails(operator)


def files_for_no_run_id(tries):
    tries.service.faults.add("response", body={})
    tries.fails(trigger(files=FILES))


def other_items(tries):
    for number in (1, 2):
        tries.fails(batch([{"number": number}]))


def no_base_url(tries):
    tries.fixture("monkeypatch").setenv("AIRFLOW__API__BASE_URL", "")
    tries.fails(tries.fixture("waits")())


def flow_failed(tries):
    tries.service.callbacks.add("failed", message="No rows")
    tries.fails(tries.waits())


def nobody_called(tries):
    def a_day_later():
        tries.store.entries[WAIT]["since"] = (datetime.now(UTC) - timedelta(days=1)).isoformat()

    tries.parks(tries.waits(), TIMEOUT, a_day_later)


def broken_connection(tries):
    def break_it():
        end = {"status": "success", "result": 3, "at": "2026-01-01T00:00:00+00:00"}
        tries.store.set(end_key(tries.store.entries[WAIT]["digest"]), end)
        tries.fixture("workflow_automation_connect")(extra={"typo": 1})
        operator.__dict__.pop("hook", None)

    operator = tries.waits()
    tries.parks(operator, TIMEOUT, break_it)


CASES: dict[str, Callable[[Tries], object]] = {
    "an earlier try is in doubt": lambda tries: tries.fails_again(trigger(), "drop_after"),
    "an earlier try started a run without a known id": lambda tries: tries.fails_again(trigger(), "garbage"),
    "a Clear that could be a retry": lambda tries: tries.fails_again(
        trigger(), "drop_after", retries=2, clear_number=1
    ),
    "a name with other inputs": other_inputs,
    "a name that was used": lambda tries: tries.starts("ada", "ada"),
    "a name of two lines": lambda tries: tries.starts("a\nb"),
    "an operator that was executed": executed_twice,
    "an operator inside a task": lambda tries: tries.fails(trigger(task_id="ada"), task_id="customers"),
    "an entered run that is none": supplied,
    "a store that forgets": forgets,
    "a store that is slow": slow,
    "a template that was not rendered": lambda tries: tries.fails(trigger(flow_id="{{ ds }}")),
    "a template without a value": without_a_value,
    "a connection id that is none": lambda tries: tries.fails(trigger(workflow_automation_conn_id=None)),
    "an upload for a result without a run_id": lambda tries: tries.fails(upload({"flow_id": "demo-flow"})),
    "an upload for several results": lambda tries: tries.fails(upload([{"run_id": "1001"}])),
    "an upload for the text of a result": lambda tries: tries.fails(upload("{'run_id': '1001'}")),
    "files for a run without an id": files_for_no_run_id,
    "a batch that changed": other_items,
    "an output_path that is a folder": lambda tries: tries.fails(batch([], output_path="/")),
    "a wait without a store": lambda tries: tries.waits().execute(tries.fixture("context")()),
    "a callback URL without a base": no_base_url,
    "inputs with the name of the callback URL": lambda tries: tries.fails(
        tries.waits(inputs={"callback_url": "mine"})
    ),
    "the flow says failed": flow_failed,
    "nobody says how the run ended": nobody_called,
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
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is in the file
        CASES[name](Tries(request))
    text = f"{type(caught.value).__name__}\n{caught.value}"
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://service", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "TIME", text)
    if os.environ.get("GOLDEN"):
        renew(name, text)
    assert text == expected()[name]


def test_no_other_words():
    assert expected().keys() == CASES.keys()
