"""What a run says of itself, as its task takes it: that it claims the start, which run it is, and whether it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.exceptions import InvalidRequestError

if TYPE_CHECKING:
    from workflow_automation_provider.execution.ledger import RunResult, Spoken
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

POLL_INTERVAL = 0.5
"""How often a task looks in its worker whether a run has said something, in seconds."""


def check_entered(run_id: str, spoken: Spoken) -> None:
    """
    Check that the run that a person entered still has the task.

    :raises InvalidRequestError: if it was told to stop, or another one has claimed or ended
    """
    if spoken.stopped or run_id in spoken.refused:
        raise not_continued(run_id, "it was told to stop")
    if spoken.run_ids - {run_id}:
        raise not_continued(run_id, "another run has the task")


def with_said(run: RunResult, spoken: Spoken, hook: WorkflowAutomationHook) -> RunResult:
    """Return a run with what it has said of itself, without what reveals a secret of the connection."""
    link = spoken.claim and spoken.claim.run_link
    with hook:
        redact = hook.get_conn().redact
        said = {
            name: text
            for name, text in (("run_id", spoken.run_id), ("run_link", link))
            if text and redact(text) == text
        }
    if spoken.run_id not in (None, run.get("run_id")):
        # Another one than the response named: nothing of that is kept.
        run = {name: value for name, value in run.items() if name == "flow_id"}  # type: ignore[assignment]
    return {**run, **said}  # type: ignore[typeddict-item]


def not_continued(run_id: str, why: str) -> InvalidRequestError:
    """Return the error for a run that a person entered, and that the task cannot have."""
    return InvalidRequestError(
        f"The task cannot continue with run {one_line(run_id)}, which a person entered: {why}.",
        next_step=(
            "If that run did the work, mark the task as success. To start another run, delete the entry under Storage and "
            "clear the task."
        ),
    )
