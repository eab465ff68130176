"""What the operators share: their arguments, the hook, and how a task ends."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from airflow.providers.common.compat.sdk import BaseOperator

from workflow_automation_provider.client.checks import LONGEST_TIMEOUT, is_seconds
from workflow_automation_provider.exceptions import Accepted, InvalidRequestError, WorkflowAutomationError
from workflow_automation_provider.execution.retry import FlowRetryPolicy, Patience, task_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.providers.common.compat.sdk import Context

    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

__all__ = ["UNSET", "FlowOperator", "Unset", "rendered"]

_Result = TypeVar("_Result")


class Unset(enum.Enum):
    """Marks an argument that was left out, as opposed to one that is None, which is an error."""

    UNSET = "not given"

    def __repr__(self) -> str:
        return self.value


UNSET = Unset.UNSET
"""The default of an argument that may be left out, but must not be None."""


def rendered(name: str, value: Any) -> Any:
    """
    Validate a rendered identifier and return it.

    :param name: what the value is called in errors
    :param value: the value, as Airflow rendered it
    :raises InvalidRequestError: if it is None or empty, the text "None" that a template makes of None, or a
        template that was not rendered
    """
    text = value.strip() if isinstance(value, str) else value
    if text is None or text in ("", "None"):
        raise InvalidRequestError(
            f"{name} is {value!r}: the template or XCom that it comes from has no value.",
            next_step="The upstream task may have been skipped, or its result may have no such key.",
        )
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        raise InvalidRequestError(
            f"{name} is {value!r}, a template that was not rendered.",
            next_step=(
                "Airflow renders the templates of a task, but not those of an operator that is executed inside a task: "
                "pass the value itself."
            ),
        )
    return value


class FlowOperator(BaseOperator, Generic[_Result]):
    """Base class of the operators: the connection, one hook per task, and the errors of a task."""

    workflow_automation_conn_id: str
    is_ended: bool
    """Whether Airflow ended the task: nothing may be sent after that."""
    _flow_left_out: ClassVar[str]
    """Why to omit flow_id."""

    ui_color = "#e6f0fa"

    def __init__(
        self,
        *,
        flow_id: str | Unset,
        request_timeout: float | None,
        send_retry_timeout: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if flow_id is None:
            raise ValueError(f"flow_id is None: pass an identifier, or leave it out {self._flow_left_out}.")
        at_most = f"at most {LONGEST_TIMEOUT} (a week)"
        if request_timeout is not None and not (is_seconds(request_timeout) and request_timeout > 0):
            raise ValueError(
                f"request_timeout is {request_timeout!r}: expected seconds, more than 0 and {at_most}, or None."
            )
        if not is_seconds(send_retry_timeout):
            raise ValueError(
                f"send_retry_timeout is {send_retry_timeout!r}: expected seconds, 0 or more and {at_most}."
            )
        self._flow_id: str | None = None
        self._is_flow_given = False
        if flow_id is not UNSET:
            self.flow_id = flow_id
        self.request_timeout = request_timeout
        self.send_retry_timeout = send_retry_timeout
        self.is_ended = False
        # Only if neither the task nor its default_args set a policy, and only on versions with policies.
        if getattr(self, "retry_policy", self) is None:
            self.retry_policy = FlowRetryPolicy()

    @property
    def flow_id(self) -> str | None:
        """The flow; None if it was left out, or rendered to None."""
        return self._flow_id

    @flow_id.setter
    def flow_id(self, value: str | None) -> None:
        # An argument that is rendered, or set, to None must not be mistaken for one that was left out.
        self._flow_id, self._is_flow_given = value, True

    @functools.cached_property
    def hook(self) -> WorkflowAutomationHook:
        """The hook of this operator's connection."""
        from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

        return WorkflowAutomationHook(self.workflow_automation_conn_id, request_timeout=self.request_timeout)

    @property
    def _patience(self) -> Patience:
        """How long one try keeps retrying while the service is busy or cannot be reached."""
        return Patience(self.send_retry_timeout, self.log, lambda: self.is_ended)

    def execute(self, context: Context) -> _Result:
        """
        Run the task, unless an earlier try completed it.

        :raises WorkflowAutomationError: if it failed, or its outcome is unknown; also an
            ``AirflowFailException`` if Airflow must not retry the task
        """
        return self._guarded(context, lambda: self._run_once(context))

    def _guarded(self, context: Context, run: Callable[[], _Result]) -> _Result:
        """Run a part of the task; its errors become those of a task."""
        try:
            return run()
        except WorkflowAutomationError as error:
            self.hook.locate(error, self.flow_id)
            failed = self._failure(context, error)
            raise failed from failed.__cause__

    def _failure(self, context: Context, error: WorkflowAutomationError) -> WorkflowAutomationError:
        """Return the error to fail the task with."""
        return task_error(
            error, context, self._advice(context), but_for=self._retried_after, is_ended=self.is_ended
        )

    def _run_once(self, context: Context) -> _Result:
        """Do what the task is for."""
        raise NotImplementedError

    def _advice(self, context: Context) -> Mapping[Accepted, str]:
        """Return what to do if Airflow does not retry the task."""
        raise NotImplementedError

    @property
    def _retried_after(self) -> tuple[type[WorkflowAutomationError], ...]:
        """Errors after which Airflow may retry the task, besides those where nothing was done."""
        raise NotImplementedError

    def on_kill(self) -> None:
        """End all waits and stop sending. Airflow 3 kills the process only seconds later."""
        self.is_ended = True
        if "hook" in self.__dict__:
            self.hook.stop()

    def _open_hook(self) -> WorkflowAutomationHook:
        """Return the hook, stopped if the task was ended before."""
        hook = self.hook
        if self.is_ended:
            hook.stop()
        return hook

    def _is_nested(self, context: Context) -> bool:
        """Tell whether this operator is executed inside another task, rather than by Airflow."""
        return bool(self.task_id != context["ti"].task_id)

    def _rendered_flow_id(self) -> str | None:
        """
        Return the flow that was given, or None if none was.

        :raises InvalidRequestError: if it was given, but rendered to None or an empty string
        """
        return rendered("flow_id", self.flow_id) if self._is_flow_given else None
