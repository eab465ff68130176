"""
The rules: what the task and the endpoint do, as the specification says.

What is decided, the package's own code decides, here as in Airflow: ``decide`` and ``why_not`` of
``execution/record/start_decision.py`` for the task, ``verdict_on`` of
``execution/record/callback_decision.py`` for the endpoint. The model has the steps between: what is
read, written and sent, in the order of ``start.py``, ``completion.py`` (both of ``execution/run``),
``execution/record/start_record.py`` and ``plugins/callback_store.py``. A flag such as ``no-revoke``
leaves one rule out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace as replace_entry

from state import (
    NO_REPORT,
    NOBODY,
    NOW,
    Decided,
    Entry,
    Known,
    Outcome,
    Start,
    State,
    number_of,
    numbered,
    run_id,
)
from workflow_automation_provider.execution.record import callback_decision, entries, start_decision
from workflow_automation_provider.execution.record.callback import Ended, Started
from workflow_automation_provider.execution.record.callback_decision import Seen, Verdict
from workflow_automation_provider.execution.record.start_decision import Decision

if TYPE_CHECKING:
    from words import Size

_SEEN = {"suspended": "awaiting_input", "failed": "ended"}


class Rules:
    """What both sides share: the entries, who reads and writes them, and the locks."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.on = size.words
        self.waits = "wait" in self.on
        self.has_url = "no-url" not in self.on
        self.has_mailbox = "mailbox" in self.on
        self.asks = self.has_url and not self.has_mailbox
        self.policy: Literal["fail", "claim", "start_again"] = (
            "fail"
            if "on-fail" in self.on
            else "start_again"
            if "on-start-again" in self.on
            else "claim"
        )
        self.ledger_decides = cache(self._ledger_decides)
        self.why_not = cache(self._why_not)
        self.endpoint_decides = cache(self._endpoint_decides)

    def issuer(self, s: State, token: int) -> Start | None:
        """
        Return the start that gave out a token.

        One with a run that a person entered only refers to it.
        """
        starts = (
            x for x in s.starts if x.token == token and (x.run == NOBODY or "last-lock" in self.on)
        )
        return max(starts, default=None)

    def is_free(self, s: State) -> bool:
        """
        Whether Airflow can change the task instance.

        A Clear, a mark, the end of a try wait for the endpoint's lock.
        """
        return s.locked is None or "no-lock" in self.on

    def waits_for_lock(self, s: State, entry: Entry) -> bool:
        kind, what = entry
        return (
            s.locked is not None
            and kind == "start"
            and what == s.locked.issuer
            and "no-lock" not in self.on
        )

    def written(self, s: State, entry: Entry) -> State:
        """The state with an entry; a start and an outcome have one key for each execution."""
        kind, what = entry
        if kind == "start":
            what = what._replace(execution=0) if "one-key" in self.on else what
            others = frozenset(x for x in s.starts if x.execution != what.execution)
            return s._replace(starts=others | {what})
        if kind == "outcome":
            outcomes = frozenset(x for x in s.outcomes if x.execution != what.execution)
            return s._replace(outcomes=outcomes | {what})
        if kind == "report":
            return s.with_said(*what)
        return s._replace(revoked=s.revoked | {what})

    def read(self, s: State, start: Start | None) -> Known:
        """What the task reads of a start."""
        if start is None:
            return Known()
        report = s.reports[start.token] if start.token != NOBODY and self.has_url else 0
        is_revoked = start.token in s.revoked
        return Known(
            start,
            s.outcome(start),
            report,
            is_revoked,
            False,
            self.has_url,
            self.is_in_doubt_for_good,
        )

    @property
    def is_in_doubt_for_good(self) -> bool:
        """Whether the decision of a start knows that a run has a mailbox, and cannot be told to stop."""
        return self.has_mailbox and "mailbox-claims" not in self.on

    def is_unread(self, s: State, start: Start | None) -> bool:
        """Whether the task sees an end in the mailbox of a start that it has not recorded."""
        if start is None or start.token == NOBODY or not self.has_mailbox:
            return False
        is_hidden = s.mailboxes_are != "readable"
        return bool(self.mailbox(s, start.token)) and not s.reports[start.token] and not is_hidden

    def is_unknown(self, s: State, start: Start | None) -> bool:
        """Whether the mailbox of a start, which is to be looked into, cannot be read."""
        if start is None or start.token == NOBODY or s.mailboxes_are == "readable":
            return False
        return not s.reports[start.token] and "unread-is-empty" not in self.on

    def mailbox(self, s: State, token: int) -> int:
        """What is in the mailbox of a token, as in ``reports``."""
        return s.mailboxes[self.place(token)]

    def place(self, token: int) -> int:
        """Where the mailbox of a token is."""
        return 0 if "one-mailbox" in self.on else token

    # What is decided, by the engine's code --------------------------------------------------------

    def _ledger_decides(
        self, known: Known, max_tries: int, adopted: int, is_resumed: bool
    ) -> Decision:
        """Ask the decision of a start what to do."""
        outcome = known.outcome
        if outcome and outcome.status == "unidentified" and "odd-sends" in self.on:
            known = known._replace(outcome=None)
        options = start_decision.StartOptions(
            max_tries,
            is_resumed=is_resumed,
            on_unknown_start=self.policy,
            on_run_failed="start_again" if "again" in self.on else "fail",
        )
        return start_decision.decide(
            known.known_start(), options, None if adopted == NOBODY else run_id(adopted)
        )

    def _why_not(self, run: int, last: Known, others: tuple[Known, ...]) -> str | None:
        """Ask the decision of a start whether the task can continue with a run that a person entered."""
        reports = numbered(last.reports)
        if "enter-refused" in self.on:
            last = last._replace(reports=number_of(replace_entry(reports, refused=())))
        if "enter-ended" in self.on:
            last = last._replace(reports=number_of(replace_entry(reports, end=None)))
        if "enter-other" in self.on and not reports.stopped:
            return None
        return start_decision.why_not(
            run_id(run),
            last.known_start(),
            [*filter(None, (other.known_start() for other in others))],
        )

    def _endpoint_decides(
        self, status: Literal["started", "success", "failed"], run: int, seen: tuple[Any, ...]
    ) -> tuple[Verdict, int]:
        """Ask the endpoint what to say, and what is then recorded."""
        number, is_last, is_current, is_revoked, adopted, task = seen
        on, before = self.on, numbered(number)
        name = None if "no-id" in on else run_id(run)
        report = Started(name) if status == "started" else Ended(status, run_id=name)
        is_claim, end = isinstance(report, Started), before.end
        is_own_end = end is not None and end.run_id == name
        has_failed = end is not None and end.status == "failed"
        if "end-revoked" in on and not is_claim:
            is_revoked = False
        if "failed-words" in on and is_claim and is_own_end and has_failed:
            before = replace_entry(before, end=None)
        saw = Seen(
            reports=before,
            is_last=is_last,
            is_current=is_current,
            is_revoked=is_revoked,
            waits=self.waits,
            adopted=None if adopted == NOBODY else run_id(adopted),
            task=_SEEN.get(task, task),
        )
        decides = is_claim and is_revoked and not before.claim
        if "revoked-first" in on and decides and task not in ("suspended", "success"):
            return Verdict.WAIT, number
        if "stale-revoke" in on and decides and saw.is_wanted:
            saw = replace(saw, task="running")
        verdict, after = callback_decision.verdict_on(report, saw, NOW)
        is_stop = after.stopped and not before.stopped
        if "late-words" in on and is_claim and is_own_end and not before.stopped:
            after = replace_entry(before, stopped=NOW)
        if is_stop and (
            ("stop-current" in on and not is_current) or ("end-unheard" in on and not is_claim)
        ):
            return verdict, number
        if "unheard" in on:
            after = replace_entry(after, refused=before.refused)
        if before.end != end:
            after = replace_entry(after, end=end)
        # In whatever order: it says the same.
        return verdict, number_of(replace_entry(after, refused=tuple(sorted(after.refused))))


class Task(Rules):
    """The task's process: one step after another."""

    def steps_of_task(self, s: State) -> Iterator[State]:
        """Yield what the process may do next."""
        name, *more = s.step
        if step := getattr(self, f"_{name}", None):
            yield from step(s, *more)

    def _begin(self, s: State) -> Iterator[State]:
        """Read the last start and what a person has entered, and decide."""
        if not self.is_free(s):
            return
        s = s._replace(task="running")
        yield from self._read_and_decide(s)

    def _read_and_decide(self, s: State, *, is_resumed: bool = False) -> Iterator[State]:
        """Decide by what is read; once, an entry that is there may not be seen."""
        last = s.last
        looks = "no-mailbox-look" not in self.on
        counts = last is not None and last.max_tries == s.max_tries
        if looks and counts and self.is_unknown(s, last):
            yield from self._gives_up(s)
            return
        if looks and last and last.max_tries == s.max_tries and self.is_unread(s, last):
            yield from self._copy(s, last.token)
            return
        known = self.read(s, s.last)
        yield from self._decided(s, known, is_resumed=is_resumed)
        if "blind" not in self.on or s.last is None or s.blind:
            return
        t = s._replace(blind=True)
        hidden = [
            self.read(t, max(s.starts - {s.last}, default=None)),
            # What is in a mailbox is seen, also where its copy is not.
            known if self.has_mailbox else known._replace(reports=0),
            known._replace(outcome=None),
            known._replace(is_revoked=False),
        ]
        for seen in hidden:
            if self._is_acted_on(t, seen, is_resumed=is_resumed):
                yield from self._decided(t, seen, is_resumed=is_resumed)

    def _copy(self, s: State, token: int) -> Iterator[State]:
        """Record what is in a mailbox, and go on; fail where that is no report."""
        if self.mailbox(s, token) == NO_REPORT:
            if "no-report-fails" in self.on:
                end = entries.End(NOW, "failed")
                failed = number_of(entries.RunReports(end=end))
                yield from self.write(s, ("report", (token, failed)), s.step)
            else:
                yield s.now("ended")
            return
        yield from self.write(s, ("report", (token, self.mailbox(s, token))), s.step)

    def _gives_up(self, s: State) -> Iterator[State]:
        """End the try: the next one looks again. Without one, the task has failed."""
        yield from self.retried(s)
        if s.kills >= self.size.kills:
            yield s.now("ended")

    def _is_acted_on(self, s: State, seen: Known, *, is_resumed: bool = False) -> bool:
        """Whether the task acts on what it saw, and does not write a probe and read again."""
        if "no-probe" in self.on:
            return True
        if "no-find" in self.on and seen.is_settled:
            return True
        if "hasty" in self.on and numbered(seen.reports).has_begun:
            return True
        decision = self._decision(s, seen, is_resumed=is_resumed)
        is_first = s.execution == 0 and not is_resumed
        is_own = is_resumed and seen.start is not None and seen.start.execution == s.execution
        return start_decision.is_certain(
            decision,
            seen.known_start(),
            is_adopted=s.adopted != NOBODY,
            is_first=is_first,
            is_own=is_own,
        )

    def _decision(self, s: State, known: Known, *, is_resumed: bool = False) -> Decision:
        max_tries = NOBODY if s.is_over else s.max_tries
        was_cleared = known.start is not None and known.start.max_tries != s.max_tries
        adopted = s.adopted if was_cleared or not is_resumed else NOBODY
        return self.ledger_decides(known, max_tries, adopted, is_resumed)

    def _resume(self, s: State) -> Iterator[State]:
        """
        Read what a retry reads, and decide.

        But send nothing, unless a person has cleared the task.
        """
        if self.is_free(s):
            yield from self._read_and_decide(s, is_resumed=True)

    def _decided(self, s: State, known: Known, *, is_resumed: bool = False) -> Iterator[State]:
        """Do what the decision of a start decides."""
        match self._decision(s, known, is_resumed=is_resumed), known.start:
            case Decision.ADOPT, start if self.is_unread(s, start):
                assert start
                yield from self._copy(s, start.token)
            case Decision.ADOPT, _:
                yield self._enters(s, known)
            case Decision.SETTLE, _:
                yield s.now("revoke", known._replace(reports=0))
            case Decision.SEND, start:
                was_cleared = start is not None and start.max_tries != s.max_tries
                yield s.now("new") if was_cleared or not is_resumed else s.now("ended")
            case Decision.RETURN, Start() as start:
                if not is_resumed and "entry-stays" not in self.on:
                    s = s._replace(adopted=NOBODY)
                yield from self._returned(s, start.token)
            case _:  # an error, which says why
                yield s.now("ended")

    # A run that a person entered ------------------------------------------------------------------

    def _enters(self, s: State, last: Known) -> State:
        """Continue with the run that a person entered, if it may be that of the last start."""
        others = tuple(self.read(s, start) for start in sorted(s.starts - {s.last}, reverse=True))
        if self.why_not(s.adopted, last, others) or (last.start is None and self.waits):
            return s._replace(step=("ended",), adopted=self.stays(s))
        token = last.start.token if last.start and self.has_url else NOBODY
        if "enter-other" in self.on and token != s.runs[s.adopted].token:
            token = NOBODY
        return s.now("enter", token, s.adopted)

    def stays(self, s: State) -> int:
        """The run that a person has entered, once the task has failed because of it."""
        return s.adopted if self.on & {"entry-stays", "person"} else NOBODY

    def _enter(self, s: State, token: int, run: int) -> Iterator[State]:
        """Write a start with the run that a person entered."""
        start = Start(s.execution, token, s.max_tries, run)
        then = ("touch_entered", token, self.issuer(s, token) or s.last)
        for t in self.write(s, ("start", start), then):
            is_deleted = t.execution == s.execution and "entry-stays" not in self.on
            yield t._replace(adopted=NOBODY) if is_deleted else t

    def _touch_entered(self, s: State, token: int, issuer: Start | None) -> Iterator[State]:
        """
        Write the start that gave out the token once more.

        A stop that has begun is decided by the start before.
        """
        if issuer is None or "enter-touch" in self.on or not self.asks:
            yield s.now("take", token)
        else:
            yield from self.write(s, ("start", issuer), ("take", token))

    # Close a start --------------------------------------------------------------------------------

    def _revoke(self, s: State, known: Known) -> Iterator[State]:
        if not self.asks:
            yield s.now("look", known)
        elif "no-revoke" in self.on:
            yield s.now("touch", known)
        else:
            yield from self.write(s, ("revoked", known.token), ("touch", known))

    def _touch(self, s: State, known: Known) -> Iterator[State]:
        """
        Write the start that gave out the token once more.

        This waits for what the endpoint has begun.
        """
        if "no-touch" in self.on:
            yield s.now("look", known)
        else:
            issuer = self.issuer(s, known.token) or known.start
            yield from self.write(s, ("start", issuer), ("look", known))

    def _look(self, s: State, known: Known) -> Iterator[State]:
        """
        Read what the run has reported, and decide again.

        An execution that closes its own start never sends another.
        """
        if self.is_unknown(s, known.start):
            yield from self._gives_up(s)
            return
        if self.is_unread(s, known.start) and "no-mailbox-look" not in self.on:
            yield from self._copy(s, known.token)
            return
        closed = known._replace(
            reports=s.reports[known.token], is_revoked=self.asks, is_settled=True
        )
        yield from self._looked(s, closed)
        if "blind" in self.on and not s.blind and closed.reports and self.asks:
            t, seen = s._replace(blind=True), closed._replace(reports=0)
            if self._is_acted_on(t, seen):
                yield from self._looked(t, seen)

    def _looked(self, s: State, closed: Known) -> Iterator[State]:
        """Go on with what was seen of a start that is closed."""
        if numbered(closed.reports).has_begun:
            yield from self._returned(s, closed.token)
        elif closed.start and closed.start.execution == s.execution:
            yield s.now("ended")
        else:
            yield from self._decided(s, closed)

    # Send -----------------------------------------------------------------------------------------

    def _new(self, s: State) -> Iterator[State]:
        """Begin a start."""
        if s.token + 1 >= self.size.tokens:
            return
        yield s._replace(
            token=s.token + 1,
            step=("start",),
            reports=(*s.reports, 0),
            mailboxes=(*s.mailboxes, 0) if self.has_mailbox else (),
        )

    def _start(self, s: State) -> Iterator[State]:
        """Record the start."""
        is_settled = s.revoked or (self.has_mailbox and s.starts)
        then = (
            ("check",)
            if "marks" in self.on and "no-check" not in self.on and is_settled
            else ("send",)
        )
        for t in self.write(s, ("start", self._own(s)), then):
            yield t._replace(is_over=False) if t.step == then else t

    def _own(self, s: State) -> Start:
        has_earlier = "person" in self.on and self._has_earlier(s)
        return Start(s.execution, s.token, s.max_tries, has_earlier=has_earlier)

    def _has_earlier(self, s: State) -> bool:
        """Whether the start before may have left a run."""
        before = [
            start
            for start in s.starts
            if start.max_tries == s.max_tries and start.execution < s.execution
        ]
        start = self.read(s, max(before, default=None)).known_start()
        return start is not None and start.with_run != ()

    def _check(self, s: State) -> Iterator[State]:
        """After a close, send nothing once a person has marked the task."""
        yield s.now("send") if s.task == "running" else s.now("nothing")

    def _run(self, s: State, run: int) -> Iterator[State]:
        """Record the run that the response names; then look which one has claimed, if one may."""
        looks = self.waits or (self.has_url and "no-look" not in self.on)
        then = ("take", s.token) if looks else ("finish", s.token, run, None, False)
        yield from self.write(s, ("outcome", Outcome(s.execution, "started", s.token, run)), then)
        if "unwritten" in self.on:
            # It cannot be recorded: a task that would wait closes the start.
            own = Known(self._own(s))
            is_own = ("finish", s.token, run, None, False)
            closes = s.now("revoke", own) if self.asks else s.now("look_once")
            yield closes if self.waits else s.now(*is_own)

    def _doubt(self, s: State) -> Iterator[State]:
        """
        Take the run if it has begun.

        Else leave the start to the next try, or close it where none would do so.
        """
        if self.is_unknown(s, self._own(s)):
            yield from self._gives_up(s)
            return
        if self.is_unread(s, self._own(s)):
            yield from self._copy(s, s.token)
            return
        if self.has_url and s.reports_of(s.token).has_begun:
            yield from self._returned(s, s.token)
            return
        if self.policy != "fail":
            yield from self.retried(s)
        yield s.now("revoke", Known(self._own(s))) if self.asks else s.now("ended")

    def _unidentified(self, s: State) -> Iterator[State]:
        """Record that the response does not say which run was started; it may have claimed."""
        is_settled = self.asks and "odd-open" not in self.on
        then: tuple[Any, ...] = ("look_once",) if self.has_mailbox else ("ended",)
        if is_settled:
            then = ("revoke", Known(self._own(s)))
        yield from self.write(s, ("outcome", Outcome(s.execution, "unidentified", s.token)), then)

    def _nothing(self, s: State) -> Iterator[State]:
        """Record that nothing was started."""
        yield from self.write(
            s, ("outcome", Outcome(s.execution, "not started", s.token)), ("look_once",)
        )

    def _look_once(self, s: State) -> Iterator[State]:
        """
        Take the run if it has begun anyway.

        Else leave the start to the next try, or close it where none would do so.
        """
        if self.is_unknown(s, self._own(s)):
            yield from self._gives_up(s)
        elif self.is_unread(s, self._own(s)):
            yield from self._copy(s, s.token)
        elif self.has_url and s.reports_of(s.token).has_begun:
            yield from self._returned(s, s.token)
        else:
            is_open = not self.asks or "nothing-open" in self.on
            yield s.now("ended") if is_open else s.now("revoke", Known(self._own(s)))
            yield from self.retried(s)

    # The run of the task, and its end -------------------------------------------------------------

    def _returned(self, s: State, token: int) -> Iterator[State]:
        """Return the run; a task that waits looks again before it suspends."""
        yield from [s.now("take", token)] if self.waits else self._take(s, token)

    def _take(self, s: State, token: int) -> Iterator[State]:
        """
        Read what the run has reported.

        Fail if a person entered it, and it was refused, or another one has the task.
        """
        if self.is_unread(s, s.last):
            yield from self._copy(s, token)
            return
        reports = s.reports_of(token) if self.has_url and token != NOBODY else numbered(0)
        end = reports.end and reports.end.status
        adopted = s.last.run if s.last else NOBODY
        if adopted != NOBODY:
            others = reports.run_ids - {run_id(adopted)} if "enter-ended" not in self.on else ()
            if others or (run_id(adopted) in reports.refused and "enter-refused" not in self.on):
                yield s.now("ended")
                return
        outcome = s.outcome(s.last) if s.last else None
        run = int(reports.run_id) if reports.run_id else outcome.run if outcome else adopted
        yield s.now("finish", token, run, end, reports.stopped is not None)

    def _finish(
        self, s: State, token: int, run: int, end: str | None, is_stopped: bool
    ) -> Iterator[State]:
        """Return the run, suspend until it ends, or fail."""
        if not self.is_free(s):
            return
        if s.task != "running":
            yield s.now("ended")
        elif is_stopped or (end == "failed" and self.waits):
            yield s._replace(step=("ended",), task="failed")
            if is_stopped or "again" in self.on:
                yield from self.retried(s)
        elif end or not self.waits:
            yield s._replace(step=("done", token, run), task="success")
        else:
            yield s._replace(step=("suspended", token), task="suspended")

    def _suspended(self, s: State, token: int) -> Iterator[State]:
        """Go on once the run has ended or was told to stop; time out."""
        if not self.is_free(s):
            return
        is_written = self.has_mailbox and self.mailbox(s, token) and s.mailboxes_are == "readable"
        if "trigger" in self.on:
            yield s._replace(step=("resume",), task="running")  # whatever it saw
        if (
            is_written
            or s.reports_of(token).end
            or s.reports_of(token).stopped
            or "unwritten" in self.on
        ):
            yield s._replace(step=("resume",), task="running")
        else:
            yield s._replace(step=("ended",), task="failed")

    def _ended(self, s: State) -> Iterator[State]:
        if s.task == "running" and self.is_free(s):
            yield s._replace(task="failed")

    def _restart(self, s: State) -> Iterator[State]:
        """Airflow has ended the process of a task that was cleared while it ran."""
        if self.is_free(s):
            yield s._replace(task="retry", step=("begin",))

    # What a person does with the task -------------------------------------------------------------

    def cleared(self, s: State) -> Iterator[State]:
        """Yield the states after a Clear: it begins again, and its runs are of before."""
        old = {"exists": "old exists", "works": "old works"}
        t = s._replace(
            task="retry",
            step=("begin",),
            execution=s.execution + 1,
            clears=s.clears + 1,
            runs=tuple(run._replace(does=old.get(run.does, run.does)) for run in s.runs),
        )
        yield t._replace(max_tries=s.max_tries + 1)
        if "same-gen" in self.on:
            yield t._replace(is_over="over" in self.on)

    def marked(self, s: State, task: str) -> State:
        """The state after a mark: a process that runs lives on for a while."""
        step = ("ended",) if s.step[0] in ("begin", "suspended") else s.step
        return s._replace(task=task, step=step)

    # What ends a process --------------------------------------------------------------------------

    def write(self, s: State, entry: Entry, then: tuple[Any, ...]) -> Iterator[State]:
        """
        Write once.

        Once and again later; or the process is killed, and the write is carried out later, or
        never.
        """
        if s.is_gone:
            yield s.now("ended")
        elif not self.waits_for_lock(s, entry):
            yield self.written(s, entry)._replace(step=then)
            if len(s.late) < self.size.repeats:
                again = s.late | {entry}
                yield self.written(s, entry)._replace(step=then, late=again)
                if s.kills < self.size.kills and self.is_free(s):
                    yield from self.killed(s._replace(late=again))

    def retried(self, s: State) -> Iterator[State]:
        """Yield the states in which the try has ended, and Airflow retries it, if it may."""
        if s.kills < self.size.kills and self.is_free(s):
            yield from self.killed(s)

    def killed(self, s: State) -> Iterator[State]:
        """
        Yield the states without the process.

        Airflow retries, or this was the last try; a person's mark stays.
        """
        if "orphan" in self.on and s.step[0] == "send":
            s = s._replace(orphans=s.orphans | {s.token})
        if s.task != "running":
            yield s.now("ended")
            return
        own_key = "collide" in self.on and s.execution not in {x.execution for x in s.starts}
        execution = s.execution if own_key else s.execution + 1
        yield s._replace(task="retry", step=("begin",), execution=execution, kills=s.kills + 1)
        yield s._replace(task="failed", step=("ended",), kills=s.kills + 1)


class Endpoint(Rules):
    """The endpoint: it decides under locks, and commits later."""

    def commit(self, s: State, decided: Decided) -> State:
        """The state with what was decided."""
        t = s._replace(locked=None, loose=None).with_said(decided.token, decided.reports)
        return t.with_run(decided.run, decided.then)

    def hear(
        self, s: State, run: int, status: Literal["started", "success", "failed"]
    ) -> Iterator[State]:
        """Yield what comes of a status of a run: *started*, or how it ended."""
        token, does, _ = s.runs[run]
        issuer, last = self.issuer(s, token), s.last
        stopped = does if does in ("success", "failed") else "stopped"
        if issuer is None or last is None:
            yield s.with_run(run, stopped)  # no start gave out this token
            return
        is_last = last.token == token
        is_current, adopted = s.counts(token), last.run if is_last else NOBODY
        seen = (s.reports[token], is_last, is_current, token in s.revoked, adopted, s.task)
        verdict, after = self.endpoint_decides(status, run, seen)
        if verdict is Verdict.WAIT:
            return
        has_ended = verdict is Verdict.END
        then = "works" if verdict is Verdict.GO_ON else status if has_ended else stopped
        if after == s.reports[token]:
            yield s.with_run(run, then)
            return
        is_loose = (
            "no-stop-lock" in self.on
            and status == "started"
            and numbered(after).stopped is not None
        )
        is_loose = is_loose or ("no-end-lock" in self.on and has_ended)
        pending = Decided(token, run, after, then, issuer)
        yield s._replace(loose=pending) if is_loose else s._replace(locked=pending)
