"""What a request that failed means: for its item, and for the rest of the batch."""

from __future__ import annotations

from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING

from workflow_automation_provider.exceptions import (
    BusyError,
    Code,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch.item_results import ItemStatus

# Statuses with which the next item would be rejected as well: they are about the key, the flow or
# the URL, not the inputs.
_ENDS_BATCH = frozenset({401, 402, 404, 405, 407, 410})


def status_of(error: WorkflowAutomationError) -> ItemStatus:
    """Return the status of an item whose request ended in an error."""
    if isinstance(error, RejectedError):
        is_about_all = error.status in _ENDS_BATCH or error.code is Code.REDIRECTED
        return "not started" if is_about_all else "rejected"
    if isinstance(error, UnidentifiedError):
        return "unidentified"
    if isinstance(error, BusyError | NotSentError | InvalidRequestError):
        return "not started"
    return "unknown"


class FailureStreak:
    """
    The requests in a row, of all threads, that had no usable response.

    As many as are sent at a time may fail together. A longer streak means that the service is
    failing, or that it rejects the key.

    :param max_concurrency: how many requests are sent at a time
    """

    def __init__(self, max_concurrency: int) -> None:
        self._max_concurrency = max_concurrency
        self._length = 0
        self._lock = Lock()

    def end(self) -> None:
        """Count from zero again, after a usable response."""
        with self._lock:
            self._length = 0

    def add(self, error: WorkflowAutomationError, total: int) -> WorkflowAutomationError | None:
        """
        Count a request that failed.

        :param total: how many items the batch has
        :return: the error to end the batch with; None if the batch goes on
        """
        status = status_of(error)
        if status == "not started":
            return error

        # 403 is about the key, or about one item that a firewall dislikes.
        is_forbidden = error.status == HTTPStatus.FORBIDDEN
        is_about_its_inputs = status == "rejected" and not is_forbidden
        if is_about_its_inputs:
            self.end()
            return None

        with self._lock:
            self._length += 1
            length = self._length

        if is_forbidden:
            is_too_long = length >= min(self._max_concurrency + 1, total)
            return error if is_too_long else None
        if length > self._max_concurrency:
            return OutcomeUnknownError(
                f"{length} requests in a row had no usable response. The last one: {error.reason}"
            )

        return None
