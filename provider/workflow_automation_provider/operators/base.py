"""What the operators share: their arguments, the hook, and how a task ends."""

from __future__ import annotations

import abc
import functools
import inspect
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.definitions.asset import AssetRef

from workflow_automation_provider.client.checks import MAX_DAYS, duration
from workflow_automation_provider.client.rendered_values import rendered
from workflow_automation_provider.client.urls import web_link
from workflow_automation_provider.exceptions import InvalidRequestError, WorkflowAutomationError
from workflow_automation_provider.execution.retry import FlowRetryPolicy, SendRetrier
from workflow_automation_provider.operators.templates import TextKeeper

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Context

    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

_Result = TypeVar("_Result")


class _Unset:
    def __repr__(self) -> str:
        return "not given"


UNSET: Any = _Unset()
"""The default of an argument that may be left out, but must not be None."""


def check_wait(wait_for_completion: object, callback_input: object) -> None:
    """Raise a ValueError unless these can be the arguments of a task that may wait."""
    if not isinstance(wait_for_completion, bool):
        raise ValueError(f"wait_for_completion is {wait_for_completion!r}: expected True or False.")
    if not isinstance(callback_input, str) or not callback_input.strip():
        raise ValueError(f"callback_input is {callback_input!r}: expected the name of an input.")


MAX_WAIT_DAYS = 365
"""The maximum of ``completion_timeout`` and ``heartbeat_timeout``, in days."""


def link_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the ``run_link`` for asset events; empty for one that is not the URL of a web page."""
    link = web_link(run.get("run_link"))
    if not link:
        return {}
    return {"run_link": link}


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """
    What the asset events and the lineage of a task contain.

    :param extra: the extra of its asset events
    :param read: the files that it read
    :param written: the files that it wrote
    """

    extra: dict[str, Any]
    read: object = ()
    written: object = ()


class FlowOperator(TextKeeper, BaseOperator, Generic[_Result]):
    """Base class of the operators: the connection, one hook per task, and the errors of a task."""

    workflow_automation_conn_id: Any
    is_ended: bool
    """Whether Airflow has ended the task: nothing may be sent after that."""
    _trigger_failure = ""
    """Why the task's trigger has failed or timed out, empty if it has not."""
    _returns_run: ClassVar[bool] = False
    """Whether the result is a run."""
    ui_color = "#e6f0fa"

    def __init__(
        self, *, flow_id: Any, send_retry_timeout: timedelta | float, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if flow_id is None:
            raise ValueError(
                "flow_id is None: pass an identifier, or leave it out for the flow of the "
                "connection."
            )

        # A template that renders to None must not be mistaken for an argument that was left out.
        self._is_flow_given = flow_id is not UNSET
        self.flow_id = None if flow_id is UNSET else flow_id
        self.send_retry_timeout = duration(
            "send_retry_timeout", send_retry_timeout, days=MAX_DAYS, zero=True
        )
        self.is_ended = False
        # Only if neither the task nor its default_args set a policy, and only on versions with
        # policies.
        if getattr(self, "retry_policy", self) is None:
            self.retry_policy = FlowRetryPolicy()

    @functools.cached_property
    def hook(self) -> WorkflowAutomationHook:
        """The hook of this operator's connection, stopped if the task was ended before."""
        from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

        # Stored at once: a signal may end the task before this returns.
        hook = self.__dict__["hook"] = WorkflowAutomationHook(self.workflow_automation_conn_id)
        if self.is_ended:
            hook.stop()
        return hook

    @property
    def _retrier(self) -> SendRetrier:
        """How long one try keeps retrying while the service is busy or cannot be reached."""
        seconds = self.send_retry_timeout.total_seconds()
        return SendRetrier(seconds, self.log, lambda: self.is_ended)

    def execute(self, context: Context) -> _Result:
        """
        Run the task, unless an earlier try completed it.

        :raises WorkflowAutomationError: if it failed, or its outcome is unknown; also an
            ``AirflowFailException`` if Airflow must not retry the task
        """
        return self._execute(context)

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """
        Continue a task that waits; where its trigger has failed or timed out, look once more.

        :param next_method: ``__fail__`` where it has
        """
        if next_method != "__fail__":
            return super().resume_execution(next_method, next_kwargs, context)

        failure = next_kwargs or {}
        lines = [str(failure.get("error", "")), *(failure.get("traceback") or ())]
        self._trigger_failure = lines[-1].strip() or "unknown"
        return self._execute(context, pushed="")

    def _execute(self, context: Context, *, pushed: str | None = None) -> _Result:
        """Run the operator, if it is the task itself; raise errors as the task fails with them."""
        try:
            if self.task_id != context["ti"].task_id:
                raise InvalidRequestError(
                    f"{type(self).__name__} {self.task_id!r} is executed inside the task "
                    f"{context['ti'].task_id!r}.",
                    next_step=(
                        "Make the operator a task of the DAG. Inside a task, call "
                        "trigger_flow_once or the hook."
                    ),
                )

            result = self._run_once(context, pushed=pushed)
        except WorkflowAutomationError as error:
            failed = self._failure(context, self.hook.located(error, self.flow_id))
            raise failed from failed.__cause__

        try:
            self._emit_events(context, result)
        except Exception:
            # The task has done its work, which must not be lost.
            self.log.warning("The task's asset events and lineage are incomplete.", exc_info=True)

        return result

    def _emit_events(self, context: Context, result: _Result) -> None:
        """Emit the asset and lineage events of a result."""
        from workflow_automation_provider.lineage import collect

        done = self._summary(result)
        events: Any = context.get("outlet_events")
        if events is not None:  # as in a context that a test made
            for outlet in self.outlets:
                if isinstance(outlet, Asset | AssetRef):
                    events[outlet].extra.update(done.extra)

        collect(self.hook, done.extra.get("flow_id"), read=done.read, written=done.written)

    @abc.abstractmethod
    def _summary(self, result: _Result) -> TaskSummary:
        """Return what the task's asset events and its lineage contain."""

    @abc.abstractmethod
    def _failure(self, context: Context, error: WorkflowAutomationError) -> WorkflowAutomationError:
        """Return the error to fail the task with."""

    @abc.abstractmethod
    def _run_once(self, context: Context, *, pushed: str | None) -> _Result:
        """
        Do the task's work.

        :param pushed: if Airflow continues a task that waited, hash of what that has pushed
        """

    def _warn_of(self, operator: type[BaseOperator], names: Iterable[str], needed: str) -> None:
        """
        Log which arguments were given, perhaps by ``default_args``, and have no effect.

        :param operator: the class that takes them
        :param needed: what they need to have one
        """
        defaults = inspect.signature(operator).parameters
        for name in names:
            if getattr(self, name) != defaults[name].default:
                self.log.warning("%s has no effect without %s.", name, needed)

    def on_kill(self) -> None:
        """End all waits and stop sending. Airflow 3 kills the process only seconds later."""
        self.is_ended = True
        if "hook" in self.__dict__:
            self.hook.stop()

    def _rendered_flow_id(self) -> str | None:
        """
        Return the flow that was given, or None if none was.

        :raises InvalidRequestError: if it was given, but rendered to None or an empty string
        """
        is_left_out = self.flow_id is None and not self._is_flow_given
        return None if is_left_out else rendered("flow_id", self.flow_id)
