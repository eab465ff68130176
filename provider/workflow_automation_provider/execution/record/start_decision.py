"""
What may be sent, decided by the starts of one task instance. Read this first.

There is no I/O here, as in h11. :mod:`~.entries` says what is kept of a start. From that,
:func:`known_start` makes what is known of it, for the task, for the endpoint in Airflow's API
server and for the page. :func:`decide` says what to do, and
:class:`~workflow_automation_provider.execution.run.start.RunStarter` does it.

**Decide**, the first row that fits the last start:

====================================================  ============================================
The last start                                        Then
====================================================  ============================================
A person gives the task a run that it does not name   that run, if :func:`why_not` has no reason
There is none, or it has another ``max_tries``        send: the task was cleared
A start by name that asked for something else         an error
Its run was told to stop, and was not adopted         send
Its run failed, and is to be started again            send
It names a run that the task has adopted              that run; an error if it was told to stop
Its run claimed, or ended                             that run
*Started*, and its token is not revoked               that run
It gave out a token, and is not settled               settle it
*Unidentified*                                        an error
*Not started*                                         send
In doubt: ``"start_again"``                           send
In doubt: ``"claim"``, without a mailbox              send
In doubt                                              an error
====================================================  ============================================

**Settle** a start that gave out a token: wait a while for what its run reports, unless the response
was *not started*, then revoke the token: write ``revoked``; write the start again, unchanged, which
waits for the endpoint's locks; read ``run``. From then on no run can claim it. So until a Clear, a
second start is sent only if no run of the first can go on, or the user accepts a second run.

A run with a **mailbox** asks nobody, so it cannot be told to stop: to settle its start is to look
into the mailbox, and nothing is revoked. A doubt then stays one, also with ``"claim"``, for which
there is nobody to ask.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.record.entries import (
    NO_REPORTS,
    Outcome,
    Place,
    RunReports,
    RunResult,
    Start,
    outcome_key,
    read_entry,
    read_reports,
    report_key,
    revoked_key,
    run_result,
)
from workflow_automation_provider.wording import one_line

if TYPE_CHECKING:
    from workflow_automation_provider.client.redaction import Redactor
    from workflow_automation_provider.execution.record.entries import LastMessage

Read: TypeAlias = Callable[[str], object]
"""Returns the entry with a key, as JSON values; None if there is none."""


class KnownStart(NamedTuple):
    """
    What is known of one start.

    :param is_revoked: whether its token is revoked. It is only read where that decides something:
        the response named a run, which has not begun
    :param is_settled: whether this execution has revoked its token, so that no run can begin any
        more; or has looked into the mailbox
    """

    start: Start
    outcome: Outcome | None = None
    reports: RunReports = NO_REPORTS
    is_revoked: bool = False
    is_settled: bool = False

    def is_since_clear(self, max_tries: int) -> bool:
        """Return whether it was recorded since the last Clear, which changed ``max_tries``."""
        return self.start.max_tries == max_tries

    @property
    def known_ids(self) -> set[str]:
        """The ids that its run is known by: from the start, the response and the run's reports."""
        runs = (self.start.run or {}, self.response)
        # Without blanks around it, as a person enters it.
        named = {run["run_id"].strip() for run in runs if "run_id" in run}
        return self.reports.run_ids | named

    @property
    def is_denied(self) -> bool:
        """Whether the response said that nothing was started."""
        return self.outcome is not None and self.outcome.status == "not started"

    @property
    def may_have_unknown_run(self) -> bool:
        """Whether it may have a run whose id is unknown, even one that was told to stop."""
        return not (self.known_ids or self.is_denied)

    @property
    def started_nothing(self) -> bool:
        """Whether no run of this start goes on: none was started, or it was told to stop."""
        was_stopped = self.reports.stopped is not None
        return was_stopped or (self.is_denied and not self.reports.has_begun)

    @property
    def with_run(self) -> tuple[Place, ...]:
        """The earlier starts that may have a run, and this one unless no run of it goes on."""
        if self.started_nothing:
            return self.start.earlier
        return (*self.start.earlier, self.start.place)

    @property
    def has_run(self) -> bool:
        """Whether it certainly has a run."""
        was_accepted = self.outcome is not None and not self.is_denied
        return was_accepted or self.start.run is not None or self.reports.has_begun

    @property
    def since(self) -> datetime:
        """When the wait for the end of the run began: with an adopted run, it begins anew."""
        if self.start.run:
            return self.start.at
        known = self.outcome or self.reports.claim
        return known.at if known else self.start.at

    @property
    def until(self) -> datetime:
        """When the wait ends at the latest."""
        return self.since + timedelta(seconds=self.start.completion_timeout or 0)

    def last_report_at(self, message: LastMessage) -> datetime:
        """
        Return when the run last reported something, or else when the wait began.

        :param message: the run's last message
        """
        times = [self.since]
        if self.reports.claim:
            times.append(self.reports.claim.at)
        if message.at:
            times.append(message.at)
        return max(times)

    @property
    def response(self) -> RunResult:
        """The run as the response had it; empty if there was none."""
        return (self.outcome and self.outcome.run) or {}

    def run(self, redactor: Redactor | None) -> RunResult:
        """
        Return the run of this start, as far as it is known.

        :param redactor: knows the secrets of the connection, None if it cannot be used: what the
            run itself has reported is left out then, or where it reveals one
        """
        run: RunResult = {**(self.start.run or self.response)}
        if self.start.flow_id:
            run.setdefault("flow_id", self.start.flow_id)

        run_id = self.reports.run_id
        if run_id not in (None, run.get("run_id")):
            # The response named another run: nothing of that is kept.
            run = run_result(None, flow_id=run.get("flow_id"))

        claim = self.reports.claim
        run_link = claim.run_link if claim else None
        if run_id and redactor and not redactor.has_key(run_id):
            run["run_id"] = run_id
        if run_link and redactor and not redactor.has_secret(run_link):
            run["run_link"] = run_link

        return run

    def text(self, redactor: Redactor | None) -> str:
        """
        Return in words what this start did, of which a run may be left.

        :param redactor: as in :meth:`run`
        """
        at = self.start.at.isoformat(timespec="seconds")
        return f"try {self.start.try_number} ({at}) {self._what(redactor)}."

    def _what(self, redactor: Redactor | None) -> str:
        """Return what this start did, as a part of a sentence."""
        if not self.has_run:
            return (
                "triggered the flow, and ended before the outcome was known. A run may have been "
                "started"
            )

        run = self.run(redactor)
        words = "started a run whose run_id is unknown"
        if self.start.run:
            words = f"continued with run {self.start.run['run_id']} that a person entered"
        elif "run_id" in run:
            words = f"started run {run['run_id']}"
        elif self.reports.run_id:
            words = "started a run whose run_id cannot be shown"
        elif "response" in run:
            words = "started a run without a run_id"
        if "run_link" in run:
            words = f"{words}, {run['run_link']}"
        if self.reports.end:
            words = f"{words}, which has ended ({self.reports.end.status})"

        return one_line(words)


def known_start(start: Start, read: Read, *, name: str | None = None) -> KnownStart:
    """
    Return what is known of a start.

    :param read: called only for the entries that can decide something
    :param name: the name of the start
    :raises InvalidRequestError: if a person has damaged an entry
    """
    reports = NO_REPORTS
    if start.token_hash:
        reports = read_reports(start.token_hash, read(report_key(start.token_hash)))
    if start.run:
        return KnownStart(start=start, reports=reports)

    key = outcome_key(start.place, name)
    entry = read(key)
    outcome = None
    if entry is not None:
        outcome = read_entry(Outcome, key, entry)

    is_revoked = False
    names_run = outcome is not None and outcome.status == "started"
    is_open = not (reports.has_begun or reports.stopped)
    if start.token_hash and start.can_call and names_run and is_open:
        is_revoked = read(revoked_key(start.token_hash)) is not None

    return KnownStart(start=start, outcome=outcome, reports=reports, is_revoked=is_revoked)


class StartOptions(NamedTuple):
    """
    What the task asks for, with these fields besides the arguments of its operator.

    :param max_tries: the task instance's, now
    :param request: as in :class:`Start`
    :param is_named: whether it is a start by name, whose request must not change
    :param is_resumed: whether Airflow continues a task that waited: it sends nothing then
    :param trigger_failure: why it does so, if its trigger has failed or timed out: it looks, and is
        not suspended again
    """

    max_tries: int
    request: str | None = None
    is_named: bool = False
    is_resumed: bool = False
    on_unknown_start: Literal["fail", "claim", "start_again"] = "fail"
    on_run_failed: Literal["fail", "start_again"] = "fail"
    claim_timeout: timedelta = timedelta()
    wait_for_completion: bool = False
    completion_timeout: timedelta = timedelta()
    heartbeat_timeout: timedelta | None = None
    callback_input: str = ""
    trigger_failure: str = ""

    @property
    def replaces_failed(self) -> bool:
        """Whether to start another run after one that failed."""
        # The run of a task that was resumed is the one that failed.
        return self.on_run_failed == "start_again" and not self.is_resumed

    @property
    def needs_url(self) -> str:
        """The argument that gives the run a URL, as a user writes it; empty if none does."""
        if self.wait_for_completion:
            return "wait_for_completion"
        return "on_unknown_start='claim'" if self.on_unknown_start == "claim" else ""

    @property
    def wait_fields(self) -> dict[str, float]:
        """The timeouts of the start, in seconds, if the task waits for the end of its run."""
        if not self.wait_for_completion:
            return {}

        fields = {"completion_timeout": self.completion_timeout.total_seconds()}
        if self.heartbeat_timeout:
            fields["heartbeat_timeout"] = self.heartbeat_timeout.total_seconds()
        return fields


class Decision(enum.Enum):
    """What to do next."""

    SEND = "send"
    RETURN = "return the run of the last start"
    ADOPT = "continue with the run that a person gives the task"
    SETTLE = "settle the last start, and decide again"
    CHANGED = "report that another request was sent under this name"
    DOUBT = "report that a run may have been started"
    UNIDENTIFIED = "report that a run was started whose id is unknown"


def decide(known: KnownStart | None, options: StartOptions, adopted: str | None = None) -> Decision:
    """
    Decide what to do, by the table above.

    :param known: what is known of the last start, None if there is none
    :param adopted: id of the run that a person gives the task, None if there is none
    """
    last = None
    if known and known.is_since_clear(options.max_tries):
        last = known

    is_adopted = last and last.start.run and last.start.run["run_id"] == adopted
    if adopted and not is_adopted:
        return Decision.ADOPT
    if last is None:
        return Decision.SEND

    start, outcome, reports = last.start, last.outcome, last.reports
    if options.is_named and not start.run and start.request != options.request:
        return Decision.CHANGED
    if reports.stopped and not start.run:
        return Decision.SEND
    if options.replaces_failed and reports.end and reports.end.status == "failed":
        return Decision.SEND

    status = outcome and outcome.status
    if start.run or reports.has_begun or (status == "started" and not last.is_revoked):
        return Decision.RETURN
    if start.token_hash and not last.is_settled:
        return Decision.SETTLE

    if status == "unidentified":
        return Decision.UNIDENTIFIED
    if status == "not started" and (start.token_hash or not start.earlier):
        return Decision.SEND
    if options.on_unknown_start == "start_again":
        return Decision.SEND
    if options.on_unknown_start == "claim" and start.can_call:
        return Decision.SEND

    return Decision.DOUBT


def is_certain(
    decision: Decision,
    known: KnownStart | None,
    *,
    is_adopted: bool,
    is_first: bool,
    is_own: bool,
) -> bool:
    """
    Return whether a decision holds, even if a read has missed an entry that is there.

    :param known: what is seen of the last start, None if none is seen
    :param is_adopted: whether an entry is seen by which a person gives the task a run
    :param is_first: whether the task instance was never executed before
    :param is_own: whether Airflow continues the try of this start, which then looks again anyway
    """
    if known is None:
        return is_first
    if decision is not Decision.RETURN or is_adopted:
        return False
    if known.outcome is None and known.start.run is None:
        return False  # the outcome, which names the run, may be there

    end = known.reports.end
    has_failed = end is not None and end.status == "failed"
    # No start follows such a one, so it was the last: its run has begun, and not failed; or it had
    # a response, and gave out no token.
    goes_on = known.reports.has_begun and not has_failed
    return is_own or goes_on or known.start.token_hash is None


def why_not(run_id: str, last: KnownStart | None, others: Sequence[KnownStart]) -> str | None:
    """
    Return why a task cannot adopt the run that a person gives it, None if it can.

    :param last: what is known of the last start, None if there is none
    :param others: what is known of all starts before it
    """
    if last is None or last.start.token_hash is None:
        return None
    if last.reports.stopped:
        return "the run of the last start was told to stop"
    if run_id in last.reports.refused:
        return "it was told to stop"
    if last.reports.run_ids - {run_id}:
        return "another run has the task"
    if run_id in last.known_ids:
        return None
    if not last.may_have_unknown_run:
        return "it is not that of the last start"
    if any(other.may_have_unknown_run or run_id in other.known_ids for other in others):
        return "it may be that of an earlier start, whose end the task does not get"

    return None


def check_adopted(run_id: str, reports: RunReports) -> None:
    """
    Check that the run that the task has adopted still has it.

    :raises InvalidRequestError: if it was told to stop, or another one has claimed or ended
    """
    if reports.stopped or run_id in reports.refused:
        raise not_continued(run_id, "it was told to stop")
    if reports.run_ids - {run_id}:
        raise not_continued(run_id, "another run has the task")


def not_continued(run_id: str, why: str) -> InvalidRequestError:
    """Return the error for a run that a person gives a task, which cannot continue with it."""
    return InvalidRequestError(
        f"The task cannot continue with run {one_line(run_id)}, which a person entered: {why}.",
        consequence="Nothing was sent in this try.",
        next_step=(
            "If that run did the work, mark the task as success.\n"
            "To start another run, delete the entry under Storage, and clear the task."
        ),
    )
