"""UploadFilesOperator: which requests files make, what is sent again, and what is logged."""

from __future__ import annotations

import io
import json
from functools import partial
from itertools import chain, count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from sentences import MAYBE_STARTED, NOTHING_SENT_NOW
from workflow_automation_provider.client.files import File
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    FileUnavailableError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
)
from workflow_automation_provider.execution import upload as uploads
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.operators.flows import UploadFilesOperator

from ..starts import mentions, trigger

KEY = "workflow_automation_upload"


@pytest.fixture(autouse=True)
def _runs(service):
    """Start the runs 1001 and 1002."""
    hook = WorkflowAutomationHook()
    for _ in range(2):
        hook.trigger_flow({}, "demo-flow")


@pytest.fixture
def attempt(context, store):
    """Make the context of a try of the upload."""
    return lambda **options: context(store, task_id="upload", **options)


@pytest.fixture
def write(tmp_path):
    """Write a file, and return its path as text."""

    def make(name, content="x"):
        path = tmp_path / name
        path.write_text(content)
        return str(path)

    return make


def upload(*files, **arguments):
    defaults = {
        "task_id": "upload",
        "run_id": "1001",
        "file_format": "name",
        "send_retry_timeout": 0,
    }
    return UploadFilesOperator(**{**defaults, "files": list(files), **arguments})


def upload_rows(*rows, **arguments):
    return upload(*({"row": row} for row in rows), **{"files_per_request": 1, **arguments})


def uploaded(service):
    return [upload.files for upload in service.uploads]


def uploaded_rows(service):
    return [file["row"] for files in uploaded(service) for file in files]


def test_the_result_says_which_file_went_in_which_request(context, write):
    files = [write("a", "1"), {"row": 1}, write("b", "22"), write("c", "333")]
    assert upload(*files, files_per_request=2).execute(context(task_id="upload")) == {
        "run_id": "1001",
        "files": 4,
        "bytes": 6,
        "request_count": 2,
        "requests": [
            {"files": ["a", None], "count": 2, "bytes": 1, "response": "2 files received"},
            {"files": ["b", "c"], "count": 2, "bytes": 5, "response": "2 files received"},
        ],
    }


class TestRequests:
    @pytest.mark.parametrize(
        ("of_connection", "of_operator", "sent"),
        [
            (
                {},
                None,
                {"name": "a", "content_type": "application/octet-stream", "content": "eA=="},
            ),
            ({"file_format": {"file": "name"}}, None, {"file": "a"}),
            ({"file_format": {"file": "name"}}, {"bytes": "size"}, {"bytes": 1}),
        ],
    )
    def test_file_format(
        self, service, context, write, workflow_automation_connect, of_connection, of_operator, sent
    ):
        workflow_automation_connect(extra=of_connection)
        upload(write("a"), file_format=of_operator).execute(context(task_id="upload"))
        assert uploaded(service) == [[sent]]

    @pytest.mark.parametrize(("spare", "requests"), [(0, [["a", "b"]]), (-1, [["a"], ["b"]])])
    def test_max_request_bytes_is_of_the_body_in_its_format(
        self, service, context, write, spare, requests
    ):
        limit = len('{"flow_id":"demo-flow","run_id":"1001","files":["a","b"]}') + spare
        upload(write("a"), write("b"), max_request_bytes=limit).execute(context(task_id="upload"))
        assert uploaded(service) == requests


def is_broken_off(service):
    """Have the service be busy after the first request."""
    service.faults.add("delay", operation="upload", seconds=0)
    service.faults.add("busy", operation="upload")


def at_another_place(files, _):
    """Return the same files, but for the path of one."""
    path = Path(files[0])
    other = path.with_name("other") / path.name
    other.parent.mkdir()
    other.hardlink_to(path)
    return [str(other), *files[1:]]


@pytest.mark.parametrize(
    ("change", "options"),
    [
        *(
            (lambda files, _: files, options)
            for options in (
                {"run_id": "1002"},
                {"file_format": {"a": "name"}},
                {"files_per_request": 3},
                {"max_request_bytes": 62},
            )
        ),
        (lambda files, write: [write("a", "2"), *files[1:]], {}),
        (at_another_place, {}),
        (lambda files, _: files[::-1], {}),
        (lambda files, _: [*files, files[0]], {}),
        (lambda files, _: [files[0], {"row": 2}, *files[2:]], {}),
    ],
)
def test_all_is_sent_again_if_the_requests_differ(service, attempt, write, log, change, options):
    usual = {"flow_id": "demo-flow", "files_per_request": 2, "file_format": {"c": "name"}}
    files: list[Any] = [write("a"), {"row": 1}, write("b"), write("c")]
    is_broken_off(service)
    with pytest.raises(BusyError):
        upload(*files, **usual).execute(attempt())
    files = change(files, write)
    for number in (2, 3):  # the third one has nothing left to send
        upload(*files, **{**usual, **options}).execute(attempt(try_number=number))
    assert sum(map(len, uploaded(service)[1:])) == len(files)
    assert mentions(log(), "an earlier try", "sending all files")


@pytest.mark.parametrize(
    "difference",
    [
        {"name": "b"},
        {"size": 2},
        {"content_type": "text/plain"},
        {"source": "b"},
        {"path": "b"},
    ],
)
def test_all_is_sent_again_if_a_file_differs_in_one_thing(service, attempt, difference):
    def file(**different):
        facts: dict[str, Any] = {
            "name": "a",
            "size": 1,
            "content_type": "text/csv",
            "source": "a",
            "path": "a",
            **different,
        }
        return File(**facts, open=lambda: io.BytesIO(bytes(facts["size"])))

    is_broken_off(service)
    with pytest.raises(BusyError):
        upload(file(), {"row": 1}, files_per_request=1).execute(attempt())
    upload(file(**difference), {"row": 1}, files_per_request=1).execute(attempt(try_number=2))
    assert len(service.uploads) == 3


def test_a_trigger_by_path_uploads_without_a_flow_of_the_connection(
    service, context, workflow_automation_connect
):
    workflow_automation_connect(extra={"flow_id": None})
    trigger(flow_id="demo-flow", files=[{"row": 1}]).execute(context())
    assert uploaded_rows(service) == [1]


def test_an_error_names_the_flow_of_the_result_that_was_given(context):
    run = {"run_id": "1001", "flow_id": "the-triggers"}
    with pytest.raises(FileUnavailableError) as caught:
        upload("/nowhere/a", run_id=run).execute(context(task_id="upload"))
    assert (caught.value.run_id, caught.value.flow_id) == ("1001", "the-triggers")


def test_what_was_sent_for_another_flow_does_not_count(attempt, service, log):
    is_broken_off(service)
    with pytest.raises(BusyError):
        upload_rows(1, 2).execute(attempt())
    with pytest.raises(RejectedError, match="another flow"):
        upload_rows(1, 2, flow_id="another").execute(attempt(try_number=2))
    assert mentions(log(), "an earlier try", "sending all files")


def test_a_path_is_relative_to_the_fixed_part_of_the_glob(service, attempt, tmp_path):
    for name in ("x/data.csv", "y/z/data.csv"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True)
        path.write_text(name)

    upload(f"{tmp_path}/in/**/*.csv", f"{tmp_path}/in/x/data.csv", file_format="path").execute(
        attempt()
    )
    assert uploaded(service) == [["x/data.csv", "y/z/data.csv", "data.csv"]]


def test_state_result_and_log_are_bounded(service, store, attempt, log):
    long = "a" * 2000 + "b"
    service.faults.add("response", operation="upload", body=json.dumps(long))
    rows = [{"row": number} for number in range(1100)]
    result = upload(*rows, files_per_request=50).execute(attempt())
    assert store.entries[KEY]["confirmed"] == result["request_count"] == 22
    assert len(store.entries[KEY]["responses"]) == len(result["requests"]) == 20
    assert result["requests"][0] == {
        "files": [None] * 20,
        "count": 50,
        "bytes": 0,
        "response": long[:-1],
    }
    text = log()
    assert mentions(text, "files: 1100")
    assert text.count("a mapping") == 20


def test_an_odd_name_and_an_odd_response_forge_no_line(service, attempt, write, log):
    name = "a\n\u2028Started run 66"
    files = [write(name), File(name, 1, "text/csv", source=name, open=lambda: io.BytesIO(b"x"))]
    service.faults.add("response", operation="upload", body="thanks\nStarted run 77")
    for try_number in (1, 2):
        (request,) = upload(*files).execute(attempt(try_number=try_number))["requests"]
        assert request["files"] == ["a\\n\\u2028Started run 66"] * 2
    assert len(service.uploads) == 1
    text = log()
    assert not any(line.startswith("Started run") for line in text.splitlines())
    assert mentions(text, "\\u2028Started run 66")
    assert mentions(text, "thanks\\nStarted run 77")


class TestLog:
    @pytest.fixture(autouse=True)
    def _slow(self, monkeypatch):
        """Have each look at the clock be 6 seconds after the last."""
        now = iter(range(0, 10_000, 6))
        monkeypatch.setattr(uploads, "time", SimpleNamespace(monotonic=lambda: next(now)))

    def test_confirmed_requests_are_logged_now_and_then(self, context, write, log):
        upload(*[write(name) for name in "abcdefghijkl"], files_per_request=1).execute(
            context(task_id="upload")
        )
        text = log()
        logged = [number for number in range(1, 13) if f"Request {number} of 12 confirmed" in text]
        assert logged == [3, 6, 9, 12]
        assert text.count("1 file received") == 4
        assert mentions(text, "run 1001: a, b, c, d, e, f, g, h, i, j", "(files: 12, bytes: 12)")


def is_gone():
    raise PermissionError(13, "Permission denied")


class TestRecord:
    @pytest.mark.parametrize(
        ("look", "why"), [(partial(next, count()), "changed"), (is_gone, r"\(Permission denied\)")]
    )
    def test_a_file_that_is_not_as_it_was_is_neither_sent_nor_recorded(
        self, service, store, attempt, look, why
    ):
        file = File("a", 1, "text/csv", "<a>", open=lambda: io.BytesIO(b"x"), fingerprint=look)
        with pytest.raises(FileUnavailableError, match=f"<a>.*{why}"):
            upload(file, file_format="base64").execute(attempt())
        assert (uploaded(service), store.entries) == ([], {})

    def test_an_upload_that_cannot_be_recorded_is_a_success(self, service, store, attempt, log):
        store.failures["set upload"] = 1
        result = upload({"row": 1}).execute(attempt())
        assert len(result["requests"]) == len(service.uploads) == 1
        assert (store.failures["set upload"], store.entries) == (0, {})
        assert "not be recorded" in log()


class TestTries:
    def test_each_try_goes_on_from_all_before(self, service, store, attempt, log):
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        for number in (1, 2):
            is_broken_off(service)
            with pytest.raises(BusyError):
                upload_rows(1, 2, 3).execute(attempt(try_number=number))
        result = upload_rows(1, 2, 3).execute(attempt(try_number=3))
        assert uploaded_rows(service) == [1, 2, 3]
        assert result["files"] == 3
        assert [request["response"] for request in result["requests"]] == ["1 file received"] * 3
        assert store.entries[KEY]["confirmed"] == 3
        assert {key: store.retentions[key] for key in store.entries} == {KEY: NEVER_EXPIRE}
        text = log()
        assert mentions(text, "sent 1 of 3 requests")
        assert mentions(text, "Request 3 of 3 confirmed")

    def test_a_404_for_the_record_sends_nothing_twice(self, service, store, attempt):
        upload_rows(1, 2).execute(attempt())
        store.lost = [KEY]
        upload_rows(1, 2).execute(attempt(try_number=2))
        assert uploaded_rows(service) == [1, 2]

    def test_after_a_clear_no_earlier_request_counts(self, service, attempt):
        upload_rows(1, 2).execute(attempt())
        upload_rows(3).execute(attempt(try_number=2, max_tries=4))
        assert uploaded_rows(service) == [1, 2, 3]

    def test_a_clear_sends_again_what_was_sent_in_part(self, service, attempt):
        is_broken_off(service)
        with pytest.raises(BusyError):
            upload_rows(1, 2).execute(attempt())
        upload_rows(1, 2).execute(attempt(try_number=2, max_tries=4))
        assert uploaded_rows(service) == [1, 1, 2]

    def test_what_is_uploaded_needs_no_file_and_no_connection(
        self, service, attempt, write, monkeypatch, log
    ):
        file = write("a")
        results = [upload(file, {"row": 1}, files_per_request=1).execute(attempt())]
        Path(file).unlink()
        monkeypatch.setenv("AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT", "{}")
        results += [upload(file, {"row": 1}).execute(attempt(try_number=2))]
        assert results[0] == results[1]
        assert (results[0]["bytes"], len(service.uploads)) == (1, 2)
        assert mentions(log(), "uploaded all files for run 1001")

    def test_a_file_that_is_gone_does_not_deny_what_an_earlier_try_sent(
        self, service, attempt, write
    ):
        file = write("a")
        is_broken_off(service)
        with pytest.raises(BusyError):
            upload({"row": 1}, file, files_per_request=1).execute(attempt())
        Path(file).unlink()
        with pytest.raises(FileUnavailableError) as caught:
            upload({"row": 1}, file, files_per_request=1).execute(attempt(try_number=2))
        assert caught.value.consequence == NOTHING_SENT_NOW
        assert len(service.uploads) == 1

    def test_a_file_that_changes_does_not_deny_what_this_try_has_sent(self, service, attempt):
        looks = chain("aab", repeat("b"))
        file = File(
            "a",
            1,
            "text/csv",
            "<a>",
            open=lambda: io.BytesIO(b"x"),
            fingerprint=lambda: next(looks),
        )
        with pytest.raises(FileUnavailableError) as caught:
            upload({"row": 1}, file, files_per_request=1, file_format="base64").execute(attempt())
        assert len(service.uploads) == 1
        assert caught.value.consequence.endswith("its files were not accepted.")

    def test_a_record_that_cannot_be_read_says_nothing_of_a_run(self, service, store, attempt):
        store.entries[KEY] = {"digest": "x", "confirmed": "all"}
        with pytest.raises(InvalidRequestError) as caught:
            upload_rows(1).execute(attempt(try_number=2))
        assert isinstance(caught.value, AirflowFailException)
        assert KEY in str(caught.value)
        assert caught.value.accepted is Accepted.NO
        assert MAYBE_STARTED not in str(caught.value)
        assert service.uploads == []

    def test_without_a_store_everything_is_sent_again(self, service, context):
        for try_number in (1, 2):
            upload_rows(1).execute(context(task_id="upload", try_number=try_number))
        assert uploaded_rows(service) == [1, 1]


def test_an_unknown_outcome_is_sent_again_or_left_to_airflow(service, attempt):
    service.faults.add("drop_after", operation="upload")
    upload_rows(1, send_retry_timeout=30).execute(attempt())
    assert uploaded_rows(service) == [1, 1]
    service.faults.add("drop_after", operation="upload")
    with pytest.raises(OutcomeUnknownError) as caught:
        upload_rows(2, run_id="1002").execute(attempt())
    assert not isinstance(caught.value, AirflowFailException)


def test_an_ended_task_uploads_nothing_more(service, attempt, monkeypatch):
    service.faults.add("busy", operation="upload", retry_after="30", times=None)
    operator = upload_rows(1, send_retry_timeout=120)
    # While it waits.
    monkeypatch.setattr("time.sleep", lambda _: operator.on_kill())
    with pytest.raises(BusyError):
        operator.execute(attempt())
    assert len(service.journal.requests("upload")) == 1
    with pytest.raises(NotSentError, match="task was ended"):
        operator.execute(attempt(try_number=2))
    assert len(service.journal.requests("upload")) == 1


@pytest.mark.parametrize(
    "run_id",
    [1001, {"run_id": "1001", "run_link": "http://there", "flow_id": "the-triggers"}],
    ids=["a number, as native rendering makes it", "a result"],
)
def test_run_id_is_a_number_or_a_result_whose_flow_may_be_replaced(service, attempt, run_id):
    assert upload_rows(1, run_id=run_id, flow_id="demo-flow").execute(attempt())["run_id"] == "1001"
    assert [(sent.run_id, sent.flow_id) for sent in service.uploads] == [("1001", "demo-flow")]
