"""The files of a run that a task starts: uploaded before it waits, once, and for that run."""

from __future__ import annotations

import json

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    RunFailedError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.errors import SUPPLIED_RUN_KEY, how_to_continue
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

from ..starts import TIMEOUT, requests, trigger

FILES = [{"name": "a"}]


@pytest.fixture
def without_flow(service, endpoint, monkeypatch):
    """Return a connection that has no flow_id."""
    connection = service.airflow_connection(service.keys[0], {"callback_base_url": endpoint.url})
    del connection["extra"]["flow_id"]
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(connection))
    return "other"


def counts(service):
    return len(service.runs), len(service.uploads)


def uploaded(service):
    return [upload.files for upload in service.uploads]


def test_are_uploaded_before_the_wait_and_once(service, task):
    files = [*FILES, {"name": "b"}]
    task.park(files=files)
    assert uploaded(service) == [files]
    assert service.uploads[0].run_id == task.then["run"]["run_id"]
    task.park(TIMEOUT, files=files)
    task.retry()
    task.park(files=files)
    assert counts(service) == (1, 1)


@pytest.mark.parametrize("called_back", [False, True])
def test_of_a_try_that_failed_are_uploaded_by_the_next(service, task, called_back):
    service.faults.add("busy", operation="upload")
    task.fail(BusyError, files=FILES)
    task.retry()
    if called_back:
        task.answer(result=1)
        assert task.execute(files=FILES) == task.run(result=1)
    else:
        task.park(files=FILES)
    assert counts(service) == (1, 1)


@pytest.mark.parametrize("supervised", [False, True])
def test_are_uploaded_also_if_the_flow_calls_back_before(service, task, request, supervised):
    if supervised:
        request.getfixturevalue("supervisor")
    task.answer_once_started(result=1)
    assert task.execute(files=FILES) == task.run(result=1)
    assert uploaded(service) == [FILES]


def test_of_a_run_whose_end_is_known_but_not_its_id(service, task, supervisor, workflow_automation_connect):
    """A person enters the run_id: then its files are uploaded, and the flow's answer still counts."""
    workflow_automation_connect.add_extra(timeout=1)
    service.callbacks.add(result=1)
    service.faults.add("hang_after", seconds=2)
    error = task.fail(UnidentifiedError, files=FILES)
    assert "no run_id" in error.message
    assert SUPPLIED_RUN_KEY in error.next_step
    task.enter()
    task.clear()
    assert task.execute(files=FILES) == {"run_id": "1001", "result": 1}
    assert counts(service) == (1, 1)


def test_that_the_dag_has_only_since_the_task_waits_are_uploaded(service, task):
    task.park()
    task.answer()
    task.retry()
    task.execute(files=FILES)
    assert counts(service) == (1, 1)


def test_are_not_uploaded_for_a_run_that_failed(service, task, supervisor, log):
    task.answer_once_started("failed")
    task.fail(RunFailedError, files=FILES)
    assert service.uploads == []
    assert "not uploading" in log()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"files": []}, "files is empty"),
        ({"files": "/nowhere/*.csv"}, "matches no file"),
        ({"files": "{{ x }}"}, "a template"),
        ({"files": [{"a": {1}}]}, "a set"),
        ({"files": FILES, "workflow_automation_conn_id": "other"}, "needs a flow_id"),
    ],
)
def test_that_cannot_be_uploaded_start_no_run(service, task, without_flow, options, match):
    error = task.fail(WorkflowAutomationError, **options)
    assert match in str(error)
    assert error.accepted is Accepted.NO
    assert "was started" not in str(error)
    assert (requests(service), task.entries) == (0, {})


def test_that_are_rejected_do_not_hide_the_run(service, task):
    service.faults.add("reject", operation="upload")
    error = task.fail(RejectedError, files=FILES)
    assert error.consequence.startswith("Run 1001 ")
    assert error.accepted is Accepted.NO
    assert how_to_continue("1001") in error.next_step
    assert isinstance(error, AirflowFailException)


def test_of_a_task_that_is_ended_meanwhile(service, store, context):
    operator, now = trigger(files=FILES), context(store)
    now["ti"].xcom_push = lambda **_: operator.on_kill()
    with pytest.raises(NotSentError) as caught:
        operator.execute(now)
    assert caught.value.run_id == "1001"
    assert service.uploads == []


def test_are_not_uploaded_again_for_the_recorded_run(service, task):
    """A person enters it and clears the task; a retry after that finds the files as well."""
    for attempt in ({}, {"try_number": 2, "max_tries": 4}, {"try_number": 3, "max_tries": 4}):
        task.begin(**attempt)
        task.park(files=FILES)
        task.enter()
    assert counts(service) == (1, 1)


def test_without_a_wait_are_not_uploaded_again_for_the_recorded_run(service, task):
    assert task.execute(files=FILES, wait_for_completion=False)["run_id"] == "1001"
    task.enter()
    task.clear()
    task.execute(files=FILES, wait_for_completion=False)
    assert counts(service) == (1, 1)


@pytest.mark.parametrize("before", [{}, {"files": FILES}])
def test_of_the_tasks_flow_if_the_entry_names_none(service, task, without_flow, before):
    operator = {"flow_id": "demo-flow", "workflow_automation_conn_id": without_flow}
    task.park(**operator, **before)
    task.enter()
    task.clear()
    task.park(**operator, files=FILES)
    assert [upload.flow_id for upload in service.uploads] == ["demo-flow"]


def test_of_which_some_are_missing_for_the_recorded_run(service, task):
    task.park(files=FILES)
    task.enter()
    task.clear()
    task.park(files=[*FILES, {"name": "b"}])
    assert uploaded(service) == [FILES, [{"name": "b"}]]


@pytest.mark.parametrize("given", [True, False])
def test_are_uploaded_again_for_another_run(service, task, given):
    with WorkflowAutomationHook() as hook:
        other = hook.trigger_flow({}, "demo-flow").run_id
    task.park(files=FILES)
    if given:
        task.enter(other)
    task.clear()
    task.park(files=FILES)
    assert [upload.run_id for upload in service.uploads] == ["1002", other if given else "1003"]
    assert task.then["run"]["run_id"] == service.uploads[1].run_id


def test_of_unknown_outcome_are_uploaded_by_the_next_try(service, task):
    service.faults.add("drop_after", operation="upload")
    error = task.fail(OutcomeUnknownError, files=FILES)
    assert not isinstance(error, AirflowFailException)
    assert error.consequence.startswith("Run 1001 ")
    task.retry()
    task.park(files=FILES)
    assert counts(service) == (1, 2)


def test_of_the_last_try_do_not_ask_for_a_clear_alone(service, task):
    service.faults.add("busy", operation="upload")
    task.retry(try_number=4)
    assert how_to_continue("1001") in task.fail(BusyError, files=FILES).next_step


def test_without_a_record_they_never_cause_another_run(service, context):
    """Before Airflow 3.3, a retry would not find the run."""
    service.faults.add("busy", operation="upload")
    with pytest.raises(BusyError, match="Run 1001 ") as caught:
        trigger(files=FILES).execute(context())
    assert isinstance(caught.value, AirflowFailException)
    assert "UploadFilesOperator" in caught.value.next_step


def test_are_those_that_were_checked_before_the_start(service, store, context, tmp_path):
    (folder := tmp_path / "files").mkdir()
    (folder / "checked").write_text("x")
    now = context(store)
    now["ti"].xcom_push = lambda **_: (folder / "later").write_text("x")
    trigger(files=f"{folder}/*").execute(now)
    assert [file["name"] for upload in service.uploads for file in upload.files] == ["checked"]


def test_are_in_the_lineage_also_if_an_earlier_process_uploaded_them(task, waits, resume, collected):
    task.park()
    task.answer()
    operator = waits(files=["/data/a", {"name": "b"}])
    resume(operator, task.now, TIMEOUT, **task.then)
    assert collected()[0] == ["file:///data/a"]


def test_of_a_run_without_an_id(service, task):
    service.faults.add("response", body={})
    assert "no run_id" in task.fail(UnidentifiedError, files=FILES).message
    assert service.uploads == []
