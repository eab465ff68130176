"""
The words of every failed request and task: facts in, the text of an error out. Nothing else words them.

An error says, in lines of their own: its code and what happened; what that means; what earlier tries did; whether
Airflow retries the task; what to do next; and the connection, flow and run. docs/if-it-fails.md is ordered by code.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Literal, NamedTuple

from workflow_automation_provider.client.outcome import (
    Busy,
    Check,
    Confirmed,
    Failure,
    NotSent,
    Outcome,
    Proxy,
    Reason,
    Rejected,
    Started,
    Unidentified,
    Unknown,
    Unquoted,
)
from workflow_automation_provider.client.protocol import Operation, Run
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    FileUnavailableError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    RunFailedError,
    RunTimeoutError,
    WorkflowAutomationError,
)

__all__ = [
    "BATCH_ADVICE",
    "CLAIM_ADVICE",
    "START_ADVICE",
    "SUPPLIED_RUN_KEY",
    "UPLOAD_ADVICE",
    "Code",
    "Outlook",
    "PreviousTry",
    "check_text",
    "code_of",
    "consequence_of",
    "how_to_enter",
    "reason_of",
    "request_error",
    "response_of",
    "run_advice",
    "run_of",
    "run_started",
    "silence_error",
    "start_advice",
    "task_error",
    "unclaimed_error",
    "where_to_look",
]


class Code(enum.StrEnum):
    """The kinds of failure: docs/if-it-fails.md has a section for each."""

    INVALID = "invalid-request"
    FILE = "file-unavailable"
    NOT_SENT = "not-sent"
    BUSY = "busy"
    REJECTED = "rejected"
    KEY_REJECTED = "key-rejected"
    NOT_FOUND = "not-found"
    TOO_LARGE = "too-large"
    REDIRECTED = "redirected"
    START_UNKNOWN = "start-unknown"
    START_REVOKED = "start-revoked"
    RUN_UNIDENTIFIED = "run-unidentified"
    UPLOAD_UNKNOWN = "upload-unknown"
    RUN_FAILED = "run-failed"
    RUN_OVERDUE = "run-overdue"
    RUN_SILENT = "run-silent"
    BATCH_INTERRUPTED = "batch-interrupted"


_OF_TRIGGER = {
    Accepted.NO: "No run was started.",
    Accepted.MAYBE: "A run may have been started.",
    Accepted.YES: "A run was started, but its run_id is unknown.",
}
_OF_UPLOAD = {
    Accepted.NO: "No files were accepted.",
    Accepted.MAYBE: "The files may have been accepted.",
    Accepted.YES: "The files were accepted.",
}

_UNQUOTED = {
    Unquoted.INCOMPLETE: "The response is not shown, because it is incomplete.",
    Unquoted.NOT_TEXT: "The response is not shown, because it is neither JSON nor plain text.",
    Unquoted.SECRET: "The response is withheld: it contains the API key or another secret.",
}


_VIA = {
    None: "",
    Proxy.CONNECTION: " via the connection's proxy",
    Proxy.ENVIRONMENT: " via the proxy from the environment (HTTPS_PROXY and the like)",
}


def consequence_of(operation: Operation, accepted: Accepted) -> str:
    """Say what the service did with a request."""
    return (_OF_UPLOAD if operation is Operation.UPLOAD else _OF_TRIGGER)[accepted]


def where_to_look(operation: Operation) -> str:
    """Say where to look if the outcome of a request is unknown."""
    where = "the run's files" if operation is Operation.UPLOAD else "the workflow's list of runs"
    return f"Look in {where}."


def run_of(outcome: Outcome) -> Run:
    """
    Return the run that a trigger has started.

    :raises WorkflowAutomationError: if there is none
    """
    if isinstance(outcome, Started):
        return outcome.run
    raise _error(outcome)


def response_of(outcome: Outcome) -> str:
    """
    Return the service's response to an upload.

    :raises WorkflowAutomationError: if there is none
    """
    if isinstance(outcome, Confirmed):
        return outcome.response
    raise _error(outcome)


def _error(outcome: Outcome) -> Exception:
    return request_error(outcome) if isinstance(outcome, Failure) else TypeError(f"not expected: {outcome}")


def request_error(failure: Failure) -> WorkflowAutomationError:
    """Return the error of a request that did not succeed, as the hook raises it."""
    operation = failure.request.operation
    kind, message, _ = _KINDS[type(failure)]
    lines = [message(failure), _quote(failure)]
    if tries := failure.attempts:
        is_longer = (failure.retry_after or 0) > tries.limit - tries.seconds
        lines.append(
            f"Tried {tries.number} times in {tries.seconds:.0f} s ({tries.limited_by}: {tries.limit:g} s)."
            f"{' The service asks for a longer wait.' if is_longer else ''}"
        )
    where = "" if failure.accepted is Accepted.NO else where_to_look(operation)
    return kind(
        "\n".join(filter(None, lines)),
        code=code_of(failure),
        consequence=consequence_of(operation, failure.accepted),
        next_step="\n".join(filter(None, (_hint(failure), where))),
        status=failure.status,
        retry_after=failure.retry_after,
    )


def unclaimed_error(
    error: WorkflowAutomationError, timeout: timedelta | None, *, is_revoked: bool
) -> WorkflowAutomationError:
    """
    Return the error of a start of unknown outcome that no run has claimed.

    :param error: of its request
    :param timeout: how long a claim was waited for
    :param is_revoked: whether its run, if there is one, can no longer go on
    """
    said = f"No run claimed this start within claim_timeout ({timeout})."
    if is_revoked:
        then = "A run of it that claims now is told to stop: clearing the task is safe."
    else:
        then = "A run of it can still claim until the next try."
    return OutcomeUnknownError(
        error.message,
        code=Code.START_REVOKED if is_revoked else Code.START_UNKNOWN,
        consequence=f"{_OF_TRIGGER[Accepted.MAYBE]}\n{said}\n{then}",
        next_step=_FIRST_STEP,
        status=error.status,
    )


_FIRST_STEP = "If the flow has no first step that claims its start, look in the workflow's list of runs."


def reason_of(failure: Failure) -> str:
    """Return what happened in one line, for an item of a batch."""
    return " ".join(f"{_KINDS[type(failure)][1](failure)} {_quote(failure)}".split())


def _quote(failure: Failure) -> str:
    if isinstance(failure.quote, Unquoted):
        return _UNQUOTED[failure.quote]
    return f'The service said: "{failure.quote}"' if failure.quote else ""


def code_of(failure: Failure) -> Code:
    """Return the code of a request that did not succeed."""
    if isinstance(failure, Unknown) and failure.request.operation is Operation.UPLOAD:
        return Code.UPLOAD_UNKNOWN
    *_, code = _KINDS[type(failure)]
    if not isinstance(failure, Rejected) or failure.status is None:
        return code
    return Code.REDIRECTED if failure.status < 400 else _REJECTIONS.get(failure.status, code)


def _hint(failure: Failure) -> str:
    """Say what to check."""
    operation = failure.request.operation
    is_upload = operation is Operation.UPLOAD
    match failure.status:
        case _ if isinstance(failure, Busy):
            return ""
        case None:
            return "" if isinstance(failure, Unknown) else _connection_hint(failure.reason, failure.via)
        case 400 | 422 if is_upload:
            return "Check that file_format is what the service expects."
        case 400 | 422:
            return "Compare the inputs with those that the workflow defines."
        case 401 | 402 | 403 | 404 if is_upload:
            return "Check that the run belongs to the flow, and that the API key belongs to this flow and has not expired."
        case 401 | 402 | 403 if operation.takes_key:
            return "Check the API key: it must be this workflow's, not expired, and have runs left."
        case 401 | 402 | 403:
            return "A trigger with a flow_id does not send the API key: to send it, leave flow_id out."
        case 404 | 405:
            also = " and the flow_id" if operation is Operation.TRIGGER_BY_PATH else ""
            return f"Check the connection's base URL{also}."
        case 407:
            return "Check the connection's proxy."
        case 413 if is_upload:
            return "Send fewer or smaller files in one request: see files_per_request and max_request_bytes."
        case 413:
            return "Shorten the inputs: for example, pass the URL of a file instead of its content."
        case 408 | 503 as status if isinstance(failure, Unknown):
            return (
                "A gateway may have returned this after it had forwarded the request. If the service, and every gateway in front of it, returns "
                f"{status} only before it does anything, add {status} to the connection's busy_statuses."
            )
        case status if 300 <= status < 400:
            return _redirect_hint(status, failure.location or "another URL")
        case status if 200 <= status < 300 and isinstance(failure, Unidentified):
            return "Sending the request again would start another run."
        case status if 200 <= status < 300:
            page = "It may be a login page: check" if isinstance(failure, Unknown) else "Check"
            return f"{page} the connection's base URL, and any proxy in front of the service."
    return ""


def _redirect_hint(status: int, location: str) -> str:
    if status in (302, 303):
        return (
            f"It redirects to {location!a}: the result, a login page, or the service's new URL. If it is the new URL, "
            "set it as the connection's base URL. Redirects are never followed."
        )
    return (
        f"It redirects to {location!a}. Redirects are never followed, because the API key would be sent there too: set "
        "the correct URL as the connection's base URL."
    )


def _connection_hint(reason: Reason | None, via: Proxy | None) -> str:
    match reason:
        case Reason.CERTIFICATE:
            return "Check the connection's CA bundle, and that the base URL has the host name that the certificate is for."
        case Reason.NO_TLS:
            return (
                "Check the connection's base URL: it must begin with http:// if the service does not use TLS."
            )
        case Reason.UNREACHABLE:
            return f"Check {'the proxy and ' if via else ''}the connection's base URL."
        case Reason.WRITE:
            return "The request may be too large for the service."
    return ""


def _title(failure: Failure) -> str:
    return f"POST {failure.request.url}"


def _status(failure: Failure) -> str:
    try:
        return f"{failure.status} {HTTPStatus(failure.status or 0).phrase}"
    except ValueError:
        return str(failure.status)


def _rejected(failure: Failure) -> str:
    return f"{_title(failure)} was rejected: {_status(failure)}."


def _busy(failure: Failure) -> str:
    asked = "" if failure.retry_after is None else f", with a Retry-After of {failure.retry_after:.0f} s"
    return f"{_title(failure)} was rejected as busy: {_status(failure)}{asked}."


def _unidentified(failure: Failure) -> str:
    return (
        f"{_title(failure)} returned {_status(failure)}, but the response cannot be used: {failure.detail}."
    )


def _not_sent(failure: Failure) -> str:
    why = f": {failure.detail}" if failure.detail else ""
    if failure.status is not None:
        return f"{_title(failure)} returned {_status(failure)} before all of it was sent, and was then aborted{why}."
    if failure.reason is Reason.STOPPED:
        why = ": the task was ended"
    what = "aborted before all of it was sent" if failure.begun else f"not sent{_VIA[failure.via]}"
    return f"{_title(failure)} was {what}{why}."


def _unknown(failure: Failure) -> str:
    if failure.reason is Reason.REPEATED:
        return f"{_title(failure)} was sent, but got the response to an earlier request: run {failure.detail} was known."
    if failure.status is None:
        return f"{_title(failure)} was sent, but got no response: {failure.detail}."
    return f"{_title(failure)} returned {_status(failure)}{f' {failure.detail}' if failure.detail else ''}."


_KINDS: dict[type[Failure], tuple[type[WorkflowAutomationError], Callable[[Failure], str], Code]] = {
    Unidentified: (ResponseUnusableError, _unidentified, Code.RUN_UNIDENTIFIED),
    Rejected: (RejectedError, _rejected, Code.REJECTED),
    Busy: (BusyError, _busy, Code.BUSY),
    NotSent: (NotSentError, _not_sent, Code.NOT_SENT),
    Unknown: (OutcomeUnknownError, _unknown, Code.START_UNKNOWN),
}

_REJECTIONS = {
    401: Code.KEY_REJECTED,
    402: Code.KEY_REJECTED,
    403: Code.KEY_REJECTED,
    404: Code.NOT_FOUND,
    405: Code.NOT_FOUND,
    413: Code.TOO_LARGE,
}


def check_text(check: Check) -> str:
    """Say what a check of the connection came to."""
    title = f"HEAD {check.url}"
    if check.status is None and check.reason is Reason.STOPPED:
        return f"{title} was not sent: the task was ended."
    if check.status is None:
        hint = _connection_hint(check.reason, check.via) or _connection_hint(Reason.UNREACHABLE, check.via)
        return f"{title} got no response{_VIA[check.via]}: {check.detail}.\n{hint}".strip()
    if 300 <= check.status < 400:
        location = check.location or "another URL"
        return f"{title} redirects to {location!a}, which may be the right base URL: redirects are never followed"
    return f"{title} returned {check.status}{': the service is not working.' * (check.status >= 500)}"


# What a task ends with ---------------------------------------------------------------------------------------

SUPPLIED_RUN_KEY = "workflow_automation_run"
"""The entry of the task state store by which a person gives a task its run."""

START_ADVICE: Mapping[Accepted, str] = {
    Accepted.NO: "Fix the cause, then clear the task.",
    Accepted.MAYBE: (
        "If there is no run, clear the task to start one.\n"
        "If there is one, mark the task as success: downstream tasks then get no run_id."
    ),
    Accepted.YES: (
        "Mark the task as success: downstream tasks then get no run_id.\n"
        "Or clear the task to start another run."
    ),
}
"""What to do about a start that Airflow does not retry, depending on what the service did."""

CLAIM_ADVICE: Mapping[Accepted, str] = {
    Accepted.NO: "Fix the cause, then clear the task.",
    Accepted.MAYBE: "Clear the task to start another run.",
}
"""What to do about a start whose run would have claimed it: never that a second one may be started."""

BATCH_ADVICE: Mapping[Accepted, str] = {
    Accepted.NO: "Fix the cause, then clear the task.",
    Accepted.MAYBE: (
        "Start the items that have no run in a batch of their own: clearing the task starts all items again."
    ),
    Accepted.YES: (
        "Fix the cause, then start the items that have no run in a batch of their own: clearing the task starts all "
        "items again."
    ),
}
"""What to do about a batch that Airflow does not retry, depending on what the service did."""

UPLOAD_ADVICE: Mapping[Accepted, str] = {
    Accepted.NO: "Fix the cause, then clear the task to upload all files.",
    Accepted.MAYBE: (
        "If the files are there, mark the task as success.\nIf not, clear the task to upload all files again."
    ),
}
"""What to do about an upload that Airflow does not retry, depending on what the service did."""


def start_advice(name: str | None = None, *, has_store: bool = True) -> Mapping[Accepted, str]:
    """
    Return what to do about a start that Airflow does not retry.

    :param name: of one of several starts within the task
    :param has_store: whether Airflow has a task state store, into which a run can be entered (3.3+)
    """
    if not has_store:
        return START_ADVICE
    how = how_to_enter(f"{SUPPLIED_RUN_KEY}/{name}" if name else SUPPLIED_RUN_KEY)
    if name:
        how += "\nA Clear starts every other run of the task again."
    return {
        **START_ADVICE,
        Accepted.MAYBE: (
            "If there is no run, clear the task to start one.\n"
            f"If there is one, enter its run_id, then clear the task to return that run.\n{how}"
        ),
        Accepted.YES: (
            f"Find the run and enter its run_id, then clear the task to return that run.\n{how}\n"
            "Or clear the task to start another run."
        ),
    }


def how_to_enter(entry: str = SUPPLIED_RUN_KEY, run_id: str | None = None) -> str:
    """Return how a person gives a task its run, on Airflow 3.3 and later."""
    value = json.dumps(run_id or "RUN_ID", ensure_ascii=False)
    return f"To enter it: the task instance's tab Storage, key {entry}, value {value} with the quotes."


def run_started(run_id: str | None) -> str:
    """Say that a run was started, and which one if that is known."""
    return f"Run {run_id} was started." if run_id else "A run was started."


def run_advice(run_id: str | None, *, has_store: bool = True) -> str:
    """Return what to do about a task that failed after it had started its run."""
    if not has_store:
        return "Clearing the task starts another run: upload the files with UploadFilesOperator instead."
    return (
        "To continue with that run, fix the cause, enter its run_id, then clear the task.\n"
        f"{how_to_enter(run_id=run_id)}\nWithout that entry, a Clear starts another run."
    )


def silence_error(run: Mapping[str, object], limit: timedelta, last: str) -> RunTimeoutError:
    """
    Return the error of a run that has said nothing for too long.

    :param last: its last word, in a sentence
    """
    run_id = str(run["run_id"]) if "run_id" in run else None
    return RunTimeoutError(
        f"The run has said nothing for longer than heartbeat_timeout ({limit}). {last}",
        code=Code.RUN_SILENT,
        consequence=f"{run_started(run_id)}\nWhen it next asks, it is told to stop.",
        next_step="Look at the run. If it failed, clear the task to start another one.",
    )


class PreviousTry(NamedTuple):
    """
    What an earlier try of the task did, which an error must mention if this try started nothing.

    :param text: that in words, beginning with the number of the try
    """

    accepted: Accepted
    text: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """
    What Airflow will do about a task that failed.

    :param what: "ended" if Airflow ended the task itself
    :param next_try: the number of the next try
    :param tries: the number of the last one
    :param delay: the wait before it, None if that is the task's ``retry_delay``
    """

    what: Literal["fail", "fail by policy", "no retries left", "reschedule", "by policy", "retry", "ended"]
    next_try: int = 0
    tries: int = 0
    delay: timedelta | None = None


# Of errors that are not about one request; the most specific ones first.
_CODES: tuple[tuple[type[WorkflowAutomationError], Code], ...] = (
    (InvalidRequestError, Code.INVALID),
    (FileUnavailableError, Code.FILE),
    (NotSentError, Code.NOT_SENT),
    (BusyError, Code.BUSY),
    (RejectedError, Code.REJECTED),
    (ResponseUnusableError, Code.RUN_UNIDENTIFIED),
    (OutcomeUnknownError, Code.START_UNKNOWN),
    (RunTimeoutError, Code.RUN_OVERDUE),
    (RunFailedError, Code.RUN_FAILED),
)


def task_error(
    error: WorkflowAutomationError,
    kind: type[WorkflowAutomationError],
    outlook: Outlook,
    advice: Mapping[Accepted, str],
    *,
    later: str = "",
    previous: PreviousTry | None = None,
    run_id: str | None = None,
) -> WorkflowAutomationError:
    """
    Return the error that a task ends with: what happened, what earlier tries did, what Airflow will do, what to do.

    :param error: what happened in this try
    :param kind: the class to return
    :param advice: what to do if Airflow does not retry the task, depending on what the service did
    :param later: what to do if Airflow has no retries left, in place of clearing the task
    :param previous: what an earlier try did, to be mentioned if this one started nothing
    :param run_id: the run that this task started, empty if that is unknown; None if it started none
    """
    accepted, consequence, look = error.accepted, error.consequence, ""
    if previous and accepted is Accepted.NO:
        accepted, consequence = previous.accepted, f"{consequence}\nBut {previous.text}"
        look = where_to_look(Operation.TRIGGER_BY_KEY) if accepted is Accepted.MAYBE else ""
    if run_id is not None:
        sent = "" if isinstance(error, InvalidRequestError) else consequence
        consequence = "\n".join(filter(None, (run_started(run_id), sent)))
    failed = kind.__new__(kind, *error.args)
    failed.__dict__.update(error.__dict__)
    failed.accepted, failed.consequence = accepted, consequence
    failed.code = error.code or _code_of_kind(type(error), advice)
    lines = (
        _outlook_text(outlook, accepted, advice),
        error.next_step,
        look,
        _then(failed, outlook, advice, later),
    )
    failed.next_step = "\n".join(filter(None, lines))
    return failed


def _code_of_kind(kind: type[WorkflowAutomationError], advice: Mapping[Accepted, str]) -> str:
    if issubclass(kind, OutcomeUnknownError) and advice is UPLOAD_ADVICE:
        return Code.UPLOAD_UNKNOWN
    return next((code for known, code in _CODES if issubclass(kind, known)), "")


def _is_risky(accepted: Accepted, advice: Mapping[Accepted, str]) -> bool:
    """Return whether a retry may start a second run: files may be uploaded twice, and their advice knows no run."""
    return accepted is Accepted.MAYBE and Accepted.YES in advice


def _outlook_text(outlook: Outlook, accepted: Accepted, advice: Mapping[Accepted, str]) -> str:
    delay = outlook.delay
    wait = " after its retry_delay" if delay is None else f" in {delay.total_seconds():.0f} s"
    number = f"(try {outlook.next_try} of {outlook.tries})"
    again = ", which may start a second run" if _is_risky(accepted, advice) else ""
    match outlook.what:
        case "fail":
            return "Airflow will not retry this task."
        case "fail by policy":
            return "Airflow will not retry this task: its retry_policy says so."
        case "no retries left":
            return "Airflow has no retries left for this task."
        case "reschedule":
            return f"Airflow reschedules this task{wait}, without using a retry."
        case "by policy":
            return f"The task's retry_policy decides whether Airflow retries this task {number}{again}."
        case "retry":
            return f"Airflow retries this task{wait} {number}{again}."
    return ""


def _then(
    error: WorkflowAutomationError, outlook: Outlook, advice: Mapping[Accepted, str], later: str
) -> str:
    """Say what to do next."""
    match outlook.what:
        case "fail" | "fail by policy":
            # What to do about a run that failed, whoever reported it knows.
            return "" if isinstance(error, RunFailedError) else advice[error.accepted]
        case "no retries left" if error.accepted is not Accepted.NO:
            return advice[error.accepted]
        case "no retries left" if isinstance(error, FileUnavailableError):
            return later or "Clear the task once the file is available."
        case "no retries left":
            return later or "Clear the task later."
        case "retry" | "by policy" if _is_risky(error.accepted, advice):
            return "If the run is there, mark the task as success before then."
    return ""
