"""
Start a run from a callback, which must neither fail nor hang: log the outcome, and send nothing after a timeout.

There is no record: a callback belongs to no try of a task, and Airflow may call it twice. Within one call, the
rules of all starts hold: the request is sent again only if no run can have been started.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException

from workflow_automation_provider.client.outcome import NotSent, Reason, Unknown
from workflow_automation_provider.client.protocol import Operation
from workflow_automation_provider.exceptions import Accepted, NotSentError, WorkflowAutomationError
from workflow_automation_provider.execution.retry import SendRetrier
from workflow_automation_provider.execution.start import RunStarter
from workflow_automation_provider.execution.start_record import StartRecord
from workflow_automation_provider.failures import consequence_of, request_error

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

# How long to wait for the thread once the time is up, in seconds: what it logs is more exact.
_GRACE = 0.5


class NotifierStart:
    """
    One start of a run, which raises no errors of the request.

    :param hook: sends the request; closed afterwards
    :param seconds: how long it may take, retries included
    :param log: for the outcome
    """

    def __init__(self, hook: WorkflowAutomationHook, seconds: float, log: Logger) -> None:
        self._hook = hook
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._log = log
        self._done = threading.Event()
        self._is_abandoned = False
        retrier = SendRetrier(seconds, log, lambda: self._is_over, limited_by="timeout", caps_last_wait=False)
        # A record without a context: no later try reads it.
        self._starter = RunStarter(StartRecord({}), hook, retrier, on_unknown_start="fail")

    def run(self, inputs: Mapping[str, Any], flow_id: str | None) -> None:
        """
        Start the run and log its link, or why there is none, or that this is unknown.

        :param flow_id: the flow, None for that of the API key
        """
        try:
            request = self._hook.prepare_trigger(inputs, flow_id)
        except Exception as error:
            self._hook.close()
            self._log_failure(error)
            return
        # The time limits of a request add up, and some of its waits, such as for DNS, have none: so another thread
        # sends it. Airflow is asked for nothing there, because it expects that only of threads that it knows.
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._start, request), name="FlowNotifier", daemon=True
        ).start()
        try:
            self._done.wait(self._deadline - time.monotonic())
        finally:
            self._deadline = 0.0  # also if it is interrupted
            self._hook.stop()
            if not self._done.wait(_GRACE):
                self._is_abandoned = True
                self._log_failure(self._overdue(request))

    @property
    def _is_over(self) -> bool:
        """Whether the time is up: the last byte of a request is not sent after that."""
        return time.monotonic() >= self._deadline

    def _start(self, request: Request) -> None:
        try:
            self._starter.send(lambda: request)
        except Exception as error:
            # A request that was stopped says that a task was ended, but here it was the time.
            is_stopped = self._is_over and isinstance(error, NotSentError)
            if not is_stopped:
                self._log_failure(error)
            elif not self._is_abandoned:
                self._log_failure(self._overdue(request))
        finally:
            self._done.set()

    def _overdue(self, request: Request) -> WorkflowAutomationError:
        outcome = Unknown if self._starter.handed_over else NotSent
        detail = f"no response within {self._seconds:g} s (timeout)"
        return request_error(outcome(request=request, reason=Reason.CONNECTION, detail=detail))

    def _log_failure(self, error: Exception) -> None:
        if isinstance(error, WorkflowAutomationError):
            self._hook.locate(error)
        log_failure(self._log, error, Accepted.MAYBE if self._starter.handed_over else Accepted.NO)


def log_failure(log: Logger, error: Exception, accepted: Accepted = Accepted.NO) -> None:
    """
    Log why a notification started no run, without secrets.

    :param accepted: whether it may have, where the error itself does not say so
    """
    log.error("FlowNotifier: %s", _text_of(error, accepted))


def _text_of(error: Exception, accepted: Accepted) -> str:
    from jinja2 import TemplateError

    kind = type(error).__name__
    consequence = consequence_of(Operation.TRIGGER_BY_KEY, accepted)
    with contextlib.suppress(Exception):  # the text of an error may need what is gone
        if isinstance(error, WorkflowAutomationError):
            return str(error)
        # Any other error may quote a value that it could not handle, such as a connection.
        if isinstance(error, AirflowNotFoundException | PermissionError | TemplateError):
            return f"{kind}: {error}\n{consequence}"
    places = traceback.extract_tb(error.__traceback__)
    where = f" in {places[-1].name} ({places[-1].filename}, line {places[-1].lineno})" if places else ""
    return f"{kind}{where}.\n{consequence}"
