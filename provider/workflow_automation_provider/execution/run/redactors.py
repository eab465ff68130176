"""What is withheld from what a run reports: the secrets of each connection that it may know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workflow_automation_provider.client.redaction import Redactor
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


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


def redactor_or_none(hook: WorkflowAutomationHook, conn_id: str | None) -> Redactor | None:
    """Return what :func:`redactor_for` does, None if a connection cannot be used."""
    try:
        return redactor_for(hook, conn_id)
    except Exception:
        return None
