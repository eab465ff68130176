"""What a task ends with because of its earlier tries, its run or a person: each once, in golden/run_errors.txt."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from workflow_automation_provider.execution.ask import FAIL
from workflow_automation_provider.execution.callback import OPTIONS
from workflow_automation_provider.failures import SUPPLIED_RUN_KEY
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once

from ..answers import TIMEOUT, person
from ..starts import KEY, trigger

GOLDEN = Path(__file__).parents[1] / "golden" / "run_errors.txt"
"""Renewed by ``GOLDEN=1`` in the environment of these tests: read the difference before it is committed."""

FILES = [{"name": "a"}]


class Tries:
    """A task instance whose tries are executed one after another, whatever they end with."""

    def __init__(self, request):
        self._request = request
        self.store = self.fixture("store")
        self.service = self.fixture("service")
        self.number = 0

    def fixture(self, name):
        return self._request.getfixturevalue(name)

    def next(self, **options):
        self.number += 1
        return self.fixture("context")(self.store, try_number=self.number, **options)

    def fails(self, operator, **options):
        with pytest.raises(Exception):  # noqa: B017, PT011 - the next try is what a case is about
            operator.execute(self.next(**options))

    def waits(self, **options):
        self.fixture("endpoint")
        return self.fixture("waits")(**options)

    def resume(self, operator, event, **changes):
        """Park, and continue with an event, after a person or the time has changed something."""
        now = self.next()
        then, _ = self.fixture("parked")(operator, now)
        for name, value in changes.items():
            self.store.entries["workflow_automation_wait"][name] = value
        if event is TIMEOUT and "pending" in then:
            then["pending"]["until"] = datetime.now(UTC).isoformat()
        self.fixture("resume")(operator, now, event, **then)


CASES: dict[str, Callable[[Tries], object]] = {}


def case(function):
    CASES[function.__name__.replace("_", " ")] = function
    return function


@case
def an_earlier_try_is_in_doubt(tries):
    tries.service.faults.add("drop_after")
    tries.fails(trigger())
    trigger().execute(tries.next())


@case
def an_earlier_try_started_a_run_without_a_known_id(tries):
    tries.service.faults.add("garbage")
    tries.fails(trigger())
    trigger().execute(tries.next())


@case
def a_clear_that_could_be_a_retry(tries):
    tries.service.faults.add("drop_after")
    tries.fails(trigger())
    trigger().execute(tries.next(retries=2, clear_number=1))


@case
def a_name_with_other_inputs(tries):
    for _ in range(2):
        now = tries.next(task_id="customers")
        trigger_flow_once("ada", inputs={"number": tries.number}, context=now)


@case
def a_name_that_was_used(tries):
    now = tries.next(task_id="customers")
    for _ in range(2):
        trigger_flow_once("ada", context=now)


@case
def a_name_of_two_lines(tries):
    trigger_flow_once("a\nb", context=tries.next())


@case
def an_operator_that_was_executed(tries):
    now = tries.next()
    for _ in range(2):
        trigger().execute(now)


@case
def an_operator_inside_a_task(tries):
    trigger(task_id="ada").execute(tries.next(task_id="customers"))


@case
def an_entered_run_that_is_none(tries):
    tries.number = 1
    tries.store.entries[SUPPLIED_RUN_KEY] = {"run": "77"}
    trigger().execute(tries.next())


@case
def a_store_that_forgets(tries):
    trigger().execute(tries.next())
    tries.store.lost = [KEY, KEY, "workflow_automation_probe"]
    trigger().execute(tries.next())


@case
def a_store_that_is_slow(tries):
    tries.service.faults.add("busy", retry_after=0)
    tries.store.failures["delete"] = 1
    trigger(send_retry_timeout=60).execute(tries.next())


@case
def a_template_that_was_not_rendered(tries):
    trigger(flow_id="{{ ds }}").execute(tries.next())


@case
def a_template_without_a_value(tries):
    operator = trigger()
    operator.flow_id = "None"
    operator.execute(tries.next())


@case
def a_connection_id_that_is_none(tries):
    trigger(workflow_automation_conn_id=None).execute(tries.next())


def upload(run_id="1001", **options):
    return UploadFilesOperator(task_id="trigger", run_id=run_id, files=FILES, send_retry_timeout=0, **options)


@case
def an_earlier_upload_is_in_doubt(tries):
    trigger().execute(tries.fixture("context")())
    tries.service.faults.add("drop_after", operation="upload")
    tries.fails(upload(on_unknown_upload="fail"))
    upload(on_unknown_upload="fail").execute(tries.next())


@case
def an_upload_for_a_result_without_a_run_id(tries):
    upload({"flow_id": "demo-flow"}).execute(tries.next())


@case
def an_upload_for_several_results(tries):
    upload([{"run_id": "1001"}]).execute(tries.next())


@case
def an_upload_for_the_text_of_a_result(tries):
    upload("{'run_id': '1001'}").execute(tries.next())


@case
def files_for_a_run_without_an_id(tries):
    tries.service.faults.add("response", body={})
    trigger(files=FILES).execute(tries.next())


@case
def a_batch_that_changed(tries):
    for _ in range(2):
        batch = [{"number": tries.number}]
        TriggerFlowBatchOperator(task_id="trigger", batch=batch).execute(tries.next())


@case
def an_output_path_that_is_a_folder(tries):
    TriggerFlowBatchOperator(task_id="trigger", batch=[], output_path="/").execute(tries.next())


@case
def a_wait_without_a_store(tries):
    tries.waits().execute(tries.fixture("context")())


@case
def a_callback_url_that_has_no_base(tries):
    tries.fixture("monkeypatch").setenv("AIRFLOW__API__BASE_URL", "")
    tries.fixture("waits")().execute(tries.next())


@case
def inputs_with_the_name_of_the_callback_url(tries):
    tries.waits(inputs={"callback_url": "mine"}).execute(tries.next())


@case
def the_flow_says_failed(tries):
    tries.service.callbacks.add("failed", message="No rows")
    tries.waits().execute(tries.next())


@case
def a_person_says_failed(tries):
    tries.resume(tries.waits(), person(OPTIONS["failed"], message=None))


@case
def nobody_says_how_the_run_ended(tries):
    tries.resume(tries.waits(), TIMEOUT, since=(datetime.now(UTC) - timedelta(days=1)).isoformat())


@case
def a_connection_that_broke_while_the_task_waited(tries):
    operator, now = tries.waits(), tries.next()
    then, _ = tries.fixture("parked")(operator, now)
    tries.fixture("workflow_automation_connect")(extra={"typo": 1})
    event = person(OPTIONS["success"], result="3")
    tries.fixture("resume")(tries.waits(), now, event, **then)


@case
def a_question_without_a_supervisor(tries):
    trigger(on_unknown_start="ask").execute(tries.next())


@case
def a_person_lets_the_task_fail(tries):
    tries.service.faults.add("status_after", status=502)
    tries.resume(trigger(on_unknown_start="ask"), person(FAIL))


@case
def nobody_answers_in_time(tries):
    tries.service.faults.add("status_after", status=502)
    tries.resume(trigger(on_unknown_start="ask"), TIMEOUT)


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
    text = re.sub(
        r"http://127\.0\.0\.1:\d+", "http://service", f"{type(caught.value).__name__}\n{caught.value}"
    )
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "TIME", text)
    if os.environ.get("GOLDEN"):
        renew(name, text)
    assert text == expected()[name]


def test_no_other_words():
    assert expected().keys() == CASES.keys()
