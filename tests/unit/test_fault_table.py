"""
What each fault comes to.

The code of the error, whether the service may have acted, and how many requests were sent.

Starts, items of batches and the hook agree, and what is said of a run is true; uploads, which may
be repeated, differ.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from workflow_automation_provider.exceptions import WorkflowAutomationError
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator

from .starts import trigger

OK = ("", "YES")
"""No error."""


class Row(NamedTuple):
    """
    A fault, and what it comes to.

    :param start: the code, and whether a run was started, as the error says
    :param upload: the same of an upload; None for as ``start``
    :param batch: the code of a batch of which one item ended so; None for as ``start``
    """

    kind: str
    options: dict[str, Any]
    start: tuple[str, str]
    upload: tuple[str, str] | None = None
    batch: str | None = None


UNKNOWN = ("start-unknown", "MAYBE")
UNIDENTIFIED = ("unidentified", "YES")
UPLOAD = ("upload-unknown", "MAYBE")

TABLE = [
    *(
        Row("reject", {"status": status}, ("rejected", "NO"))
        for status in (400, 409, 410, 415, 418, 422)
    ),
    *(Row("reject", {"status": status}, ("key-rejected", "NO")) for status in (401, 402, 403)),
    *(Row("reject", {"status": status}, ("not-found", "NO")) for status in (404, 405)),
    Row("reject", {"status": 413}, ("too-large", "NO"), batch="rejected"),
    *(Row("busy", {"status": status}, ("busy", "NO")) for status in (425, 429)),
    Row("busy", {"retry_after": 3600}, ("busy", "NO")),
    Row("busy", {"status": 408}, UNKNOWN, ("busy", "NO")),
    Row("busy", {"status": 503, "retry_after": 5}, UNKNOWN, ("busy", "NO")),
    *(
        Row("redirect", {"status": status, "location": "http://127.0.0.1/"}, ("redirected", "NO"))
        for status in (300, 301, 307, 308)
    ),
    *(
        Row("redirect", {"status": status, "location": "http://127.0.0.1/"}, UNKNOWN, UPLOAD)
        for status in (302, 303)
    ),
    *(
        Row(kind, {}, UNKNOWN, UPLOAD)
        for kind in ("drop_before", "reset_before", "drop_after", "reset_after")
    ),
    *(Row(kind, {"seconds": 1.5}, UNKNOWN, UPLOAD) for kind in ("hang_before", "hang_after")),
    *(Row("status_after", {"status": status}, UNKNOWN, UPLOAD) for status in (500, 502, 503, 504)),
    Row("empty", {}, UNIDENTIFIED, OK),
    Row("garbage", {}, UNIDENTIFIED, UPLOAD),
    Row("truncate", {}, UNIDENTIFIED, OK),
    Row("endless", {"limit": 3_000_000}, UNIDENTIFIED, OK),
    Row("response", {"body": "ok"}, UNIDENTIFIED, OK),
    Row("response", {"status": 202}, OK),
    Row("drip", {"seconds": 0.1}, OK),
    Row("stale", {}, OK),
    Row("echo_key", {"status": 400}, ("rejected", "NO")),
    Row("echo_key", {"status": 201}, OK, OK),
]


def do(what, make_context, run_id):
    """Send one request."""
    if what == "hook":
        WorkflowAutomationHook().trigger_flow({"a": 1})
        return
    options: dict[str, Any] = {"task_id": "task", "send_retry_timeout": 0}
    files = [{"name": "a.txt", "content": "a"}]
    operator = {
        "start": trigger(),
        "batch": TriggerFlowBatchOperator(batch=[{"a": 1}], **options),
        "upload": UploadFilesOperator(run_id=run_id, files=files, **options),
    }[what]
    operator.execute(make_context(operator))


@pytest.mark.parametrize("what", ["start", "batch", "upload", "hook"])
@pytest.mark.parametrize(
    "row", TABLE, ids=lambda row: f"{row.kind}-{row.options.get('status', '')}"
)
def test_what_a_fault_comes_to(
    service, workflow_automation_connect, workflow_automation_context, what, row
):
    workflow_automation_connect(extra={"timeout": 1 if row.kind.startswith("hang") else 60})
    run_id = WorkflowAutomationHook().trigger_flow({}).run_id
    service.faults.add(row.kind, **row.options)
    before = len(service.journal.requests()), len(service.runs) + len(service.uploads)
    code, accepted = "", "YES"
    try:
        do(what, workflow_automation_context, run_id)
    except WorkflowAutomationError as error:
        code, accepted = str(error.code), error.accepted.name
    expected = row.start
    if what == "upload" and row.upload:
        expected = row.upload
    elif what == "batch" and row.batch:
        expected = (row.batch, row.start[1])
    assert (code, accepted) == expected
    assert len(service.journal.requests()) - before[0] == 1
    accepts = len(service.runs) + len(service.uploads) - before[1]
    assert accepts == {"NO": 0, "YES": 1}.get(accepted, accepts)
