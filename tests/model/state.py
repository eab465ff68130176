"""
A state of the model.

What Airflow's store holds, where its task and its process are, and what its runs do.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from workflow_automation_provider.execution.record import entries
from workflow_automation_provider.execution.record.start_decision import KnownStart

NOW = datetime(2026, 1, 1, tzinfo=UTC)

NOBODY = -1

NO_REPORT = -1
"""What is in a mailbox that holds no report."""


class Start(NamedTuple):
    """
    An entry ``start/…``; a start with a run that a person entered names the token of the last one,
    if any.

    :param execution: counts those of the task: its key
    :param has_earlier: whether it says that starts before it may have left a run
    """

    execution: int
    token: int
    max_tries: int
    run: int = NOBODY
    has_earlier: bool = False


class Outcome(NamedTuple):
    """An entry ``outcome/…``, by the execution."""

    execution: int
    status: entries.StartStatus
    token: int
    run: int = NOBODY


Entry = tuple[str, Any]
"""What the task writes: *start*, *outcome*, *revoked* or *report*, and its content."""


class Decided(NamedTuple):
    """
    What the endpoint has decided, and not yet committed.

    What it records, what the run does then, which start is locked.
    """

    token: int
    run: int
    reports: int
    then: str
    issuer: Start | None


class Run(NamedTuple):
    """
    A run.

    :param token: which it was given
    :param does: exists, works, success, failed, stopped; with *old* before it, of before a Clear
    :param is_denied: whether a response said that nothing was started
    """

    token: int
    does: str
    is_denied: bool = False

    @property
    def is_open(self) -> bool:
        return self.does in ("exists", "works", "old exists", "old works")


class Press(NamedTuple):
    """
    A button that a person has pressed.

    :param run: the run that was entered
    :param todo: what the page still sends: *confirm* to do so at all
    :param execution: the task's, when it was pressed
    :param says_second: whether the question says that a second run is started; so the others
    """

    kind: str
    run: int
    todo: tuple[str, ...]
    execution: int
    says_second: bool = False
    says_end: bool = False
    says_mailbox: bool = False


class State(NamedTuple):
    """
    One state.

    :param reports: what ``run/{token}`` says, for each token: a number of :func:`reports`
    :param mailboxes: what the run of each token has written to its mailbox, as in ``reports``
    :param mailboxes_are: readable, unread for a while, or denied for good
    :param locked: what the endpoint is about to commit
    :param loose: the same without the locks, where that is left out
    :param task: running, restarting, suspended, retry, failed, success: as Airflow has it
    :param step: what the task's process does next, and with what
    :param late: writes that will be carried out again
    :param orphans: tokens that a killed process may still send
    :param is_over: whether the task takes what it reads to be of before a Clear
    :param adopted: the run that a person has entered
    :param blind: how often a read has found nothing where there is something
    :param people: what people have pressed, and is not yet done
    :param accepts_second: whether a person has confirmed a second run since the last start
    """

    starts: frozenset[Start] = frozenset()
    outcomes: frozenset[Outcome] = frozenset()
    revoked: frozenset[int] = frozenset()
    reports: tuple[int, ...] = ()
    mailboxes: tuple[int, ...] = ()
    mailboxes_are: str = "readable"
    locked: Decided | None = None
    loose: Decided | None = None
    runs: tuple[Run, ...] = ()
    task: str = "running"
    step: tuple[Any, ...] = ("begin",)
    execution: int = 0
    token: int = NOBODY
    max_tries: int = 0
    late: frozenset[Entry] = frozenset()
    orphans: frozenset[int] = frozenset()
    is_over: bool = False
    adopted: int = NOBODY
    kills: int = 0
    clears: int = 0
    marks: int = 0
    is_gone: bool = False
    blind: bool = False
    people: tuple[Press, ...] = ()
    accepts_second: bool = False

    @property
    def last(self) -> Start | None:
        """The last start."""
        return max(self.starts) if self.starts else None

    def reports_of(self, token: int) -> entries.RunReports:
        """What ``run/{token}`` says."""
        return _SPOKEN[self.reports[token]]

    def with_said(self, token: int, number: int) -> State:
        return self._replace(reports=(*self.reports[:token], number, *self.reports[token + 1 :]))

    def with_run(self, number: int, does: str) -> State:
        """The state in which a run does something else."""
        run = self.runs[number]._replace(does=does)
        return self._replace(runs=(*self.runs[:number], run, *self.runs[number + 1 :]))

    def counts(self, token: int) -> bool:
        """Whether a token is that of the last start, and the task was not cleared since."""
        last = self.last
        return last is not None and last.token == token and last.max_tries == self.max_tries

    def outcome(self, start: Start) -> Outcome | None:
        """The outcome of a start; the task does not read that of one whose run a person entered."""
        if start.run != NOBODY:
            return None
        return next(
            (outcome for outcome in self.outcomes if outcome.execution == start.execution), None
        )

    def now(self, step: str, *more: object) -> State:
        """The state in which the task's process does something else next."""
        return self._replace(step=(step, *more))


_SPOKEN: list[entries.RunReports] = [entries.NO_REPORTS]
_NUMBERS: dict[entries.RunReports, int] = {entries.NO_REPORTS: 0}


def number_of(reports: entries.RunReports) -> int:
    """Return the number of what runs have reported, which is compared faster."""
    if reports not in _NUMBERS:
        _NUMBERS[reports] = len(_SPOKEN)
        _SPOKEN.append(reports)
    return _NUMBERS[reports]


def numbered(number: int) -> entries.RunReports:
    return _SPOKEN[number]


def run_id(number: int) -> str:
    return str(number)


class Known(NamedTuple):
    """What the task has read of one start: a KnownStart, in a form that is compared faster."""

    start: Start | None = None
    outcome: Outcome | None = None
    reports: int = 0
    is_revoked: bool = False
    is_settled: bool = False
    has_url: bool = True
    has_mailbox: bool = False

    @property
    def token(self) -> int:
        return self.start.token if self.start else NOBODY

    @cache  # noqa: B019 - each is needed to the end
    def known_start(self) -> KnownStart | None:
        """Return what the decision of a start decides by, None if there is no start."""
        if not (at := self.start):
            return None
        token = f"token {at.token}" if self.has_url and at.token != NOBODY else None
        run = None if at.run == NOBODY else entries.run_result(run_id(at.run))
        start = entries.Start(
            try_number=at.execution,
            number=0,
            at=NOW,
            max_tries=at.max_tries,
            token_hash=token,
            mailbox="mailbox" if token and self.has_mailbox else "",
            run=run,
            earlier=((0, 0),) if at.has_earlier else (),
        )
        outcome = None
        if self.outcome:
            named = (
                entries.run_result(run_id(self.outcome.run))
                if self.outcome.status == "started"
                else None
            )
            outcome = entries.Outcome(status=self.outcome.status, at=NOW, run=named)
        return KnownStart(
            start=start,
            outcome=outcome,
            reports=numbered(self.reports),
            is_revoked=self.is_revoked,
            is_settled=self.is_settled,
        )
