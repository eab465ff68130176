"""What can come of a request, as exceptions: what happened, and whether the service may have acted on it."""

from __future__ import annotations

import enum
from typing import ClassVar

__all__ = [
    "Accepted",
    "BusyError",
    "FileUnavailableError",
    "InvalidRequestError",
    "NotSentError",
    "OutcomeUnknownError",
    "RefusedError",
    "ReplyUnusableError",
    "WorkflowAutomationError",
]


class Accepted(enum.Enum):
    """Whether the service acted on a request: started the run, or took the files."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class WorkflowAutomationError(Exception):
    """
    A request to the workflow automation service that did not end well.

    :param message: what was sent where, what came back, and what to do; never holds the API key
    :param status: HTTP status of the reply, None where there was none
    """

    accepted: ClassVar[Accepted] = Accepted.NO

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class InvalidRequestError(WorkflowAutomationError, ValueError):
    """What was to be sent is not valid. Nothing was sent."""


class FileUnavailableError(WorkflowAutomationError):
    """
    A file to upload is not there, cannot be read, or changed while it was read; it may be whole later.

    Nothing was sent, or the request was broken off before its end: the service cannot have taken the files.
    """


class NotSentError(WorkflowAutomationError):
    """
    The request was not sent, or not to its end: no connection (DNS, TLS, proxy), broken off, or stopped.

    The service cannot have acted on it: it never had the whole request.
    """


class BusyError(WorkflowAutomationError):
    """
    The service asked to come back later (408, 425, 429, 503) and did nothing.

    For a trigger, 503 counts only with a ``Retry-After`` that can be understood: gateways also answer 503 for
    a service that they lost after they had forwarded the request.

    :param retry_after: seconds that the service asked to wait, None where it did not say
    """

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after = retry_after


class RefusedError(WorkflowAutomationError):
    """The service refused (other 4xx, 3xx but for 302 and 303). Nothing happened, and a retry cannot help."""


class ReplyUnusableError(WorkflowAutomationError):
    """The service accepted (2xx) but its reply cannot be used: a run was started, its id is unknown."""

    accepted = Accepted.YES


class OutcomeUnknownError(WorkflowAutomationError):
    """
    The request was sent and no clear response came: it may have been acted on.

    So it is after a timeout, a lost connection, a 5xx response, and 302 or 303, which can follow a POST that
    was done.
    """

    accepted = Accepted.MAYBE
