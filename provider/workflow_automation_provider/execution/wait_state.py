"""
What a task instance keeps of its wait for the end of a run, across tries and while it is parked.

==============================================  ============================  ====================================
Entry                                           Written                       Read
==============================================  ============================  ====================================
``workflow_automation_wait``                    before *starting*: the hash   by every execution of the task
                                                of the token; when it first
                                                asks: since when, and what
                                                was asked for
``workflow_automation_callback/{hash}/{n}``     empty, before *starting*;     by every execution of the task; the
                                                then by the endpoint, with    endpoint finds it by its key
                                                the flow's answer, or by the
                                                task, with a person's
==============================================  ============================  ====================================

``n`` is the task instance's ``max_tries``, which a Clear changes: what was started before a Clear can no longer
answer. Entries count until then, by the rules of :mod:`~workflow_automation_provider.execution.task_state`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from workflow_automation_provider.execution.callback import Answer, CallbackRow, row_key
from workflow_automation_provider.execution.task_state import _TaskRecord

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["WaitRecord", "Waiting"]

_WAIT = "workflow_automation_wait"


@dataclass(frozen=True, slots=True)
class Waiting:
    """
    What is known about the wait.

    :param digest: the hash of the token that the run was given, None if it was given none
    :param since: when the task began to wait, None if it has not
    :param asked: whether this try has listed its question under **Required Actions**: asking again would
        delete an answer
    """

    digest: str | None = None
    since: datetime | None = None
    asked: bool = False


class WaitRecord(_TaskRecord):
    """What the task instance knows about the end of its run."""

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context, name, nested=False)

    def read(self) -> Waiting:
        """Return what is known since the last Clear, which may be nothing."""
        entry = self._get(_WAIT)
        if not entry or not self._counts(entry):
            return Waiting()
        if entry["max_tries"] != self._now.max_tries:  # a Clear that kept the task's state (Airflow 3.4+)
            self._move(entry)
            return Waiting(entry.get("digest"))
        return self._waiting(entry)

    def open(self, digest: str) -> None:
        """
        Record the token of a run that is about to be started; an earlier token is then worth nothing.

        :raises Exception: if it could not be written: then nothing may be started
        """
        if (earlier := self._get(_WAIT)) and earlier.get("digest"):
            self._delete(row_key(earlier["digest"], earlier["max_tries"]))
        self._store_row(row_key(digest, self._now.max_tries), {})
        self._set(_WAIT, {"digest": digest})

    def keep_token_across_clear(self) -> None:
        """Let the token from before a Clear count again, because a person identified its run."""
        entry = self._get(_WAIT)
        if entry and entry.get("digest") and not self._counts(entry):
            self._move(entry)

    def forget_token(self) -> None:
        """Wait for a run that was given no token: only a person can tell how it ended."""
        self._delete(row_key("", self._now.max_tries))
        self._set(_WAIT, {"digest": None})

    def began(self, waiting: Waiting, *, asked: bool) -> Waiting:
        """
        Record since when the task waits.

        :param asked: whether this try has listed its question
        """
        since = waiting.since or datetime.now(UTC)
        entry = {"digest": waiting.digest, "since": since.isoformat(), "asked": self._ti_id if asked else ""}
        self._set(_WAIT, entry)
        return Waiting(waiting.digest, since, asked)

    def answer(self, digest: str | None) -> Answer | None:
        """Return what the flow, or a person, said of the end of the run."""
        row = self._get(row_key(digest or "", self._now.max_tries))
        return Answer.of(row) if isinstance(row, dict) else None

    def answered(self, digest: str | None, answer: Answer) -> None:
        """Record a person's answer, so that a later try finds it as if the flow had called."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self._store_row(row_key(digest or "", self._now.max_tries), answer.row(at))

    def close(self, digest: str | None) -> None:
        """Take no more answers; one that came before stays."""
        if self.answer(digest) is None:
            self._delete(row_key(digest or "", self._now.max_tries))

    @property
    def _ti_id(self) -> str:
        return str(getattr(self._context["ti"], "id", ""))

    def _waiting(self, entry: dict[str, Any]) -> Waiting:
        since = entry.get("since")
        return Waiting(
            entry.get("digest"),
            datetime.fromisoformat(since) if since else None,
            entry.get("asked") == self._ti_id,
        )

    def _move(self, entry: dict[str, Any]) -> None:
        """Let the token from before a Clear answer after it: copy its row, and begin to wait anew."""
        digest = entry.get("digest")
        if digest and entry["max_tries"] != self._now.max_tries:
            row = self._get(row_key(digest, entry["max_tries"])) or {}
            self._store_row(row_key(digest, self._now.max_tries), cast("CallbackRow", row))
        self._set(_WAIT, {"digest": digest})

    def _store_row(self, key: str, row: CallbackRow) -> None:
        if self._store is not None:
            self._put(self._store, key, cast("dict[str, Any]", row))
