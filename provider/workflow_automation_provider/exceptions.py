"""
What can come of a request, as exceptions: what to catch, in a task or in a callback.

==============================  =========  ===================================================================
Exception                       accepted   When
==============================  =========  ===================================================================
:class:`InvalidRequestError`    ``NO``     an argument or the connection is wrong, or the API key has expired
:class:`FileUnavailableError`   ``NO``     a file to upload is missing, cannot be read, or changed
:class:`NotSentError`           ``NO``     no connection, or the request was broken off before its end
:class:`BusyError`              ``NO``     408, 425, 429; 503 with ``Retry-After``, and any 503 to an upload
:class:`RejectedError`          ``NO``     any other 4xx, and redirects but for 302 and 303
:class:`ResponseUnusableError`  ``YES``    2xx, but the run cannot be identified
:class:`OutcomeUnknownError`    ``MAYBE``  no response, 5xx, 302 and 303
==============================  =========  ===================================================================

All are :class:`WorkflowAutomationError`. A task of this provider ends with the same ones; those that Airflow must not
retry are also ``AirflowFailException``.
"""

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
    "RejectedError",
    "ResponseUnusableError",
    "WorkflowAutomationError",
]


class Accepted(enum.Enum):
    """Whether the service acted on a request: started the run, or accepted the files."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class WorkflowAutomationError(Exception):
    """
    A request to the workflow automation service that did not succeed.

    Its text has a line each for what happened, for what that means, for what to do next, and for the connection
    and the flow, as far as known. It never holds the API key.

    :param message: what happened
    :param consequence: what that means, such as "No run was started."
    :param next_step: what to do about it
    :param status: HTTP status of the response, None where there was none
    :param retry_after: seconds that the service asked to wait, None where it did not
    """

    accepted: ClassVar[Accepted] = Accepted.NO
    _consequence: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        consequence: str = "",
        next_step: str = "",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.consequence = consequence or self._consequence
        self.next_step = next_step
        self.status = status
        self.retry_after = retry_after
        self.conn_id: str | None = None
        """The Airflow connection, where one was used."""
        self.flow_id: str | None = None
        """The flow, where it is known."""

    def locate(self, conn_id: object, flow_id: object = None) -> None:
        """
        Note which connection and flow this is about, where that is not noted yet.

        :param flow_id: None where the API key identifies the flow
        """
        if self.conn_id is None and isinstance(conn_id, str):
            self.conn_id = conn_id
        if self.flow_id is None and flow_id is not None:
            self.flow_id = str(flow_id)

    def __str__(self) -> str:
        where = [
            f"{name}: {value}"
            for name, value in (("Connection", self.conn_id), ("Flow", self.flow_id))
            if value
        ]
        return "\n".join(filter(None, (self.message, self.consequence, self.next_step, *where)))


class InvalidRequestError(WorkflowAutomationError, ValueError):
    """What was to be sent is not valid."""

    _consequence = "Nothing was sent."


class FileUnavailableError(WorkflowAutomationError):
    """
    A file to upload is missing, cannot be read, or changed while it was read; a retry may find it whole.

    Nothing was sent, or the request was broken off before its end: the service cannot have accepted the files.
    """

    _consequence = "Nothing was sent."


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
    """


class RejectedError(WorkflowAutomationError):
    """The service rejected the request (other 4xx, 3xx but for 302 and 303). Nothing happened, and a retry cannot help."""


class ResponseUnusableError(WorkflowAutomationError):
    """The service accepted (2xx) but its response cannot be used: a run was started, its id is unknown."""

    accepted = Accepted.YES


class OutcomeUnknownError(WorkflowAutomationError):
    """
    The request was sent and no clear response came: it may have been acted on.

    So it is after a timeout, a lost connection, a 5xx response, and 302 or 303, which can follow a POST that
    was done.
    """

    accepted = Accepted.MAYBE
