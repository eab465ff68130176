"""Text is rendered if the DAG's own Jinja would find a template in it, and else kept exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from airflow.sdk import DAG, BaseOperator, ObjectStoragePath, literal
from hypothesis import example, given
from hypothesis import strategies as st
from jinja2 import TemplateError

from workflow_automation_provider.decorators.flows import trigger_flow_task
from workflow_automation_provider.notifications.flows import FlowNotifier
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator

MARKERS = ("{{", "{%", "{#")
BRACKETS = {
    "variable_start_string": "[[",
    "variable_end_string": "]]",
    "block_start_string": "[%",
    "block_end_string": "%]",
    "comment_start_string": "[#",
    "comment_end_string": "#]",
    "line_statement_prefix": "%%",
    "line_comment_prefix": "##",
}
CONTEXT: Any = {"name": "Ada"}

# Made of what Jinja, a literal of Python or a line break consists of, among anything else.
TEXTS = st.lists(
    st.sampled_from([*"{}[]%#'\"1_\r\n -", "name", "%%", "##", *MARKERS]) | st.text(max_size=3)
).map("".join)


def given_to_all(value: Any) -> Iterator[tuple[Any, Callable[[], list[Any]]]]:
    """Yield each kind of operator, with a function that returns what has become of the value."""
    decorator: Any = trigger_flow_task
    trigger: Any = TriggerFlowOperator(task_id="trigger", inputs={"a": [value]}, files=[value])
    batch: Any = TriggerFlowBatchOperator(task_id="batch", batch=[{"a": value}])
    upload: Any = UploadFilesOperator(task_id="upload", run_id="1", files=[{"a": (value,)}])
    notifier: Any = FlowNotifier({"a": {"b": value}})
    with DAG("dag", schedule=None):
        call = decorator(task_id="call")(print)(value).operator
    yield trigger, lambda: [trigger.inputs["a"][0], trigger.files[0]]
    yield batch, lambda: [batch.batch[0]["a"]]
    yield upload, lambda: [upload.files[0]["a"][0]]
    yield call, lambda: [call.op_args[0]]
    yield notifier, lambda: [notifier.inputs["a"]["b"]]


def rendered_in(dag: DAG, value: object, kind: Any = TriggerFlowOperator) -> object:
    """Return what becomes of a value in a task of a DAG."""
    operator = kind(task_id="task", dag=dag)
    return operator.render_template(value, CONTEXT, operator.get_template_env())


def test_text_without_a_template_arrives_exactly_wherever_it_is_given():
    text = "50 % off\r\n{ 1_000 }}\n"
    for one, values in given_to_all(text):
        one.render_template_fields({})
        assert set(values()) == {text}


@example("1_000")
@example("[1]")
@example("a\r\nb\n")
@given(TEXTS)
def test_text_without_a_marker_is_not_changed(text):
    for native in (False, True):
        if not any(marker in text for marker in MARKERS):
            dag = DAG("dag", schedule=None, render_template_as_native_obj=native)
            assert rendered_in(dag, text) == text

        other = DAG(
            "other",
            schedule=None,
            render_template_as_native_obj=native,
            jinja_environment_kwargs=BRACKETS,
        )
        if not any(mark in text for name, mark in BRACKETS.items() if "_end_" not in name):
            assert rendered_in(other, text) == text


@example("[[ name ]] {{ name }}\n")
@example("%% if name\r\n1\n%% endif")
@example("a ## comment")
@given(TEXTS)
def test_of_a_line_with_a_marker_becomes_what_airflow_makes_of_it(text):
    for options in ({}, BRACKETS):
        found: list[object] = []
        for kind in (BaseOperator, TriggerFlowOperator):
            dag = DAG("dag", schedule=None, jinja_environment_kwargs=options)
            try:
                found.append(rendered_in(dag, f"{text}{{# #}}[# #]", kind))
            except TemplateError:
                found.append(None)
        assert found[0] == found[1]


def test_a_file_of_a_template_needs_no_marker(tmp_path):
    class WithFiles(TriggerFlowOperator):
        template_ext = (".txt",)

    (tmp_path / "a.txt").write_text("Good morning")
    dag = DAG("dag", schedule=None, template_searchpath=[str(tmp_path)])
    assert rendered_in(dag, ["a.txt", "a.csv"], WithFiles) == ["Good morning", "a.csv"]


def test_an_object_storage_path_is_kept_unless_it_is_a_template():
    operator = UploadFilesOperator(task_id="upload", run_id="1", files=[])
    kept = ObjectStoragePath("file:///data/50 % off\r\n.csv")
    assert operator.render_template(kept, CONTEXT) is kept
    made = operator.render_template(ObjectStoragePath("file:///data/{{ name }}.csv"), CONTEXT)
    assert made == ObjectStoragePath("file:///data/Ada.csv")


def test_a_literal_is_kept_whatever_it_contains():
    text = "{{ a b }} {% off"
    for one, values in given_to_all(literal(text)):
        one.render_template_fields({})
        assert set(values()) == {text}
