"""How a task ends: the one place where an error gets its last words, and where Airflow is told not to retry."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    InvalidRequestError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.retry import LEFT_TO_AIRFLOW

if TYPE_CHECKING:
    from airflow.sdk import Context

# Without a task state store.
_WITHOUT_ENTRY = (
    "mark the task as success: downstream tasks then get no run_id. A Clear starts another run."
)
_UPLOAD_AGAIN = "upload the files with UploadFilesOperator: clearing the task starts another run."


def task_error(
    error: WorkflowAutomationError,
    context: Context,
    *,
    retried: tuple[type[WorkflowAutomationError], ...] = (),
    again: str = "clear the task.",
    starts_again: bool = False,
    what_to_do: str | None = None,
    name: str = "",
    earlier: WorkflowAutomationError | None = None,
    run_id: str | None = None,
) -> WorkflowAutomationError:
    """
    Return the error to fail the task with, which says whether there is a run, and what to do.

    :param retried: errors to leave to Airflow's retry, in addition to busy, not sent and an unavailable file
    :param again: how to start over
    :param starts_again: whether a retry after an unknown outcome starts another run
    :param what_to_do: in place of what the code says
    :param name: the name of a start within the task
    :param earlier: what an earlier try left, as an error to be mentioned if this one started nothing
    :param run_id: the run that this task started, empty if its id is unknown; None if it started none
    :return: one of the same class if a retry may help, otherwise one that is also an ``AirflowFailException``.
        Without a traceback, which would not help a DAG author
    """
    if isinstance(error, AirflowFailException):
        return error.with_traceback(None)  # a start inside the task has said it all
    has_store = "task_state_store" in context
    # Only with a record does a retry find the run.
    may_retry = (run_id is None or has_store) and not isinstance(error, RunTimeoutError)
    is_retried = may_retry and isinstance(error, (*LEFT_TO_AIRFLOW, *retried))
    code, consequence, run, accepted = error.code, error.consequence, error.run_id, error.accepted
    if earlier and accepted is Accepted.NO:
        code, run, accepted = earlier.code, earlier.run_id, earlier.accepted
        consequence = f"{consequence}\nBut {earlier.message}"
    if run_id is not None:
        sent = "" if isinstance(error, InvalidRequestError) else consequence
        started = f"Run {run_id} was started." if run_id else "A run was started."
        run, consequence = run_id, f"{started}\n{sent}".strip()
        again = how_to_continue(run) if has_store else _UPLOAD_AGAIN
    if what_to_do is None and code:
        enter = how_to_continue(run, name) if has_store else _WITHOUT_ENTRY
        what_to_do = code.what_to_do.format(again=again, enter=enter)
    others = "Clearing the task starts all its other runs again." if name else ""
    risk = "If Airflow retries the task, that may start a second run."
    is_risky = is_retried and starts_again and accepted is Accepted.MAYBE
    lines = (risk * is_risky, error.next_step, what_to_do, others)
    kind: Any = type(error)
    return error.with_facts(
        kind if is_retried else _final_class(kind),
        accepted=accepted,
        consequence=consequence,
        next_step="\n".join(filter(None, lines)),
    ).with_traceback(None)


def how_to_continue(run_id: str | None = None, name: str = "") -> str:
    """
    Say how a person makes a task continue with a run, on Airflow 3.3 and later.

    :param run_id: the run, None or empty if the person has to find it
    :param name: the name of a start within the task
    """
    # Not at the top: each DAG file imports this module.
    from workflow_automation_provider.execution.ledger import ENTERED

    value = json.dumps(run_id or "RUN_ID", ensure_ascii=False)
    key = f"{ENTERED}/{name}" if name else ENTERED
    return (
        "enter the run_id, and clear the task to continue with that run: without the entry, a Clear starts another one.\n"
        f"To enter it: the task instance's tab Storage, key {key}, value {value} with the quotes."
    )


@functools.cache
def _final_class(kind: Any) -> Any:
    """Return an exception of the same name that is also an ``AirflowFailException``."""
    names = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": _reduced}
    return type(kind.__name__, (kind, AirflowFailException), names)


def _reduced(error: WorkflowAutomationError) -> tuple[Any, ...]:
    return _restored, (type(error).__bases__[0], *error.args), vars(error)


def _restored(kind: Any, *args: Any) -> Any:
    return _final_class(kind)(*args)
