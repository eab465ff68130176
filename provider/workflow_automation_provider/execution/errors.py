"""How a task fails: the advice in its error, and whether Airflow may retry it."""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    ConnectionUnusableError,
    OutcomeUnknownError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.retry import LEFT_TO_AIRFLOW
from workflow_automation_provider.wording import run_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.execution.record.entries import RunResult

_Errors = tuple[type[WorkflowAutomationError], ...]

# Where there is no task state store (before Airflow 3.3): how to continue with a run, and how to
# upload the files of one.
_WITHOUT_ENTRY = (
    "mark the task as success: a Clear starts another run.\n"
    "Downstream tasks then get no run_id."
)  # fmt: skip
_UPLOAD_AGAIN = (
    "upload the files with UploadFilesOperator:\n"
    "a Clear of this task starts another run."
)  # fmt: skip

# In place of what a person may do once there are no retries left.
_WHILE_RETRIED = {
    Code.START_UNKNOWN: "Wait for Airflow's retry: until then, a Clear starts another run.",
    Code.UPLOAD_UNKNOWN: "Wait for Airflow's retry, which uploads what was not confirmed.",
}


def task_error(
    error: WorkflowAutomationError,
    context: Context,
    *,
    retried: _Errors = (),
    starts_again: bool = False,
    again: str = "clear the task.",
    what_to_do: str | None = None,
    name: str = "",
    earlier: WorkflowAutomationError | None = None,
) -> WorkflowAutomationError:
    """
    Return the error to fail the task with, which says whether there is a run, and what to do.

    For an error after the task has started its run, see :func:`error_after_start`.

    :param retried: errors to leave to Airflow's retry, in addition to busy, not sent and an
        unavailable file
    :param starts_again: whether an unknown outcome is left to Airflow's retry, too, which then
        starts another run
    :param again: how to start over
    :param what_to_do: in place of what the code says
    :param name: the name of a start within the task
    :param earlier: what an earlier try left, as an error: this one mentions it if this try started
        nothing
    :return: an error of the same class if a retry may help, otherwise one that is also an
        ``AirflowFailException``; without a traceback, which would not help a DAG author
    """
    if isinstance(error, AirflowFailException):
        return error.with_traceback(None)  # trigger_flow_once, in the task, has made it

    if starts_again:
        retried = (*retried, OutcomeUnknownError)

    is_retried = _is_left_to_airflow(error, retried)

    # The error that tells of a run: if this try started nothing, that of an earlier one may.
    of_run = error
    consequence = error.consequence
    if earlier and error.accepted is Accepted.NO:
        of_run = earlier
        consequence = f"{consequence}\nBut {earlier.message}"

    continue_with_it = _WITHOUT_ENTRY
    if _has_store(context):
        continue_with_it = how_to_continue(of_run.run_id, name)
    if what_to_do is None:
        what_to_do = _what_to_do(
            of_run.code,
            again=again,
            continue_with_it=continue_with_it,
            will_retry=is_retried and _has_retries_left(context),
        )

    lines = [error.next_step, what_to_do]
    if is_retried and starts_again and of_run.accepted is Accepted.MAYBE:
        lines.insert(0, "If Airflow retries the task, that may start a second run.")
    if name:
        lines.append("Clearing the task starts all its other runs again.")

    return _with_advice(error, is_retried, of_run.accepted, consequence, lines)


def error_after_start(
    error: WorkflowAutomationError, context: Context, run: RunResult, *, retried: _Errors = ()
) -> WorkflowAutomationError:
    """
    Return the error to fail a task with that has started its run, as :func:`task_error` does.

    :param run: the run, without a ``run_id`` if that is unknown
    """
    if isinstance(error, AirflowFailException):
        return error.with_traceback(None)

    run_id = run.get("run_id")
    consequence = f"{run_text(run_id)} was started."
    # "Nothing was sent", as of an upload that is invalid, would be untrue of the whole task; and an
    # unusable connection only repeats that the run was started.
    is_of_upload = not isinstance(error, ConnectionUnusableError)
    adds_to_it = error.consequence not in ("", Code.INVALID.consequence)
    if is_of_upload and adds_to_it:
        consequence = f"{consequence}\n{error.consequence}"

    # Only with a record does a retry find the run.
    has_record = _has_store(context)
    is_retried = has_record and _is_left_to_airflow(error, retried)

    again = how_to_continue(run_id) if has_record else _UPLOAD_AGAIN
    what_to_do = _what_to_do(
        error.code,
        again=again,
        continue_with_it=again,
        will_retry=is_retried and _has_retries_left(context),
    )
    lines = [error.next_step, what_to_do]
    return _with_advice(error, is_retried, Accepted.YES, consequence, lines)


def _what_to_do(
    code: Code | None, *, again: str, continue_with_it: str, will_retry: bool
) -> str | None:
    """
    Return what a person can do about an error, None for one without a code.

    :param again: how to start over
    :param continue_with_it: how to continue with the run
    :param will_retry: whether Airflow retries the task first
    """
    if code is None:
        return None
    if will_retry and code in _WHILE_RETRIED:
        return _WHILE_RETRIED[code]
    return code.what_to_do.format(again=again, continue_with_it=continue_with_it)


def _is_left_to_airflow(error: WorkflowAutomationError, retried: _Errors) -> bool:
    if isinstance(error, RunTimeoutError):
        return False
    return isinstance(error, (*LEFT_TO_AIRFLOW, *retried))


def _has_store(context: Context) -> bool:
    # Not at the top: each DAG file imports this module.
    from workflow_automation_provider.execution.record.state_store import has_store

    return has_store(context)


def _has_retries_left(context: Context) -> bool:
    from workflow_automation_provider.execution.record.state_store import has_retries_left

    ti = context.get("ti")
    return ti is not None and has_retries_left(ti)


def _with_advice(
    error: WorkflowAutomationError,
    is_retried: bool,
    accepted: Accepted,
    consequence: str,
    lines: Sequence[str | None],
) -> WorkflowAutomationError:
    """Return an error with its advice, of the class that tells Airflow whether to retry."""
    kind: Any = type(error)
    advised = error.with_facts(
        kind if is_retried else _final_class(kind),
        accepted=accepted,
        consequence=consequence,
        next_step="\n".join(line for line in lines if line),
    )
    return advised.with_traceback(None)


def how_to_continue(run_id: str | None = None, name: str = "") -> str:
    """
    Say how a person makes a task continue with a run, on Airflow 3.3 and later.

    :param run_id: the run, None or empty if the person has to find it
    :param name: the name of a start within the task
    """
    return (
        "continue with that run.\n"
        "A Clear alone starts another: open the tab Flow run, choose Continue with this run.\n"
        f"Or {_how_to_enter(run_id, name)}"
    )


TICK = "Tick Keep task state and resume: any other Clear starts another run."
"""How to clear a task from Airflow 3.4 on so that it keeps its entries."""


def clear_drops_state() -> bool:
    """Return whether a Clear drops a task's entries, unless a person ticks a box."""
    # A task cannot ask Airflow's REST API for it; this is new in Airflow 3.4 as well.
    from airflow.sdk.definitions.retry_policy import RetryDecision

    return hasattr(RetryDecision, "reschedule")


def _how_to_enter(run_id: str | None, name: str) -> str:
    """Say how a person gives a task its run in the tab Storage."""
    # Not at the top: each DAG file imports this module.
    from workflow_automation_provider.execution.record.entries import adopted_key

    value = json.dumps(run_id or "RUN_ID", ensure_ascii=False)
    how = f"set {adopted_key(name)} to {value} (with quotes) in the tab Storage, then clear."
    return f"{how}\n{TICK}" if clear_drops_state() else how


# The message of a run ---------------------------------------------------------------------------

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def without_colors(text: str) -> str:
    """Return a text without the codes by which a terminal colors it."""
    return _COLOR.sub("", text)


def printable(line: str) -> str:
    """Return a line with escapes in place of characters that hide or reverse others."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in line)


def quoted(text: str) -> str:
    """
    Return the message of a run as a quotation, to follow a colon: all of it can be seen.

    A text of several lines is indented, below the colon. A text without a visible character becomes
    empty.
    """
    lines = without_colors(text).expandtabs(4).splitlines()
    whole = "\n".join(printable(line).rstrip() for line in lines).strip("\n")
    if not whole.strip():
        return ""
    if "\n" not in whole:
        return f" {whole.strip()}"

    return "\n" + textwrap.indent(whole, "    ")


# Final errors -------------------------------------------------------------------------------------


@functools.cache
def _final_class(kind: Any) -> Any:
    """Return an exception of the same name that is also an ``AirflowFailException``."""
    names = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, AirflowFailException), names)
