"""
What a task instance keeps of its wait for the end of a run, across tries and while it is parked.

=================================================  ================================  ===========================
Entry                                              Written                           Read
=================================================  ================================  ===========================
``workflow_automation_wait``                       by the task: the hash of the      by every execution of the
                                                   token, before *starting*; when    task
                                                   it first asks, since when it
                                                   waits; what a person answered,
                                                   or the flow, if the entry with
                                                   its answer had a secret in it
``workflow_automation_token/{hash}/{n}``           by the task, before *starting*;   by the endpoint, which accepts
                                                   deleted once no answer counts     an answer while it exists
                                                   any more
``workflow_automation_end/{hash}``                 by the endpoint: the answer       by every execution of the
                                                                                     task, which may delete it
``workflow_automation_receipt/{hash}``             by the endpoint, together with    by the endpoint, if the flow
                                                   the answer: how to recognize it   calls again
=================================================  ================================  ===========================

``n`` is the task instance's ``max_tries``, which a Clear changes: what was started before a Clear can no longer
answer. Entries count until then, by the rules of :mod:`~workflow_automation_provider.execution.ledger`.

No entry is written by both: Airflow repeats a write that timed out, and a late one of the task's would erase what
the endpoint had written since.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from workflow_automation_provider.execution.callback import Answer, end_key, token_key
from workflow_automation_provider.execution.store import TaskRecord
from workflow_automation_provider.execution.upload_record import FIRST_CONFIRMED

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


class WaitRecord(TaskRecord):
    """What the task instance knows about the end of its run."""

    _entry: dict[str, Any] | None = None
    """What :meth:`read` found or what was written since, as nobody else writes it."""

    def read(self) -> Waiting:
        """Return what is known since the last Clear, which may be nothing."""
        entry = self._entry = self._get(_WAIT) or {}
        if not entry or not self._counts(entry):
            return Waiting()
        if entry["max_tries"] != self._now.max_tries:  # a Clear that kept the task's state (Airflow 3.4+)
            self._move(entry)
            return Waiting(entry["digest"])
        since = entry.get("since")
        return Waiting(
            entry["digest"],
            datetime.fromisoformat(since) if since else None,
            entry.get("asked") == self._ti_id,
        )

    def open(self, digest: str) -> bool:
        """
        Record the token of a run that is about to be started, unless an earlier run has answered.

        :return: whether it was recorded; an earlier token is then worth nothing
        :raises Exception: if it could not be written: then nothing may be started
        """
        earlier = self._known()
        if earlier and self._counts(earlier) and self.close(earlier["digest"]):
            return False
        self._forget_earlier()
        self._open(digest)
        self._write({"digest": digest})
        return True

    def has_uploaded(self) -> bool:
        """Return whether files of the task's run were uploaded."""
        return self._get(FIRST_CONFIRMED) is not None

    def close(self, digest: str | None) -> Answer | None:
        """
        Accept no answer any more: from now on, the endpoint rejects the run's callback.

        :return: the answer that came before that
        """
        if digest:
            self._delete(token_key(digest, self._now.max_tries))
        return self.answer(digest)

    def keep_token_across_clear(self) -> None:
        """Begin to wait anew, and let the token from before a Clear count again: a person identified its run."""
        entry = self._known()
        # Whether there was a Clear is not always known.
        if entry.get("digest") or (entry and self._counts(entry)):
            self._move(entry)

    def forget_token(self) -> None:
        """Wait for a run that was given no token: only a person can tell how it ended."""
        self._forget_earlier()
        self._write({"digest": None})

    def began(self, waiting: Waiting, *, asked: bool) -> Waiting:
        """
        Record since when the task waits.

        :param asked: whether this try has listed its question
        """
        since = waiting.since or datetime.now(UTC)
        entry = {"digest": waiting.digest, "since": since.isoformat(), "asked": self._ti_id if asked else ""}
        self._write(entry)
        return Waiting(waiting.digest, since, asked)

    def answer(self, digest: str | None) -> Answer | None:
        """Return what the flow, or a person, said of the end of the run."""
        entry = self._known()
        counts = bool(entry) and entry["digest"] == digest and self._counts(entry)
        row = entry.get("answer") if counts else None
        if row is None and digest:
            row = self._get(end_key(digest))
        return Answer.of(row) if isinstance(row, dict) else None

    def answered(self, digest: str | None, answer: Answer) -> None:
        """
        Record an answer in place of the flow's: a person's, or the flow's own without its secrets.

        To be called only if :meth:`close` found none, or with the one that is stored. A later try finds it as if the flow had called, and the endpoint accepts no other.
        """
        kept = {name: value for name, value in self._known().items() if name in ("since", "asked")}
        row = answer.row(datetime.now(UTC).isoformat(timespec="seconds"))
        self._write({**kept, "digest": digest, "answer": row})
        if digest:
            self._forget(digest, self._now.max_tries)

    @property
    def _ti_id(self) -> str:
        return str(getattr(self._context["ti"], "id", ""))

    def _known(self) -> dict[str, Any]:
        if self._entry is None:
            self._entry = self._get(_WAIT) or {}
        return self._entry

    def _write(self, entry: dict[str, Any]) -> None:
        self._set(_WAIT, entry)
        self._entry = {**asdict(self._now), **entry}

    def _move(self, entry: dict[str, Any]) -> None:
        """Let the token from before a Clear answer after it, and begin to wait anew."""
        kept = {name: value for name, value in entry.items() if name in ("digest", "answer")}
        if kept["digest"] and "answer" not in kept:
            self._open(kept["digest"])
        self._write(kept)

    def _open(self, digest: str) -> None:
        if self._store is not None:
            # Its key says all.
            self._put(self._store, token_key(digest, self._now.max_tries), {"open": True})

    def _forget_earlier(self) -> None:
        earlier = self._known()
        if earlier.get("digest"):
            self._forget(earlier["digest"], earlier["max_tries"])

    def _forget(self, digest: str, max_tries: int) -> None:
        """Delete the token's entry first: after that, the endpoint writes no answer."""
        self._delete(token_key(digest, max_tries))
        self._delete(end_key(digest))
