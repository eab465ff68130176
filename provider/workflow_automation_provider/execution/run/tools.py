"""What each part of a start, and of the wait for its run, works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from workflow_automation_provider.exceptions import RunFailedError
from workflow_automation_provider.execution.record.start_decision import check_adopted

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from workflow_automation_provider.client.redaction import Redactor
    from workflow_automation_provider.execution.record.entries import RunResult
    from workflow_automation_provider.execution.record.start_decision import (
        KnownStart,
        StartOptions,
    )
    from workflow_automation_provider.execution.record.start_record import StartRecord
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


class RunTools(NamedTuple):
    """
    What a task has for its run.

    :param record: what earlier tries recorded, and what the run reports
    :param hook: sends the requests
    :param retrier: how long to keep retrying while the service is busy or cannot be reached, and
        whether Airflow ended the task
    :param options: what the task asks for
    """

    record: StartRecord
    hook: WorkflowAutomationHook
    retrier: SendRetrier
    options: StartOptions

    @property
    def log(self) -> Logger:
        """The task's logger."""
        return self.retrier.log

    def redactor_of(self, conn_id: str | None) -> Redactor | None:
        """
        Return the redactor for what a run reports, None if a connection cannot be used.

        :param conn_id: the connection that its start has recorded
        """
        try:
            return redactor_for(self.hook, conn_id)
        except Exception:
            return None

    def run_of(self, known: KnownStart) -> RunResult:
        """Return the run of a start, as far as it is known and may be shown."""
        return known.run(self.redactor_of(known.start.conn_id))

    def ids_of(self, known: KnownStart) -> dict[str, Any]:
        """Return what an error names of the run of a start."""
        run = self.run_of(known)
        return {"run_id": run.get("run_id"), "flow_id": run.get("flow_id")}

    def check_goes_on(self, known: KnownStart) -> None:
        """
        Check that the run of a start still has the task.

        :raises RunFailedError: if it was told to stop
        :raises InvalidRequestError: if a person entered it, and it was told to stop, or another one
            has the task
        """
        if known.start.run:
            check_adopted(known.start.run["run_id"], known.reports)
        if known.reports.stopped:
            raise RunFailedError("The run was told to stop.", **self.ids_of(known))


def redactor_for(hook: WorkflowAutomationHook, conn_id: str | None) -> Redactor:
    """
    Return a redactor of the task's connection, and of the connection that started the run.

    :param conn_id: the connection that the start has recorded, None if it has none
    :raises Exception: if one of them cannot be used
    """
    redactor = hook.get_conn().redactor
    if conn_id in (None, hook.workflow_automation_conn_id):
        return redactor
    return redactor.joined(type(hook)(conn_id).get_conn().redactor)
