"""
How a task ends.

The one place where an error gets its advice, and where it is decided whether Airflow may retry.
"""

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
    InvalidRequestError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.retry import LEFT_TO_AIRFLOW

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.execution.starts.entries import RunResult

_Errors = tuple[type[WorkflowAutomationError], ...]

# Without a task state store.
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

    One that is to be raised after the task has started its run is made by
    :func:`error_after_start`.

    :param retried: errors to leave to Airflow's retry, in addition to busy, not sent and an
        unavailable file
    :param starts_again: whether a retry after an unknown outcome starts another run
    :param again: how to start over
    :param what_to_do: in place of what the code says
    :param name: the name of a start within the task
    :param earlier: what an earlier try left, as an error to be mentioned if this one started
        nothing
    :return: one of the same class if a retry may help, otherwise one that is also an
        ``AirflowFailException``. Without a traceback, which would not help a DAG author
    """
    if isinstance(error, AirflowFailException):
        return error.with_traceback(None)  # a start inside the task has made it whole

    # Whose run it is, if there is one.
    of_run, consequence = error, error.consequence
    if earlier and error.accepted is Accepted.NO:
        of_run = earlier
        consequence = f"{consequence}\nBut {earlier.message}"

    is_retried = _is_left_to_airflow(error, retried)
    will_retry = is_retried and _has_retries_left(context)
    if what_to_do is None and of_run.code:
        what_to_do = of_run.code.what_to_do.format(
            again=again, enter=_how_to_continue_in(context, of_run.run_id, name)
        )
        if will_retry:
            what_to_do = _WHILE_RETRIED.get(of_run.code, what_to_do)

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
    consequence = f"Run {run_id} was started." if run_id else "A run was started."
    # Of the trigger, it would be untrue.
    says_other = not isinstance(error, InvalidRequestError | ConnectionUnusableError)
    if error.consequence and says_other:
        consequence = f"{consequence}\n{error.consequence}"

    has_store = _has_store(context)
    # Only with a record does a retry find the run.
    is_retried = has_store and _is_left_to_airflow(error, retried)
    again = how_to_continue(run_id) if has_store else _UPLOAD_AGAIN
    lines = [error.next_step]
    if error.code:
        what_to_do = error.code.what_to_do.format(
            again=again, enter=_how_to_continue_in(context, run_id)
        )
        if is_retried and _has_retries_left(context):
            what_to_do = _WHILE_RETRIED.get(error.code, what_to_do)
        lines.append(what_to_do)
    return _with_advice(error, is_retried, error.accepted, consequence, lines)


def _is_left_to_airflow(error: WorkflowAutomationError, retried: _Errors) -> bool:
    if isinstance(error, RunTimeoutError):
        return False
    return isinstance(error, (*LEFT_TO_AIRFLOW, *retried))


def _has_store(context: Context) -> bool:
    return "task_state_store" in context


def _has_retries_left(context: Context) -> bool:
    ti = context.get("ti")
    return ti is not None and ti.try_number <= ti.max_tries


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


def _how_to_continue_in(context: Context, run_id: str | None, name: str = "") -> str:
    return how_to_continue(run_id, name) if _has_store(context) else _WITHOUT_ENTRY


def how_to_continue(run_id: str | None = None, name: str = "") -> str:
    """
    Say how a person makes a task continue with a run, on Airflow 3.3 and later.

    :param run_id: the run, None or empty if the person has to find it
    :param name: the name of a start within the task
    """
    # Not at the top: each DAG file imports this module.
    from workflow_automation_provider.execution.starts.entries import adopted_key

    value = json.dumps(run_id or "RUN_ID", ensure_ascii=False)
    return (
        "continue with that run.\n"
        "A Clear alone starts another one: enter the run_id first, then clear the task.\n"
        f"Enter it in the tab Storage: key {adopted_key(name)}, value {value} with the quotes."
    )


# The message of a run ---------------------------------------------------------------------------

_ESCAPE_CODE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # such as a color
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # such as a title, or a link
    r"|\x1b[ -/]*[0-~]"
)


def without_escape_codes(text: str) -> str:
    """Return a text without the codes by which a terminal colors it."""
    return _ESCAPE_CODE.sub("", text)


def printable(line: str) -> str:
    """Return a line with escapes in place of characters that hide or reverse others."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in line)


def quoted(text: str) -> str:
    """
    Return the message of a run as a quotation, to follow a colon: all of it can be seen.

    A text of several lines is indented, below the colon. Of one that nobody can see, nothing is
    left.
    """
    lines = without_escape_codes(text).expandtabs(4).splitlines()
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
    names = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": _reduced}
    return type(kind.__name__, (kind, AirflowFailException), names)


def _reduced(error: WorkflowAutomationError) -> tuple[Any, ...]:
    return _restored, (type(error).__bases__[0], *error.args), vars(error)


def _restored(kind: Any, *args: Any) -> Any:
    return _final_class(kind)(*args)
