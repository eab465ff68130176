"""The words of what a run has not said: the claim of its start, or that it works."""

from __future__ import annotations

from datetime import timedelta

from workflow_automation_provider.client.protocol import Operation
from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    OutcomeUnknownError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.failures.request import consequence_of, where_to_look
from workflow_automation_provider.failures.task import run_started

__all__ = ["revoked_error", "silence_error", "unclaimed_error", "unsettled_error"]


def unclaimed_error(
    error: WorkflowAutomationError, timeout: timedelta, *, is_revoked: bool
) -> WorkflowAutomationError:
    """
    Return the error of a start of unknown outcome that no run has claimed.

    :param error: of its request
    :param timeout: how long a claim was waited for
    :param is_revoked: whether its run, if there is one, can no longer go on
    """
    then = "A run of it can still claim it until the next try."
    if is_revoked:
        then = "A run of it that claims it now is told to stop: clearing the task is safe."
    return OutcomeUnknownError(
        error.message,
        code=Code.START_REVOKED if is_revoked else Code.START_UNKNOWN,
        consequence="\n".join(
            (
                consequence_of(Operation.TRIGGER_BY_KEY, Accepted.MAYBE),
                f"No run claimed this start within claim_timeout ({timeout}).",
                then,
            )
        ),
        next_step="If the flow has no first step that claims its start, look in the workflow's list of runs.",
        status=error.status,
    )


def revoked_error(error: WorkflowAutomationError) -> WorkflowAutomationError:
    """Return the error of a start in doubt, with a note that its run, if there is one, can no longer claim it."""
    told = "A run of it that claims its start from now on is told to stop."
    error.consequence = "\n".join(filter(None, (error.consequence, told)))
    return error


def unsettled_error(error: WorkflowAutomationError) -> WorkflowAutomationError:
    """Return the error of a start that was rejected, where it is unknown whether a run has claimed it."""
    return OutcomeUnknownError(
        error.message,
        consequence=consequence_of(Operation.TRIGGER_BY_KEY, Accepted.MAYBE),
        next_step=where_to_look(Operation.TRIGGER_BY_KEY),
    )


def silence_error(run_id: str | None, limit: timedelta, last: str) -> RunTimeoutError:
    """
    Return the error of a run that has said nothing for too long.

    :param last: its last word, in a sentence
    """
    return RunTimeoutError(
        f"The run has said nothing for longer than heartbeat_timeout ({limit}). {last}",
        code=Code.RUN_SILENT,
        consequence=f"{run_started(run_id)}\nWhen it next asks, it is told to stop.",
        next_step="Look at the run. If it failed, clear the task to start another one.",
    )
