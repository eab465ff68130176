"""
Exceptions for every request that did not succeed, to catch in a task or a callback.

================================  =========  =================================================
Exception                         accepted   When
================================  =========  =================================================
:class:`InvalidRequestError`      ``NO``     an argument or the connection is invalid
:class:`ConnectionUnusableError`  ``YES``    a run was started; the connection is unusable
:class:`FileUnavailableError`     ``NO``     a file is missing, cannot be read, or changed
:class:`NotSentError`             ``NO``     no connection, or a request that was broken off
:class:`BusyError`                ``NO``     the service asked to retry later
:class:`RejectedError`            ``NO``     the service rejected the request
:class:`UnidentifiedError`        ``YES``    accepted, but the response does not name the run
:class:`OutcomeUnknownError`      ``MAYBE``  no response, or one that leaves it open
:class:`RunFailedError`           ``YES``    the flow said that the run failed
:class:`RunTimeoutError`          ``YES``    no result was reported in time
:class:`BatchInterruptedError`    any        an unexpected error ended a batch
================================  =========  =================================================

The page *If it fails* has what each status of a response means.

All are subclasses of :class:`WorkflowAutomationError`. The tasks of this provider raise the same
exceptions; those that Airflow must not retry are also an ``AirflowFailException``.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar, Self

from workflow_automation_provider.wording import one_line, run_text

__all__ = [
    "Accepted",
    "BatchInterruptedError",
    "BusyError",
    "Code",
    "ConnectionUnusableError",
    "FileUnavailableError",
    "InvalidRequestError",
    "NotSentError",
    "OutcomeUnknownError",
    "RejectedError",
    "RunFailedError",
    "RunTimeoutError",
    "UnidentifiedError",
    "WorkflowAutomationError",
]

# Characters of a reason that are kept.
_MAX_REASON = 500


class Accepted(enum.Enum):
    """Whether the service acted on a request: started the run, or accepted the files."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


# In the texts below, each line says one thing, because the log of Airflow's UI cuts lines at some
# 90 characters. What could start another run comes first.
_FIX = "Fix the cause, then {again}"
_LATER = "If Airflow does not retry the task, {again}"
_ELSE = "If Airflow does not retry the task, {continue_with_it}"
_NO_RUN = "No run was started."


class Code(enum.StrEnum):
    """The kinds of failure, what each means and what to do. docs/if-it-fails.md explains each."""

    consequence: str
    """What the service did; ``{run}`` is the run."""
    what_to_do: str
    """
    For a person.

    ``{again}`` is how to start over, and ``{continue_with_it}`` how the task continues with a run.
    """

    def __new__(cls, code: str, consequence: str, what_to_do: str) -> Self:
        """Make a row of the table."""
        self = str.__new__(cls, code)
        self._value_ = code
        self.consequence = consequence
        self.what_to_do = what_to_do
        return self

    INVALID = "invalid-request", "Nothing was sent.", _FIX
    CONNECTION = "connection-unusable", "{run} was started.", f"Fix the cause.\n{_ELSE}"
    FILE = "file-unavailable", "Nothing was sent.", f"Provide the file.\n{_LATER}"
    NOT_SENT = "not-sent", _NO_RUN, _LATER
    BUSY = "busy", _NO_RUN, _LATER
    REJECTED = "rejected", _NO_RUN, _FIX
    KEY_REJECTED = "key-rejected", _NO_RUN, _FIX
    NOT_FOUND = "not-found", _NO_RUN, _FIX
    TOO_LARGE = "too-large", _NO_RUN, _FIX
    REDIRECTED = "redirected", _NO_RUN, _FIX
    START_UNKNOWN = (
        "start-unknown",
        "A run may have been started: look in the workflow's list of runs.",
        "If there is a run, {continue_with_it}\nIf there is none, {again}",
    )
    START_REVOKED = (
        "start-revoked",
        "A run may have been started, but one that claims its start from now on is told to stop.",
        (
            "If the flow does not claim its start, look in the workflow's list of runs first.\n"
            "Clear the task to start another run."
        ),
    )
    UNIDENTIFIED = (
        "unidentified",
        "A run was started, but its run_id is unknown: look in the workflow's list of runs.",
        "Once you have found it, {continue_with_it}",
    )
    UPLOAD_UNKNOWN = (
        "upload-unknown",
        "The files may have been accepted: look in the run's files.",
        "If the files are there, mark the task as success.\nIf not, {again}",
    )
    RUN_FAILED = (
        "run-failed",
        "{run} was started.",
        f"Fix the cause.\n{_LATER}",
    )
    RUN_OVERDUE = (
        "run-overdue",
        "{run} was started. When it next asks, it is told to stop.",
        (
            "If it goes on, or has reported its end since, {continue_with_it}\n"
            "If it succeeded, mark the task as success.\n"
            "If it failed, clear the task to start another run."
        ),
    )
    RUN_SILENT = (
        "run-silent",
        "{run} was started. When it next asks, it is told to stop.",
        "Look at the run. If it failed, clear the task to start another one.",
    )
    BATCH_INTERRUPTED = "batch-interrupted", "", _LATER


class WorkflowAutomationError(Exception):
    """
    A request to the workflow automation service that did not succeed.

    Its text has separate lines for what happened, what that means, what to do next and, if known,
    the connection and the flow. It never contains the API key.

    :param message: what happened
    :param consequence: what that means, by default that of the code
    :param next_step: what to do about it
    :param code: the kind of failure, by default that of the class
    :param accepted: whether the service acted on the request; for a task, also whether it did in an
        earlier try. By default that of the class
    :param status: HTTP status of the response, None if there was none
    :param quote: the service's own words, shortened, or in parentheses why they are not shown
    :param retry_after: seconds that the service asked to wait, None if it did not
    :param conn_id: the Airflow connection, if one was used
    :param flow_id: the flow, where it is known
    :param run_id: the run that files were uploaded for, or that the task waited for
    """

    accepted: Accepted = Accepted.NO
    """
    Whether the service acted on the request.

    For a task, also whether it did in an earlier try.
    """
    _code: ClassVar[Code | None] = None

    def __init__(
        self,
        message: str,
        *,
        consequence: str = "",
        next_step: str = "",
        code: Code | None = None,
        accepted: Accepted | None = None,
        status: int | None = None,
        quote: str = "",
        retry_after: float | None = None,
        conn_id: str | None = None,
        flow_id: str | None = None,
        run_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self._code
        if not consequence and self.code:
            consequence = self.code.consequence.format(run=run_text(run_id))

        self.consequence = consequence
        self.next_step = next_step
        self.accepted = accepted or type(self).accepted
        self.status = status
        self.quote = quote
        self.retry_after = retry_after
        self.conn_id = conn_id
        self.flow_id = flow_id
        self.run_id = run_id

    @property
    def reason(self) -> str:
        """What happened and what the service responded, in one line of at most 500 characters."""
        line = " ".join(f"{self.message} {self._service_text}".split())
        return line if len(line) <= _MAX_REASON else f"{line[: _MAX_REASON - 1]}…"

    def with_facts(self, kind: type[Self] | None = None, **facts: Any) -> Self:
        """
        Return a copy of the error with these facts.

        :param kind: the class of the copy, by default the same
        :param facts: arguments of the class
        """
        known = {name: fact for name, fact in vars(self).items() if not name.startswith("_")}
        known.update(facts)
        if kind is None:
            kind = type(self)

        copied = kind(**known)
        copied.__cause__ = self.__cause__
        return copied.with_traceback(self.__traceback__)

    @property
    def _service_text(self) -> str:
        return f"The service said: {self.quote}" if self.quote else ""

    def __str__(self) -> str:
        where = [
            f"{name}: {one_line(value)}"
            for name, value in (
                ("Connection", self.conn_id),
                ("Flow", self.flow_id),
                ("Run", self.run_id),
            )
            if value
        ]
        message = f"[{self.code}] {self.message}" if self.code else self.message
        return "\n".join(
            filter(None, (message, self._service_text, self.consequence, self.next_step, *where))
        )


class InvalidRequestError(WorkflowAutomationError, ValueError):
    """The request is not valid, so it was not sent."""

    _code = Code.INVALID


class ConnectionUnusableError(WorkflowAutomationError):
    """
    A run was started, and what follows needs a connection, which cannot be used.

    Such as that of its mailbox; ``accepted`` is ``MAYBE`` where it is unknown whether there is a
    run. A retry goes on with the run.
    """

    _code = Code.CONNECTION
    accepted = Accepted.YES


class FileUnavailableError(WorkflowAutomationError):
    """
    A file is missing, cannot be read or written, or changed while it was read; a retry may succeed.

    Nothing was sent, or the request was aborted before all of it was sent: the service cannot have
    accepted the files.
    """

    _code = Code.FILE


class NotSentError(WorkflowAutomationError):
    """The service never received the whole request, and so cannot have acted on it."""

    _code = Code.NOT_SENT


class BusyError(WorkflowAutomationError):
    """The service asked to retry later and did nothing."""

    _code = Code.BUSY


class RejectedError(WorkflowAutomationError):
    """The service rejected the request; a retry cannot help."""

    _code = Code.REJECTED


class UnidentifiedError(WorkflowAutomationError):
    """
    The service accepted the request (2xx).

    Its response does not say which run was started.
    """

    _code = Code.UNIDENTIFIED
    accepted = Accepted.YES


class OutcomeUnknownError(WorkflowAutomationError):
    """
    The request was sent, but it is unknown whether the service acted on it.

    A gateway may return 408 or 5xx after it had forwarded the request, and 302 or 303 may follow a
    POST that was carried out.
    """

    _code = Code.START_UNKNOWN
    accepted = Accepted.MAYBE


class RunFailedError(WorkflowAutomationError):
    """
    The run that a task waited for failed, as the flow said.

    :param result: what the flow returned, None if nothing
    """

    _code = Code.RUN_FAILED
    accepted = Accepted.YES

    def __init__(self, message: str, *, result: object = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.result = result


class RunTimeoutError(RunFailedError):
    """
    The run reported no end, or nothing at all, in time.

    See ``completion_timeout`` and ``heartbeat_timeout``.
    """

    _code = Code.RUN_OVERDUE


class BatchInterruptedError(WorkflowAutomationError):
    """An unexpected error ended the batch; a retry continues it."""

    _code = Code.BATCH_INTERRUPTED
