"""What both operators have in common: arguments, the hook of a task's life, and the end that Airflow may put to it."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import BaseOperator

from workflow_automation_provider.client.errors import InvalidRequestError
from workflow_automation_provider.client.limits import LONGEST_TIMEOUT
from workflow_automation_provider.operators.retries import FlowRetryPolicy

if TYPE_CHECKING:
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

__all__ = ["UNSET", "FlowOperator", "Unset", "rendered"]


class Unset(enum.Enum):
    """Marks an argument that was left out: one that is given, but is None, is an error."""

    UNSET = "not given"

    def __repr__(self) -> str:
        return self.value


UNSET = Unset.UNSET
"""The default of an argument that may be left out, but not be None."""


def rendered(name: str, value: Any) -> Any:
    """
    Return an identifier that was given.

    :param name: what the value is called in errors
    :param value: the value, as Airflow rendered it
    :raises InvalidRequestError: if it is None or empty, the text "None" that a template makes of None, or a template
        that nobody rendered
    """
    text = value.strip() if isinstance(value, str) else value
    if text is None or text in ("", "None"):
        raise InvalidRequestError(
            f"{name} is {value!r}: the template or XCom that it comes from has no value. The task that it comes from "
            f"may have been skipped, or its result may have no such key. Nothing was sent."
        )
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        raise InvalidRequestError(
            f"{name} is {value!r}, a template that was not rendered: Airflow renders the templates of a task, not "
            "those of an operator that is executed inside one. Give the value itself. Nothing was sent."
        )
    return value


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST_TIMEOUT


class FlowOperator(BaseOperator):
    """What both operators share: the connection, one hook for a task's life, and when to try again."""

    workflow_automation_conn_id: str
    is_ended: bool
    """Whether Airflow ended the task: nothing may be sent any more."""
    _flow_left_out: ClassVar[str]
    """What it means where no flow_id is given."""

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
            raise ValueError(f"flow_id is None: give an identifier, or leave it out {self._flow_left_out}.")
        at_most = f"at most {LONGEST_TIMEOUT} (a week)"
        if request_timeout is not None and not (_is_seconds(request_timeout) and request_timeout > 0):
            raise ValueError(
                f"request_timeout is {request_timeout!r}: give seconds, more than 0 and {at_most}, or None."
            )
        if not _is_seconds(send_retry_timeout):
            raise ValueError(
                f"send_retry_timeout is {send_retry_timeout!r}: give seconds, 0 or more and {at_most}."
            )
        self._flow_id: str | None = None
        self._is_flow_given = False
        if flow_id is not UNSET:
            self.flow_id = flow_id
        self.request_timeout = request_timeout
        self.send_retry_timeout = send_retry_timeout
        self.is_ended = False
        # Only where neither the task nor its default_args name a policy, and only on versions with policies.
        if getattr(self, "retry_policy", self) is None:
            self.retry_policy = FlowRetryPolicy()

    @property
    def flow_id(self) -> str | None:
        """The flow; None where it was left out, or rendered to None."""
        return self._flow_id

    @flow_id.setter
    def flow_id(self, value: str | None) -> None:
        # What is rendered, or set, to None must not be taken for an argument that was left out.
        self._flow_id, self._is_flow_given = value, True

    @functools.cached_property
    def hook(self) -> WorkflowAutomationHook:
        """The hook of this operator's connection."""
        from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

        return WorkflowAutomationHook(self.workflow_automation_conn_id, request_timeout=self.request_timeout)

    def on_kill(self) -> None:
        """End every wait, and send nothing from now on. Airflow 3 kills the process only seconds later."""
        self.is_ended = True
        if "hook" in self.__dict__:
            self.hook.stop()

    def open_hook(self) -> WorkflowAutomationHook:
        """Return the hook, which is stopped if the task was ended before there was one."""
        hook = self.hook
        if self.is_ended:
            hook.stop()
        return hook

    def rendered_flow_id(self) -> str | None:
        """
        Return the flow that was given, None where none was.

        :raises InvalidRequestError: if it was given and rendered to nothing
        """
        return rendered("flow_id", self.flow_id) if self._is_flow_given else None
