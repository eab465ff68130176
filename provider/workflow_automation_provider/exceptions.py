"""
Exceptions for every request that did not succeed, to catch in a task or a callback.

==============================  =========  ===================================================================
Exception                       accepted   When
==============================  =========  ===================================================================
:class:`InvalidRequestError`    ``NO``     an argument or the connection is invalid, or the API key expired
:class:`FileUnavailableError`   ``NO``     a file is missing, cannot be read or written, or changed
:class:`NotSentError`           ``NO``     no connection, or the request was broken off before its end
:class:`BusyError`              ``NO``     425, 429, ``busy_statuses``; of an upload also 408, and 503 with
                                           ``Retry-After``
:class:`RejectedError`          ``NO``     any other 4xx, and redirects except 302 and 303
:class:`ResponseUnusableError`  ``YES``    2xx, but the run cannot be identified
:class:`OutcomeUnknownError`    ``MAYBE``  no response, 5xx, 302, 303 and 408
:class:`RunFailedError`         ``YES``    the flow, or a person, said that the run failed
:class:`RunTimeoutError`        ``YES``    no result was reported in time
==============================  =========  ===================================================================

All are subclasses of :class:`WorkflowAutomationError`. The tasks of this provider raise the same exceptions;
those that Airflow must not retry are also an ``AirflowFailException``.
"""

from __future__ import annotations

import enum
from typing import ClassVar

__all__ = [
    "Accepted",
    "BusyError",
    "Code",
    "FileUnavailableError",
    "InvalidRequestError",
    "NotSentError",
    "OutcomeUnknownError",
    "RejectedError",
    "ResponseUnusableError",
    "RunFailedError",
    "RunTimeoutError",
    "WorkflowAutomationError",
]


class Accepted(enum.Enum):
    """Whether the service acted on a request: started the run, or accepted the files."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class Code(enum.StrEnum):
    """The kinds of failure: docs/if-it-fails.md explains each."""

    INVALID = "invalid-request"
    FILE = "file-unavailable"
    NOT_SENT = "not-sent"
    BUSY = "busy"
    REJECTED = "rejected"
    KEY_REJECTED = "key-rejected"
    NOT_FOUND = "not-found"
    TOO_LARGE = "too-large"
    REDIRECTED = "redirected"
    START_UNKNOWN = "start-unknown"
    START_REVOKED = "start-revoked"
    RUN_UNIDENTIFIED = "run-unidentified"
    UPLOAD_UNKNOWN = "upload-unknown"
    RUN_FAILED = "run-failed"
    RUN_OVERDUE = "run-overdue"
    RUN_SILENT = "run-silent"
    BATCH_INTERRUPTED = "batch-interrupted"


class WorkflowAutomationError(Exception):
    """
    A request to the workflow automation service that did not succeed.

    Its text has separate lines for what happened, what that means, what to do next and, if known, the
    connection and the flow. It never contains the API key.

    :param message: what happened
    :param consequence: what that means, such as "No run was started."
    :param next_step: what to do about it
    :param code: the kind of failure, by default that of the class
    :param status: HTTP status of the response, None if there was none
    :param retry_after: seconds that the service asked to wait, None if it did not
    """

    accepted: Accepted = Accepted.NO
    """Whether the service acted on the request; of a task, also whether an earlier try of it did."""
    _consequence: ClassVar[str] = ""
    _code: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        consequence: str = "",
        next_step: str = "",
        code: str = "",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.consequence = consequence or self._consequence
        self.next_step = next_step
        self.code = code or self._code
        self.status = status
        self.retry_after = retry_after
        self.conn_id: str | None = None
        """The Airflow connection, if one was used."""
        self.flow_id: str | None = None
        """The flow, where it is known."""
        self.run_id: str | None = None
        """The run that files were uploaded for, or that the task waited for."""

    def locate(self, conn_id: object, flow_id: object = None, run_id: object = None) -> None:
        """
        Note which connection, flow and run this is about, where that is not noted yet.

        :param flow_id: None if the API key identifies the flow
        """
        if self.conn_id is None and isinstance(conn_id, str):
            self.conn_id = conn_id
        if self.flow_id is None and flow_id is not None:
            self.flow_id = str(flow_id)
        if self.run_id is None and run_id is not None:
            self.run_id = str(run_id)

    def __str__(self) -> str:
        where = [
            f"{name}: {value}"
            for name, value in (("Connection", self.conn_id), ("Flow", self.flow_id), ("Run", self.run_id))
            if value
        ]
        message = f"[{self.code}] {self.message}" if self.code else self.message
        return "\n".join(filter(None, (message, self.consequence, self.next_step, *where)))


class InvalidRequestError(WorkflowAutomationError, ValueError):
    """The request is not valid, so it was not sent."""

    _code = Code.INVALID
    _consequence = "Nothing was sent."


class FileUnavailableError(WorkflowAutomationError):
    """
    A file is missing, cannot be read or written, or changed while it was read; a retry may succeed.

    What a retry cannot fix, such as a folder in place of a file, is an :class:`InvalidRequestError`.

    Nothing was sent, or the request was aborted before all of it was sent: the service cannot have accepted
    the files.
    """

    _code = Code.FILE
    _consequence = "Nothing was sent."


class NotSentError(WorkflowAutomationError):
    """The service never received the whole request, and so cannot have acted on it."""

    _code = Code.NOT_SENT


class BusyError(WorkflowAutomationError):
    """The service asked to retry later and did nothing."""

    _code = Code.BUSY


class RejectedError(WorkflowAutomationError):
    """The service rejected the request; a retry cannot help."""

    _code = Code.REJECTED


class ResponseUnusableError(WorkflowAutomationError):
    """The service accepted the request (2xx), but its response cannot be used: the id of the run is unknown."""

    _code = Code.RUN_UNIDENTIFIED
    accepted = Accepted.YES


class OutcomeUnknownError(WorkflowAutomationError):
    """
    The request was sent, but it is unknown whether the service acted on it.

    A gateway may return 408 or 5xx after it had forwarded the request, and 302 or 303 may follow a POST that was
    carried out.
    """

    _code = Code.START_UNKNOWN
    accepted = Accepted.MAYBE


class RunFailedError(WorkflowAutomationError):
    """The run that a task waited for failed, as the flow or a person said."""

    _code = Code.RUN_FAILED
    accepted = Accepted.YES
    result: object = None
    """What the flow returned, None if nothing."""


class RunTimeoutError(RunFailedError):
    """The run has not reported its end within ``completion_timeout``, or nothing for ``heartbeat_timeout``."""

    _code = Code.RUN_OVERDUE
