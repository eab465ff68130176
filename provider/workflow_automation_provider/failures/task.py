"""The words of the error that a task ends with: those of a request, what Airflow will do, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal, NamedTuple

from workflow_automation_provider.client.protocol import Operation
from workflow_automation_provider.exceptions import (
    Accepted,
    FileUnavailableError,
    InvalidRequestError,
    RunFailedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.failures.request import where_to_look

__all__ = [
    "BATCH_ADVICE",
    "CLAIM_ADVICE",
    "START_ADVICE",
    "SUPPLIED_RUN_KEY",
    "UPLOAD_ADVICE",
    "Outlook",
    "PreviousTry",
    "how_to_enter",
    "run_advice",
    "run_started",
    "start_advice",
    "task_error",
]

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

CLAIM_ADVICE: Mapping[Accepted, str] = {
    Accepted.NO: "Fix the cause, then clear the task.",
    Accepted.MAYBE: "Clear the task to start another run.",
}
"""What to do about a start whose run would have claimed it: never that a second one may be started."""


def start_advice(name: str | None = None, *, has_store: bool = True) -> Mapping[Accepted, str]:
    """
    Return what to do about a start that Airflow does not retry.

    :param name: of one of several starts within the task
    :param has_store: whether Airflow has a task state store, into which a run can be entered (3.3+)
    """
    advice = START_ADVICE
    if has_store:
        how = how_to_enter(f"{SUPPLIED_RUN_KEY}/{name}" if name else SUPPLIED_RUN_KEY)
        advice = {
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
    # Also after a start that was rejected: those before it have runs.
    others = "\nClearing the task starts all its other runs again." if name else ""
    return {accepted: f"{text}{others}" for accepted, text in advice.items()}


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
        f"{how_to_enter(run_id=run_id)}\nWithout that entry, clearing the task starts another run."
    )


class PreviousTry(NamedTuple):
    """
    What an earlier try of the task did, which an error must mention if this try started nothing.

    :param text: that in words, beginning with the number of the try
    """

    accepted: Accepted
    text: str


class Outlook(NamedTuple):
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
    lines = (
        _outlook_text(outlook, accepted, advice),
        error.next_step,
        look,
        _then(failed, outlook, advice, later),
    )
    failed.next_step = "\n".join(filter(None, lines))
    return failed


def _is_risky(accepted: Accepted, advice: Mapping[Accepted, str]) -> bool:
    """Return whether a retry may start a second run: an upload starts none, and a second one would not claim its start."""
    return accepted is Accepted.MAYBE and advice not in (UPLOAD_ADVICE, CLAIM_ADVICE)


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
    match outlook.what:
        case "fail" | "fail by policy" | "no retries left" if isinstance(error, RunFailedError):
            return ""  # what to do about it, whoever reported it knows
        case "fail" | "fail by policy":
            return _advised(error, advice)
        case "no retries left" if error.accepted is not Accepted.NO:
            return _advised(error, advice)
        case "no retries left" if isinstance(error, FileUnavailableError):
            return later or "Clear the task once the file is available."
        case "no retries left":
            return later or "Clear the task later."
        case "retry" | "by policy" if _is_risky(error.accepted, advice):
            return "If the run is there, mark the task as success before then."
    return ""


def _advised(error: WorkflowAutomationError, advice: Mapping[Accepted, str]) -> str:
    # Where clearing the task is safe, there is one advice for a run that is there, and for one that may be.
    return advice.get(error.accepted) or advice[Accepted.MAYBE]
