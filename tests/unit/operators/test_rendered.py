"""
What a template leaves in place of a value.

Each templated argument is checked for it before anything is sent.
"""

from __future__ import annotations

import glob
import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from hypothesis import example, given
from hypothesis import strategies as st

from sentences import NOTHING_SENT
from workflow_automation_provider.client.rendered_values import check_text
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.notifications.flows import FlowNotifier
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once

from ..starts import mentions

ARGUMENTS = [
    *((TriggerFlowOperator, name) for name in ("inputs", "flow_id", "files")),
    *((UploadFilesOperator, name) for name in ("run_id", "files", "flow_id")),
    *((TriggerFlowBatchOperator, name) for name in ("batch", "flow_id", "output_path")),
    *(
        (kind, "workflow_automation_conn_id")
        for kind in (TriggerFlowOperator, UploadFilesOperator, TriggerFlowBatchOperator)
    ),
]

REQUIRED: dict[Any, dict[str, Any]] = {
    TriggerFlowOperator: {},
    UploadFilesOperator: {"run_id": "1001", "files": {"row": 1}},
    TriggerFlowBatchOperator: {"batch": [{}]},
}

PARAMS = {
    "list": ["/a.csv", "/b.csv"],
    "urls": ["s3://bucket/a.csv"],
    "dict": {"run_id": "1001"},
    "numbers": [1001, 1002],
    "nothing": None,
}


def made(kind, **arguments):
    return kind(**{"task_id": "task", **REQUIRED[kind], **arguments})


def rejected(operator, context):
    """Execute a task, and return the error that it fails with."""
    with pytest.raises(InvalidRequestError) as caught:
        operator.execute(context(task_id="task"))
    assert isinstance(caught.value, AirflowFailException)
    assert caught.value.consequence == NOTHING_SENT
    return caught.value


@pytest.mark.parametrize(("kind", "name"), ARGUMENTS)
@pytest.mark.parametrize(
    ("template", "fault", "mend"),
    [
        ("{{ params.list }}", "the text of a list", "native"),
        ("{{ params.list | tojson }}", "the text of a list", "params and conf"),
        ("{{ params.urls }}", "the text of a list", "native"),
        ("{{ params.numbers }}", "the text of a list", "native"),
        ("{{ params.dict }}", "the text of a dict", "native"),
        ("{{ params.list | map('upper') | list | string }}", "the text of a list", "native"),
        ("{{ params.nothing }}", "no value", "skipped"),
        ("{{ '{{' }} ds }}", "not rendered", "@task"),
    ],
)
def test_a_template_that_loses_its_type_is_named(
    service, context, kind, name, template, fault, mend
):
    operator = made(kind, **{name: template})
    operator.render_template_fields({"params": PARAMS})
    error = rejected(operator, context)
    assert error.message.startswith(name)
    assert fault in error.message
    assert mend in error.next_step
    assert service.journal.requests() == []


@pytest.mark.parametrize("kind", [TriggerFlowOperator, UploadFilesOperator])
@pytest.mark.parametrize("file", ["{{ params.list }}", "{{ params.nothing }}"])
def test_among_several_files(service, context, kind, file):
    operator = made(kind, files=[{"row": 1}, file])
    operator.render_template_fields({"params": PARAMS})
    assert rejected(operator, context).message.startswith("files[1] is ")


@pytest.mark.parametrize(
    ("kind", "arguments", "place"),
    [
        (TriggerFlowOperator, {"inputs": {"{{ params.name }}": 1}}, "inputs has a name that"),
        (TriggerFlowOperator, {"files": [Path("{{ ds }}.csv")]}, "files[0]"),
        (UploadFilesOperator, {"files": Path("/data/{{ ds }}.csv")}, "files[0]"),
        (UploadFilesOperator, {"files": [Path("{% if x %}")]}, "files[0]"),
        (TriggerFlowBatchOperator, {"batch": [{}, {"{{ ds }}": 1}]}, "batch[1] has a name that"),
        (TriggerFlowBatchOperator, {"batch": Path("/data/{{ ds }}.jsonl")}, "batch"),
    ],
)
def test_a_template_where_airflow_renders_none_is_named(service, context, kind, arguments, place):
    operator = made(kind, **arguments)
    operator.render_template_fields({"params": PARAMS, "ds": "2026-01-31", "x": 1})
    error = rejected(operator, context)
    assert error.message.startswith(f"{place} is ")
    assert "a template that was not rendered" in error.message
    assert service.journal.requests() == []


@pytest.mark.parametrize(("kind", "name"), ARGUMENTS)
@pytest.mark.parametrize("value", [None, "", " ", "None"])
def test_a_template_without_a_value_is_no_argument_left_out(service, context, kind, name, value):
    operator = made(kind, **{name: "{{ params.x }}"})
    setattr(operator, name, value)  # None by native rendering
    assert rejected(operator, context).message.startswith(name)
    assert service.journal.requests() == []


def test_an_item_of_a_batch_that_lost_its_type_is_named(service, context):
    operator = made(TriggerFlowBatchOperator, batch=[{"a": 1}, "{{ params.dict }}"])
    operator.render_template_fields({"params": PARAMS})
    error = rejected(operator, context)
    assert mentions(error.message, "batch[1]", "dict")


def test_in_a_call_inside_a_task(service, context):
    with pytest.raises(InvalidRequestError, match=r"flow_id .*'{{ ds }}'"):
        trigger_flow_once("ada", flow_id="{{ ds }}", context=context())
    assert service.journal.requests() == []


def test_in_a_notifier(service, log):
    FlowNotifier({"{{ event }}": 1})({"event": "failed"})
    FlowNotifier({}, "{{ event }}")({"event": ["a"]})
    text = log()
    assert mentions(text, "inputs", "'{{ event }}'")
    assert mentions(text, "flow_id", "list")
    assert service.journal.requests() == []


def test_text_may_be_anything_within_the_inputs(service, context):
    inputs = {
        "note": "['a', 'b']",
        "nothing": "None",
        "document": {"{{ customer }}": "Ada"},  # the placeholders that the flow fills in
    }
    operator = made(TriggerFlowOperator, inputs=inputs)
    operator.execute(context(task_id="task"))
    assert service.runs[0].inputs == inputs


def test_a_value_with_its_type_is_taken(service, context, tmp_path):
    """As by native rendering, or an XCom."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    operator = made(UploadFilesOperator, run_id=1001, files=[])
    operator.files = [f"{tmp_path}/a", f"{tmp_path}/b"]
    made(TriggerFlowOperator).execute(context(task_id="task"))
    operator.execute(context(task_id="task"))
    assert len(service.uploads[0].files) == 2


@pytest.mark.parametrize("name", ["['a']", "{{ ds }}", "None"])
def test_a_file_that_exists_is_meant_as_it_is_written(
    service, context, tmp_path, monkeypatch, name
):
    (tmp_path / name).write_text("a")
    monkeypatch.chdir(tmp_path)
    made(TriggerFlowOperator).execute(context(task_id="task"))
    made(UploadFilesOperator, run_id="1001", files=name).execute(context(task_id="task"))
    assert service.uploads[0].files[0]["name"] == name


@pytest.mark.parametrize("given", [" demo-flow ", "demo-flow\n", "\tdemo-flow"])
def test_blanks_around_identifiers_are_stripped(service, context, given):
    run = made(TriggerFlowOperator, flow_id=given).execute(context(task_id="task"))
    assert run["flow_id"] == "demo-flow"
    (item,) = made(TriggerFlowBatchOperator, flow_id=given).execute(context(task_id="task"))
    assert item["flow_id"] == "demo-flow"
    assert trigger_flow_once("ada", flow_id=given, context=context())["flow_id"] == "demo-flow"
    FlowNotifier({}, given)({})
    assert [run.flow_id for run in service.runs] == ["demo-flow"] * 4
    for run_id in (" 1001\n", run | {"flow_id": given}):
        upload = made(UploadFilesOperator, run_id=run_id, flow_id=given)
        assert upload.execute(context(task_id="task"))["run_id"] == "1001"
    assert [(sent.run_id, sent.flow_id) for sent in service.uploads] == [("1001", "demo-flow")] * 2


class Text(str):
    """A text as libraries make them, such as NumPy."""


def test_identifiers_may_be_of_a_derived_class(service, context):
    conn_id = Text("workflow_automation_default")
    run = trigger_flow_once(
        "ada", flow_id=Text("demo-flow"), workflow_automation_conn_id=conn_id, context=context()
    )
    assert run["run_id"] == service.runs[0].run_id


# What a template makes of a value, and what it does not.

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
COLLECTIONS = st.lists(VALUES) | st.dictionaries(st.text(), VALUES)


@example([[]], str)
@example([[]], lambda value: json.dumps(value, indent=2))
@given(COLLECTIONS, st.sampled_from([str, json.dumps, lambda value: json.dumps(value, indent=2)]))
def test_the_text_of_any_list_or_dict_is_recognized(value, render):
    text = render(value)
    with pytest.raises(InvalidRequestError) as caught:
        check_text("files", text)
    assert caught.value.message.startswith("files ")


@pytest.mark.parametrize(
    "text",
    [
        *("[ab]", "[0-9]", "[!a-z]", "[ab]*.csv", "*[12]", "a[1]", "[a]/[b]", "/data/['a']"),
        glob.escape("[a] b [c]"),
        *("{3F2504E0-4F89-11D3-9A0C-0305E82C3301}", "{a}", "(1)", "(draft) (2)", "[draft]", "7"),
        *("s3://bucket/[ab]", "flow {1}", "null"),
    ],
)
def test_a_glob_or_an_identifier_is_not(text):
    check_text("files", text)


@given(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.sampled_from("[{("))
def test_an_identifier_in_brackets_is_not(word, bracket):
    end = {"[": "]", "{": "}", "(": ")"}[bracket]
    if word not in ("true", "false", "null", "nan", "inf"):
        check_text("flow_id", f"{bracket}{word}{end}")
