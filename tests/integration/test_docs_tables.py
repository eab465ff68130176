"""The tables of the docs are those of the code."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from typing import get_args

import pytest

from doc_pages import ROOT, table
from workflow_automation_provider import exceptions, taskflow
from workflow_automation_provider.client import json_values
from workflow_automation_provider.client.checks import MAX_TIMEOUT
from workflow_automation_provider.client.responses.body import RESPONSE_LIMIT
from workflow_automation_provider.client.settings import FIELDS, Settings
from workflow_automation_provider.client.urls import MAX_LINK
from workflow_automation_provider.exceptions import Accepted, RunFailedError
from workflow_automation_provider.execution.batch.item_results import ItemStatus
from workflow_automation_provider.execution.batch.json_lines import MAX_LINE
from workflow_automation_provider.execution.batch.source import MAX_KEY
from workflow_automation_provider.execution.record.callback import MAX_BODY, MAX_RUN_ID
from workflow_automation_provider.execution.retry import MAX_RESCHEDULES
from workflow_automation_provider.lineage import MAX_INPUTS
from workflow_automation_provider.operators import batch
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator
from workflow_automation_provider.plugins import callback_endpoint, page, queries
from workflow_automation_provider.taskflow import trigger_flow_once
from workflow_automation_provider.testing import Callback, Fault, Faults, pytest_plugin
from workflow_automation_provider.testing.faults import KINDS

ASSETS, BATCH, CONNECTION, EVALUATE, FAILS, PRODUCTION, PROMISES, TASKFLOW, TESTING, WAIT = (
    ROOT / "docs" / f"{name}.md"
    for name in (
        "assets",
        "batch",
        "connection",
        "evaluate",
        "if-it-fails",
        "production",
        "promises",
        "taskflow",
        "testing",
        "wait",
    )
)


def parameters(function):
    found = inspect.signature(function).parameters
    return {name: p for name, p in found.items() if name not in ("self", "kwargs")}


@pytest.mark.parametrize(
    ("pages", "kind"),
    [
        (("trigger", "production"), TriggerFlowOperator),
        (("uploads",), UploadFilesOperator),
        (("batch",), TriggerFlowBatchOperator),
    ],
)
def test_the_arguments(pages, kind):
    """A page shows the docstring's: all of them, and which are templated."""
    rows = [row for page in pages for row in table(ROOT / "docs" / f"{page}.md", "Argument")]
    shown = {row[0] for row in rows}
    unsaid = {*parameters(kind.__init__)} - shown
    assert unsaid <= (
        {"flow_id", "workflow_automation_conn_id"} if "trigger" not in pages else set()
    )
    templated = {name for name, _, meaning in rows if "(templated" in meaning}
    assert templated == {*kind.template_fields} - unsaid


def test_the_arguments_of_trigger_flow_once():
    named = [name for row in table(TASKFLOW, "Argument") for name in re.findall(r"\w+", row[0])]
    known = parameters(trigger_flow_once)
    assert named == list(known)
    operator = parameters(TriggerFlowOperator.__init__)
    for name in ("workflow_automation_conn_id", "on_unknown_start", "send_retry_timeout"):
        assert known[name].default == operator[name].default


def test_the_fields_of_a_connection():
    rows = table(CONNECTION, "Form field")
    extras = {
        row[1].removeprefix("extra ").strip("`"): row for row in rows if row[1].startswith("extra ")
    }
    assert list(extras) == list(FIELDS)
    for name, (label, _, default, _) in extras.items():
        assert FIELDS[name].form["label"].partition(" (")[0] == label
        known = getattr(Settings(), name)
        if default.startswith("`"):
            assert json.loads(default.strip("`")) == known
        elif name != "file_format":
            assert not known


def test_the_attributes_of_an_error():
    error = RunFailedError("message")
    error.result = "its own"
    _, _, text = FAILS.read_text().partition("## Errors in code")
    named = {*re.findall(r"`([a-z_]+)`", text)}
    assert len(named) >= 7
    assert named <= {*vars(error), "accepted"}
    assert [accepted.name for accepted in Accepted] == ["NO", "MAYBE", "YES"]


def test_the_outcomes_are_all_there_are():
    kinds = {*exceptions.__all__} - {"Accepted", "Code", "WorkflowAutomationError"}
    assert kinds <= set(re.findall(r"`(\w+Error)`", PROMISES.read_text()))


def test_the_responses_of_the_endpoint():
    shown = {
        number for row in table(WAIT, "Response") for number in re.findall(r"\b(\d{3}): ", str(row))
    }
    assert shown == {*re.findall(r"^(\d{3})  ", callback_endpoint.__doc__ or "", re.MULTILINE)}


def test_the_faults_of_the_local_service():
    kinds = {row[0]: row[1:] for row in table(TESTING, "Kind | Accepted")}
    (matching,) = re.findall(r"matches it, by .+?\)\. ", " ".join(TESTING.read_text().split()))
    narrowing = {*re.findall(r"`([a-z_]+)`", matching)}
    assert kinds.keys() == KINDS.keys()
    for name, kind in KINDS.items():
        accepted, effect = kinds[name][0], " | ".join(kinds[name][1:])
        if name != "echo_key":
            assert accepted == {True: "yes", False: "no", None: "normal"}[kind.accepts]
        assert set(re.findall(r"`([a-z_]+)`", effect)) == set(kind.options), name
        for option, default in kind.options.items():
            if isinstance(default, int | float) and option != "limit":
                assert re.search(rf"`{option}` \({default:.0f}\)", effect), name
    assert {"kind", *narrowing} | {
        option for kind in KINDS.values() for option in kind.options
    } == {field.name for field in dataclasses.fields(Fault)}
    calls = re.findall(r"faults\.add\((\".+?)\)", TESTING.read_text())
    assert len(calls) >= 2
    for call in calls:
        eval(f"Faults().add({call})", {"Faults": Faults})


def test_the_options_of_a_callback():
    """The reference shows the docstring's."""
    documented = re.findall(r"^:param (\w+):", inspect.getdoc(Callback) or "", re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(Callback)]


def test_the_limits_are_those_of_the_code():
    days = 24 * 3600
    limits = {
        "`timeout` of a connection": f"{MAX_TIMEOUT // days} days",
        "a response of the service": f"{RESPONSE_LIMIT // 1024:,} KiB",
        "the body of a callback": f"{MAX_BODY // 1024} KiB",
        "the levels of a `result`": f"{json_values._MAX_STORED_DEPTH}",
        "a `run_id` that a run reports": f"{MAX_RUN_ID} characters",
        "a `run_link`, after its host": f"{MAX_LINK:,} characters",
        "the tasks on the page **Flow runs**": f"{page.MAX_ROWS}, of {queries.MAX_TASKS:,}",
    }
    text = PRODUCTION.read_text().partition("| What | At most |")[2]
    for name, limit in limits.items():
        assert re.search(rf"^\| {re.escape(name)}.* \| {limit}\b", text, re.MULTILINE), name


@pytest.mark.parametrize(
    ("where", "limit"),
    [
        (ASSETS, f"**At most {MAX_INPUTS} inputs**"),
        (BATCH, f"one item in each line of at most {MAX_LINE // 1024**2} MiB"),
        (BATCH, f"text of at most {MAX_KEY} characters"),
        (BATCH, f"at a time, at most {batch._MAX_CONCURRENCY}."),
        (TASKFLOW, f"at most {taskflow._MAX_NAME} characters"),
    ],
)
def test_limits_of_one_page_are_those_of_the_code(where, limit):
    assert limit in " ".join(where.read_text().split())


def test_how_often_the_service_may_put_a_task_off():
    text = PRODUCTION.read_text()
    assert re.findall(r"up to (\d+) times", text) == [str(MAX_RESCHEDULES)]


def test_the_readmes_row_is_that_of_the_comparison():
    (row,) = table(ROOT / "README.md", "| `TriggerFlowOperator`")
    compared = {name: cells for name, *cells in table(EVALUATE, "| `TriggerFlowOperator`")}
    assert row[1:] == compared[row[0]][:3]


def test_the_statuses_of_an_item():
    assert {row[0] for row in table(BATCH, "Status")} == {*get_args(ItemStatus)}


def test_each_fixture_is_named():
    fixtures = {name for name in pytest_plugin.__all__ if name.startswith("workflow_automation_")}
    assert fixtures <= {*re.findall(r"\bworkflow_automation_\w+", TESTING.read_text())}
