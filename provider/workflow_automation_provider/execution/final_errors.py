"""The exceptions of :mod:`workflow_automation_provider.exceptions`, by the same names, that end a task without a retry."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider import exceptions


class InvalidRequestError(exceptions.InvalidRequestError, AirflowFailException):
    """Airflow does not retry a task after it."""


class FileUnavailableError(exceptions.FileUnavailableError, AirflowFailException):
    """Airflow does not retry a task after it."""


class NotSentError(exceptions.NotSentError, AirflowFailException):
    """Airflow does not retry a task after it."""


class BusyError(exceptions.BusyError, AirflowFailException):
    """Airflow does not retry a task after it."""


class RejectedError(exceptions.RejectedError, AirflowFailException):
    """Airflow does not retry a task after it."""


class ResponseUnusableError(exceptions.ResponseUnusableError, AirflowFailException):
    """Airflow does not retry a task after it."""


class OutcomeUnknownError(exceptions.OutcomeUnknownError, AirflowFailException):
    """Airflow does not retry a task after it."""


class RunTimeoutError(exceptions.RunTimeoutError, AirflowFailException):
    """Airflow does not retry a task after it."""


class RunFailedError(exceptions.RunFailedError, AirflowFailException):
    """Airflow does not retry a task after it."""


class WorkflowAutomationError(exceptions.WorkflowAutomationError, AirflowFailException):
    """Airflow does not retry a task after it."""


# The most specific ones first.
_FINAL: tuple[type[exceptions.WorkflowAutomationError], ...] = (
    InvalidRequestError,
    FileUnavailableError,
    NotSentError,
    BusyError,
    RejectedError,
    ResponseUnusableError,
    OutcomeUnknownError,
    RunTimeoutError,
    RunFailedError,
    WorkflowAutomationError,
)


def final_class(kind: type[exceptions.WorkflowAutomationError]) -> type[exceptions.WorkflowAutomationError]:
    """Return the class that Airflow does not retry a task after, of an exception or of what it is a kind of."""
    return next(final for final in _FINAL if issubclass(kind, final.__bases__[0]))
