"""UploadFilesOperator with a context of its own: what it sends, and what it keeps of what was confirmed."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
)
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.operators.flows import UploadFilesOperator

KEY = "workflow_automation_upload"


@pytest.fixture(autouse=True)
def run_id(service):
    with WorkflowAutomationHook() as hook:
        return hook.trigger_flow({}, "demo-flow").run_id


def upload(*rows, **arguments):
    files = [{"row": row} for row in rows]
    defaults = {"task_id": "upload", "run_id": "1001", "files_per_request": 1, "send_retry_timeout": 0}
    return UploadFilesOperator(**{**defaults, "files": files, **arguments})


def uploaded(service):
    return [file["row"] for upload in service.uploads for file in upload.files]


@pytest.fixture
def attempt(context, store):
    """Make the context of a try of the upload."""
    return lambda **options: context(store, task_id="upload", **options)


@pytest.fixture
def busy_at_second(service):
    """Let the second request find the service busy."""
    service.faults.add("delay", operation="upload", seconds=0)
    service.faults.add("busy", operation="upload", status=429)


class TestTries:
    def test_each_try_goes_on_from_all_before(self, service, store, attempt, busy_at_second):
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        with pytest.raises(BusyError):
            upload(1, 2, 3).execute(attempt())
        service.faults.add("delay", operation="upload", seconds=0)
        service.faults.add("busy", operation="upload", status=429)
        with pytest.raises(BusyError):
            upload(1, 2, 3).execute(attempt(try_number=2))
        result = upload(1, 2, 3).execute(attempt(try_number=3))

        assert uploaded(service) == [1, 2, 3]
        assert (result["files"], len(result["requests"])) == (3, 3)
        assert store.entries[KEY]["confirmed"] == 3
        assert {key: store.retentions[key] for key in store.entries} == {KEY: NEVER_EXPIRE}

    def test_a_404_for_the_record_sends_nothing_twice(self, service, store, attempt):
        upload(1, 2).execute(attempt())
        store.lost = [KEY]
        upload(1, 2).execute(attempt(try_number=2))
        assert uploaded(service) == [1, 2]

    def test_a_clear_sends_everything_again(self, service, attempt):
        upload(1, 2).execute(attempt())
        upload(1, 2).execute(attempt(try_number=2, max_tries=4))
        assert uploaded(service) == [1, 2, 1, 2]

    def test_of_fewer_files_after_a_clear_nothing_older_counts(self, service, attempt):
        upload(1, 2).execute(attempt())
        upload(3).execute(attempt(try_number=2, max_tries=4))
        upload(3, 2).execute(attempt(try_number=3, max_tries=4))
        assert uploaded(service) == [1, 2, 3, 3, 2]

    def test_without_a_store_everything_is_sent_again(self, service, context):
        for try_number in (1, 2):
            upload(1).execute(context(task_id="upload", try_number=try_number))
        assert uploaded(service) == [1, 1]


class TestUnknownOutcome:
    def test_it_is_sent_again_by_default(self, service, store, attempt):
        service.faults.add("drop_after", operation="upload")
        upload(1, send_retry_timeout=30).execute(attempt())
        assert uploaded(service) == [1, 1]
        assert set(store.entries) == {KEY}

    @pytest.mark.parametrize("status", [408, 503])
    def test_what_may_be_repeated_finds_a_gateway_busy(self, service, attempt, status):
        after = {"Retry-After": "0"}
        service.faults.add("status_after", operation="upload", status=status, headers=after)
        with pytest.raises(BusyError):
            upload(1).execute(attempt())

    def test_it_is_left_to_airflows_retry_too(self, service, attempt):
        service.faults.add("drop_after", operation="upload")
        with pytest.raises(OutcomeUnknownError) as caught:
            upload(1).execute(attempt())
        assert not isinstance(caught.value, AirflowFailException)
        assert (caught.value.code, caught.value.accepted) == ("upload-unknown", Accepted.MAYBE)

    def test_it_is_said_where_no_retry_is_left(self, service, attempt):
        service.faults.add("drop_after", operation="upload")
        with pytest.raises(OutcomeUnknownError) as caught:
            upload(1).execute(attempt(try_number=4))
        assert "mark the task as success" in caught.value.next_step


def test_a_numeric_run_id(service, attempt):
    """As native rendering makes it."""
    upload(1, run_id=1001).execute(attempt())
    assert uploaded(service) == [1]


class TestTwice:
    """Executed again in the same try, as by a subclass."""

    @pytest.mark.parametrize("is_rejected", [False, True])
    def test_another_is_rejected(self, service, attempt, is_rejected):
        """The next try would take the other's files for its own."""
        now = attempt()
        if is_rejected:
            service.faults.add("reject", operation="upload")
        with pytest.raises(AirflowFailException, match="400") if is_rejected else nullcontext():
            upload(1).execute(now)
        with pytest.raises(AirflowFailException, match="already executed"):
            upload(2).execute(now)
        assert uploaded(service) == ([] if is_rejected else [1])

    def test_a_rescheduled_task_goes_on_in_the_same_try(self, service, attempt, busy_at_second):
        with pytest.raises(BusyError):
            upload(1, 2).execute(attempt())
        upload(1, 2).execute(attempt())
        assert uploaded(service) == [1, 2]


def test_a_task_that_was_ended_before_it_began_uploads_nothing(service, attempt):
    operator = upload(1)
    operator.on_kill()
    with pytest.raises(NotSentError, match="task was ended"):
        operator.execute(attempt())
    assert uploaded(service) == []


def test_an_ended_task_uploads_nothing_more(service, store, attempt):
    fault = service.faults.add("busy", operation="upload", retry_after="30", times=None)
    operator = upload(1, send_retry_timeout=120)

    def end() -> None:
        while not fault.struck:
            time.sleep(0.01)
        operator.on_kill()

    ending = threading.Thread(target=end)
    ending.start()
    began = time.monotonic()
    with pytest.raises((BusyError, NotSentError)):
        operator.execute(attempt())
    ending.join()

    assert time.monotonic() - began < 15
    assert uploaded(service) == []
    assert len(service.journal.requests("upload")) == 1


class TestRunOfATrigger:
    """run_id takes what a trigger returned, as it stands."""

    @pytest.mark.parametrize("given", [{}, {"flow_id": "demo-flow"}])
    def test_its_run_id_is_used(self, service, attempt, given):
        """The flow that is given comes before its own."""
        run = {
            "run_id": "1001",
            "run_link": "http://there",
            "flow_id": "the-triggers" if given else "demo-flow",
        }
        assert upload(1, run_id=run, **given).execute(attempt())["run_id"] == "1001"
        assert [(sent.run_id, sent.flow_id) for sent in service.uploads] == [("1001", "demo-flow")]

    def test_its_flow_comes_before_the_connections(self, service, attempt):
        service.faults.add("reject", operation="upload", flow_id="the-triggers")
        with pytest.raises(RejectedError, match="the-triggers") as caught:
            upload(1, run_id={"run_id": "1001", "flow_id": "the-triggers"}).execute(attempt())
        assert caught.value.flow_id == "the-triggers"
