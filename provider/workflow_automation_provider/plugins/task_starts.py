"""What Airflow and the entries say of a task: its starts, and what is known of their runs."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from workflow_automation_provider.client.redaction import Redactor
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.record.entries import (
    RunResult,
    adopted_key,
    read_adopted,
)
from workflow_automation_provider.execution.record.start_decision import KnownStart, why_not

_FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
_SUSPENDED = frozenset({"awaiting_input", "deferred"})

_ANY_ID = ""
"""Stands for a run that nothing is known of: no run has this id."""

_NO_SECRETS = Redactor(())


class RunStatus(enum.Enum):
    """What is known of a run, in the order in which people should look."""

    DOUBT = "in doubt"
    UNREADABLE = "unreadable"
    STOPPED = "stopped"
    IDLE = "not started"
    STARTING = "starting"
    STARTED = "started"
    CLAIMED = "claimed"
    WAITING = "waiting"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNow:
    """
    What Airflow says of a task, and what it can do.

    :param state: its state, None if it has none yet
    :param ended_at: when its last try ended
    :param drops_state: whether a Clear drops the entries, unless a person has ticked a box
    """

    state: str | None
    try_number: int
    max_tries: int
    ended_at: datetime | None = None
    drops_state: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether it has failed, and is not retried."""
        return self.state == "failed"

    @property
    def has_ended(self) -> bool:
        """Whether Airflow does nothing more with it, until a person does."""
        return self.state in _FINISHED

    @property
    def is_suspended(self) -> bool:
        """Whether it waits for something without a worker."""
        return self.state in _SUSPENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStart:
    """
    A start of the task.

    :param try_number: its try
    :param known: what is known of it, None if an entry of it cannot be read
    :param name: its name within the task, empty for the operator's own
    :param others: what is known of all starts of its name before it; only of the last one
    :param is_last: whether it is the last start of its name
    :param given: the entry by which a person gives the task its run, None if there is none
    """

    try_number: int
    known: KnownStart | None
    name: str = ""
    others: Sequence[KnownStart | None] = ()
    is_last: bool = True
    given: object = None

    def counts(self, task: TaskNow) -> bool:
        """
        Return whether it still says something of the task.

        After a Clear, it does if a person has given its run, or if the task has failed before it
        recorded another start.
        """
        if not self.is_last or self.try_number > task.try_number:
            return False
        if self.given is not None or task.has_failed or self.known is None:
            return True
        return self.known.is_since_clear(task.max_tries)

    def why_not(self, run_id: str) -> str | None:
        """Return why the task cannot continue with a run, None if it can."""
        others = [other for other in self.others if other]
        if self.known is None or len(others) < len(self.others):
            return "an entry of this task cannot be read"
        return why_not(run_id, self.known, others)

    @property
    def run(self) -> RunResult:
        """Its run, as far as it is known; whoever may read the task may also read its id."""
        return self.known.run(_NO_SECRETS) if self.known else {}

    @property
    def run_id(self) -> str:
        """The id of its run as a person enters it, empty if it is unknown."""
        return self.run.get("run_id", "").strip()

    @property
    def end(self) -> str:
        """How its run ended, as it reported; empty if it has not."""
        end = self.known.reports.end if self.known else None
        return end.status if end else ""

    @property
    def waits(self) -> bool:
        """Whether the task, if it is suspended, waits for the end of its run."""
        return self.known is not None and self.known.start.wait_for_completion

    @property
    def has_run(self) -> bool:
        """Whether a run was started for certain."""
        return self.known is not None and self.known.has_run

    @property
    def ids(self) -> set[str]:
        """The ids that its run is known by."""
        return self.known.known_ids if self.known else set()

    @property
    def can_continue(self) -> bool:
        """Whether there may be a run that the task can continue with."""
        return any(self.why_not(run_id) is None for run_id in (_ANY_ID, *self.ids))

    @property
    def unread_mailbox(self) -> str:
        """The object that may have an end that is not recorded, empty if there is none."""
        if self.known is None or self.end:
            return ""
        return self.known.start.mailbox.partition("?")[0]


class KnownBatch(NamedTuple):
    """
    What is known of a batch.

    :param folder: where its runs write their ends, empty if it does not wait
    :param has_ends: whether the task has read them, and has written the output file
    """

    folder: str = ""
    has_ends: bool = False


def state_of(task: TaskNow, start: TaskStart) -> RunStatus:
    """Return what is known of the run of a start."""
    known = start.known
    if known is None:
        return RunStatus.UNREADABLE
    if known.reports.stopped:
        return RunStatus.STOPPED

    outcome, end, claim = known.outcome, known.reports.end, known.reports.claim
    is_current = start.counts(task)
    # An end that came after the task had failed in doubt is kept, but the task does not have it.
    is_late = False
    if end and not claim and is_current and task.has_ended and task.ended_at:
        is_late = end.at > task.ended_at

    names_run = outcome is not None and outcome.status == "started" and not known.is_revoked
    if known.start.run or names_run or (known.reports.has_begun and not is_late):
        if end:
            return RunStatus.ENDED
        if is_current and task.is_suspended and start.waits:
            return RunStatus.WAITING
        return RunStatus.CLAIMED if claim else RunStatus.STARTED

    is_of_this_try = is_current and start.try_number == task.try_number
    if not outcome and is_of_this_try and task.state == "running":
        return RunStatus.STARTING

    return RunStatus.DOUBT if known.with_run else RunStatus.IDLE


def given_run(start: TaskStart) -> tuple[str, str]:
    """
    Return the id of the run that a person has given a start, and why the task will refuse it.

    Each is empty if there is none.
    """
    if start.given is None:
        return "", ""
    try:
        run_id = read_adopted(adopted_key(start.name), start.given)["run_id"]
    except InvalidRequestError as error:
        return "", error.message
    return run_id, start.why_not(run_id) or ""
