"""
What a task instance keeps of its wait for the end of a run, across tries and while it is parked.

- ``workflow_automation_wait``, written by the task: since when it waits, and the hash of the token; what the flow answered,
  if the entry with its answer had a secret in it; whether the time was up.
- ``workflow_automation_end/{hash}``, written by the endpoint for the task: the answer.
- ``workflow_automation_receipt/{hash}``, written by the endpoint together with it: how to recognize the answer if the flow
  calls again.

Until the task waits, the hash of the token is in the entry of the start (:mod:`~.start_record`); :mod:`~.claim` has the
token's own. Entries count until a Clear, by the rules of :mod:`~workflow_automation_provider.execution.ledger`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from workflow_automation_provider.execution.callback import WAIT_KEY, Answer, end_key
from workflow_automation_provider.execution.claim import ClaimRecord
from workflow_automation_provider.execution.store import TaskRecord


@dataclass(frozen=True, slots=True)
class Waiting:
    """
    What is known about the wait.

    :param digest: the hash of the token that the run was given, None if it was given none
    :param since: when the task began to wait, None if it has not
    """

    digest: str | None = None
    since: datetime | None = None


class WaitRecord(TaskRecord):
    """What the task instance knows about the end of its run."""

    token: str | None = None
    """The hash of the token of the run that the task is to wait for, if its start says it."""
    _entry: dict[str, Any] | None = None
    """What :meth:`read` returned or what was written since, as nobody else writes it."""

    def read(self) -> Waiting:
        """Return what is known since the last Clear, which may be nothing."""
        entry = self._entry = self._read(WAIT_KEY) or {}
        if not entry or not self._counts(entry) or self.token not in (None, entry["digest"]):
            self._entry = {}
            return Waiting(self.token)
        if entry["max_tries"] != self._now.max_tries:  # a Clear that kept the task's state (Airflow 3.4+)
            self._move(entry)
            return Waiting(entry["digest"])
        since = entry.get("since")
        return Waiting(entry["digest"], datetime.fromisoformat(since) if since else None)

    def has_uploaded(self) -> bool:
        """Return whether files of the task's run were uploaded."""
        # Not at the top: it imports object storage, which is slow.
        from workflow_automation_provider.execution.upload import UPLOAD_KEY

        return self._read(UPLOAD_KEY) is not None

    def close(self, digest: str | None) -> Answer | None:
        """
        Accept no answer any more: from now on, the endpoint rejects the run's callback.

        :return: the answer that came before that
        """
        if digest:
            kept = {name: value for name, value in self._known().items() if name in ("digest", "since")}
            if kept and self.answer(digest) is None:
                # First: a run that is told to stop because of this must not be taken for one to start over.
                self._write({**kept, "closed": True})
            ClaimRecord(self._context).close(digest)
        return self.answer(digest)

    def is_over(self, digest: str) -> bool:
        """Return whether it is known how the run ended, or the task no longer waits for it, since the last Clear."""
        entry = self._known()
        closed = entry.get("closed") and entry["digest"] == digest
        return bool(closed and entry["max_tries"] == self._now.max_tries) or self.answer(digest) is not None

    def begin_anew(self, token: str | None) -> None:
        """
        Forget since when the task has waited, because a person entered its run.

        :param token: the hash of that run's token, None if it has none: then only marking the task ends its wait
        """
        self.token = token
        entry = self._known()
        answer = entry.get("answer") if entry and entry["digest"] == token else None
        if entry:  # not deleted: a late repeat of that would take what is written next
            self._write({"digest": token, **({"answer": answer} if answer else {})})

    def forget(self) -> None:
        """Delete the entry: the task waits for another run."""
        if self._known():
            self._delete(WAIT_KEY)
        self._entry = {}

    def began(self, waiting: Waiting) -> Waiting:
        """Record that the task waits from now on."""
        since = datetime.now(UTC)
        self._write({"digest": waiting.digest, "since": since.isoformat()})
        return Waiting(waiting.digest, since)

    def answer(self, digest: str | None) -> Answer | None:
        """Return what the flow said of the end of the run."""
        entry = self._known()
        counts = bool(entry) and entry["digest"] == digest and self._counts(entry)
        row = entry.get("answer") if counts else None
        if row is None and digest:
            row = self._read(end_key(digest))
        return Answer.of(row) if isinstance(row, dict) else None

    def store_answer(self, digest: str | None, answer: Answer) -> None:
        """
        Record the flow's answer without its secrets, in place of the one that is stored.

        A later try finds it as if the flow had said that, and the endpoint accepts no other.
        """
        kept = {name: value for name, value in self._known().items() if name == "since"}
        row = answer.row(datetime.now(UTC).isoformat(timespec="seconds"))
        self._write({**kept, "digest": digest, "answer": row})
        if digest:
            # The token first: after that, the endpoint writes no answer.
            ClaimRecord(self._context).close(digest)
            self._delete(end_key(digest))

    def _known(self) -> dict[str, Any]:
        if self._entry is None:
            self._entry = self._read(WAIT_KEY) or {}
        return self._entry

    def _write(self, entry: dict[str, Any]) -> None:
        self._set(WAIT_KEY, entry)
        self._entry = {**self._now._asdict(), **entry}

    def _move(self, entry: dict[str, Any]) -> None:
        """Let the token from before a Clear answer after it, and begin to wait anew."""
        kept = {name: value for name, value in entry.items() if name in ("digest", "answer")}
        if kept["digest"] and "answer" not in kept:
            ClaimRecord(self._context).open(kept["digest"])
        self._write(kept)
