"""Start runs from within a task, such as a function decorated with ``@task``, each at most once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import get_current_context

from workflow_automation_provider.client.checks import MAX_DAYS, check_choice, duration
from workflow_automation_provider.client.protocol import NO_INPUTS
from workflow_automation_provider.client.rendered_values import rendered
from workflow_automation_provider.exceptions import (
    InvalidRequestError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.errors import task_error
from workflow_automation_provider.execution.record.start_decision import StartOptions
from workflow_automation_provider.execution.record.start_record import StartRecord
from workflow_automation_provider.execution.retry import SendRetrier
from workflow_automation_provider.execution.run.start import (
    OnUnknownStart,
    RunStarter,
    request_digest,
)
from workflow_automation_provider.execution.run.tools import RunTools
from workflow_automation_provider.wording import one_line

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.execution.record.entries import RunResult

__all__ = ["trigger_flow_once"]

# A key of the task state store may have at most 512 characters.
_MAX_NAME = 250

# The last character of the Basic Multilingual Plane.
_LAST_OF_BMP = "\uffff"


def trigger_flow_once(
    name: str,
    *,
    inputs: Mapping[str, Any] = NO_INPUTS,
    flow_id: str | None = None,
    workflow_automation_conn_id: str = "workflow_automation_default",
    on_unknown_start: OnUnknownStart = "fail",
    send_retry_timeout: timedelta | float = timedelta(seconds=60),
    context: Context | None = None,
) -> RunResult:
    """
    Start a run from within a task, such as a function decorated with ``@task``, at most once.

    A later try that calls this with the same ``name`` gets the run that was started instead of
    starting another, as with
    :class:`~workflow_automation_provider.operators.flows.TriggerFlowOperator` (Airflow 3.3+).

    .. code-block:: python

        @task(retries=3)
        def reports(customers: list[str]) -> list[str]:
            runs = [trigger_flow_once(name, inputs={"customer": name}) for name in customers]
            return [run["run_id"] for run in runs]

    Follows sections 4.1 (with a ``flow_id``) and 4.2 (without) of the interface.

    :param name: identifies this start within the task: unique for each run, and the same in every
        try. At most 250 characters of the Basic Multilingual Plane, without control characters or a
        blank at the end
    :param inputs: input names, as the flow defines them, and JSON values
    :param flow_id: the flow to start; None for the one that the connection's API key identifies
    :param workflow_automation_conn_id: connection with the base URL and the API key
    :param on_unknown_start: what to do if it is unknown whether a run was started: ``"fail"``
        without a retry, or ``"start_again"`` in the next try
    :param send_retry_timeout: how long to keep retrying while the service is busy or cannot be
        reached; 0 sends once
    :param context: the task's context, by default that of the task that is being executed
    :return: ``run_id``, ``run_link`` and ``flow_id``, as far as known
    :raises RuntimeError: if no task is being executed and no ``context`` is passed
    :raises WorkflowAutomationError: if no run was started, or it is unknown whether one was; also
        an ``AirflowFailException`` if Airflow must not retry the task
    """
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
    from workflow_automation_provider.lineage import collect

    if context is None:
        context = get_current_context()

    hook = WorkflowAutomationHook(workflow_automation_conn_id)
    kind = InvalidRequestError
    starter: RunStarter | None = None
    try:
        _check_name(name)
        record = StartRecord(context, name)
        record.use()
        options = StartOptions(
            record.max_tries,
            request_digest(inputs, flow_id),
            is_named=True,
            on_unknown_start=on_unknown_start,
        )
        retrier = SendRetrier(0.0, hook.log)
        starter = RunStarter(RunTools(record, hook, retrier, options))

        run = starter.find()
        if run is None:
            # Only now, so that an error can mention what an earlier try did.
            check_choice("on_unknown_start", on_unknown_start, "fail", "start_again", kind=kind)
            timeout = duration(
                "send_retry_timeout", send_retry_timeout, days=MAX_DAYS, zero=True, kind=kind
            )
            retrier.seconds = timeout.total_seconds()
            flow = None if flow_id is None else rendered("flow_id", flow_id)
            run = starter.send(hook.prepare_trigger(inputs, flow), {})
    except WorkflowAutomationError as error:
        failed = task_error(
            hook.located(error, flow_id),
            context,
            starts_again=on_unknown_start == "start_again",
            name=name,
            earlier=starter.earlier if starter else None,
        )
        raise failed from failed.__cause__

    collect(hook, run.get("flow_id"))
    return run


def _check_name(name: object) -> None:
    """Raise an InvalidRequestError unless every database keeps a name apart from all others."""
    is_fit = (
        isinstance(name, str)
        and 0 < len(name) <= _MAX_NAME
        and one_line(name) == name
        and name.rstrip() == name  # MySQL ignores a blank at the end in comparisons
        and max(name) <= _LAST_OF_BMP  # MySQL's key columns have three bytes for a character
    )
    if not is_fit:
        raise InvalidRequestError(
            f"name is {name!a:.300}: expected 1 to {_MAX_NAME} characters of the Basic "
            "Multilingual Plane, without control characters or a blank at the end."
        )
