"""The events: what may happen to a task, to its requests, and to its runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from person import People
from rules import Endpoint
from state import NO_REPORT, NOBODY, NOW, Run, State, number_of, run_id
from workflow_automation_provider.execution.record.entries import End, RunReports


class World(People, Endpoint):
    """A task, the endpoint, and what may happen."""

    def steps(self, s: State) -> Iterator[tuple[State, bool]]:
        """
        Yield what may happen next, and whether it comes by itself.

        No kill, no repeat, no person, no timeout.
        """
        for t, is_by_itself in self._steps(s):
            yield (self.without_late(s, t) if self.most_people else t), is_by_itself

    def _steps(self, s: State) -> Iterator[tuple[State, bool]]:
        for t in self.steps_of_task(s):
            is_timeout = s.step[0] == "suspended" and t.task == "failed"
            yield (
                t,
                t.kills == s.kills
                and t.late <= s.late
                and t.orphans <= s.orphans
                and not is_timeout,
            )
        for t in self._runs_speak(s):
            yield t, True
        yield from self._mailboxes(s)
        for event in (self._process_dies, self._person, self.people, self._airflow, self._late):
            for t in event(s):
                yield t, event == self._process_dies and s.task != "running" and t == s.now("ended")

    # Requests -------------------------------------------------------------------------------------

    def _send(self, s: State) -> Iterator[State]:
        """The process sends the request: what comes of it."""
        yield s.now("doubt")  # the request is lost
        yield self._denied(s)  # it is rejected
        if self.has_url and len(s.runs) >= self.size.runs:
            return
        new = Run(s.token, "exists" if self.asks else "works")
        sent, number = s._replace(runs=(*s.runs, new)), len(s.runs)
        yield sent.now("run", number)
        yield sent.now("nothing" if "all-nothing" in self.on else "doubt")  # the response is lost
        if "odd" in self.on:
            yield sent.now("unidentified")
        if not self.asks:
            return
        if "honest" not in self.on:
            yield self._denied(sent)  # a gateway lies
        if "busy" in self.on:
            yield sent  # so it does, and the request is sent again
        if "proxy" in self.on and number + 1 < self.size.runs:
            yield sent._replace(runs=(*sent.runs, new), step=("run", number))

    def _denied(self, s: State) -> State:
        """The state in which a response says that nothing was started."""
        runs = tuple(
            run._replace(is_denied=run.is_denied or run.token == s.token) for run in s.runs
        )
        return s._replace(runs=runs, step=("nothing",))

    def _late(self, s: State) -> Iterator[State]:
        """Yield what comes late: a request of a killed process, a write."""
        for token in s.orphans:
            t = s._replace(orphans=s.orphans - {token})
            yield t
            if len(s.runs) < self.size.runs:
                yield t._replace(runs=(*s.runs, Run(token, "exists" if self.asks else "works")))
        for entry in s.late:
            if not self.waits_for_lock(s, entry):
                t = self.written(s._replace(late=s.late - {entry}), entry)
                yield t
                kind, what = entry
                if (
                    kind == "start"
                    and what.run == NOBODY
                    and "no-readback" in self.on
                    and not s.is_gone
                ):
                    yield t._replace(orphans=s.orphans | {what.token})

    # Runs -----------------------------------------------------------------------------------------

    def _runs_speak(self, s: State) -> Iterator[State]:
        """Commit what the endpoint has decided; else let a run say something."""
        if decided := s.locked or s.loose:
            yield self.commit(s, decided)
            return
        if self.has_mailbox:
            yield from self._runs_write(s)
            return
        for number, run in enumerate(s.runs):
            if not self.on & {"no-first", "no-url"}:
                asks_again = "again-words" in self.on and run.does in ("success", "failed")
                ignores = "failed-words" in self.on and run.does == "failed"
                if run.is_open or asks_again or ignores:
                    yield from self.hear(s, number, "started")
            if (
                "ends" in self.on
                and run.is_open
                and (run.does.endswith("works") or "no-first" in self.on)
            ):
                for status in ("success", "failed") if "fails" in self.on else ("success",):
                    yield from self.hear(s, number, status)

    def _runs_write(self, s: State) -> Iterator[State]:
        """Let a run end: it writes to its mailbox, if it is the first to do so."""
        for number, run in enumerate(s.runs):
            if "ends" not in self.on or not run.is_open:
                continue
            for status in ("success", "failed") if "fails" in self.on else ("success",):
                name = None if "no-id" in self.on else run_id(number)
                end = End(NOW, status, name)
                mailboxes, place = [*s.mailboxes], self.place(run.token)
                mailboxes[place] = mailboxes[place] or number_of(RunReports(end=end))
                yield s.with_run(number, status)._replace(mailboxes=tuple(mailboxes))
                if "expired" in self.on:
                    yield s.with_run(number, status)  # nothing is written
                if "no-report" in self.on and not s.mailboxes[place]:
                    mailboxes[place] = NO_REPORT
                    yield s.with_run(number, status)._replace(mailboxes=tuple(mailboxes))

    def _mailboxes(self, s: State) -> Iterator[tuple[State, bool]]:
        """Let the mailboxes become unreadable, for a while or for good; and readable again."""
        if s.mailboxes_are == "unread":
            yield s._replace(mailboxes_are="readable"), True
        if s.mailboxes_are == "readable" and "unread" in self.on:
            yield s._replace(mailboxes_are="unread"), False
        if s.mailboxes_are == "readable" and "no-read" in self.on:
            yield s._replace(mailboxes_are="denied"), False

    # Airflow --------------------------------------------------------------------------------------

    def _process_dies(self, s: State) -> Iterator[State]:
        """The process is killed; one whose task is no longer running is ended by Airflow."""
        if s.step[0] in ("done", "ended", "suspended", "begin", "restart"):
            return
        if s.task != "running":
            yield from self.killed(s)
        else:
            yield from self.retried(s)

    def _airflow(self, s: State) -> Iterator[State]:
        """The DAG run is deleted."""
        if "gone" in self.on and not s.is_gone and s.locked is None:
            is_sending = s.step[0] in ("send", "run", "unidentified", "nothing")
            t = s if is_sending else s.now("ended")
            t = self._forgotten(t)._replace(late=frozenset(), adopted=NOBODY, marks=1)
            yield t._replace(is_gone=True, task="failed", clears=self.size.clears)

    def _forgotten(self, s: State) -> State:
        """The state without entries."""
        nothing: frozenset[Any] = frozenset()
        return s._replace(
            starts=nothing, outcomes=nothing, revoked=nothing, reports=(0,) * len(s.reports)
        )

    # People ---------------------------------------------------------------------------------------

    def _person(self, s: State) -> Iterator[State]:
        """A person enters a run, marks the task, or clears it."""
        if "enter-now" in self.on and s.task == "retry" and s.adopted == NOBODY and not s.is_gone:
            for run in self._found(s):
                yield s._replace(adopted=run)
        if not self.is_free(s) or s.is_gone:
            return
        if "marks" in self.on and not s.marks and s.task in ("running", "suspended", "retry"):
            for task in ("success", "failed"):
                yield self.marked(s, task)._replace(marks=1, adopted=self.stays(s))
        if s.clears < self.size.clears:
            yield from self._clears(s)

    def _clears(self, s: State) -> Iterator[State]:
        """The task is cleared: its process is gone, and it begins again."""
        if "orphan" in self.on and s.step[0] == "send":
            s = s._replace(orphans=s.orphans | {s.token})
        if "deletes" in self.on:
            s = self._forgotten(s)
        adopted = NOBODY if "deletes" in self.on else self.stays(s)
        # The tab says that a Clear starts another run, but not where a run was given.
        accepts = bool(self.most_people) and (s.accepts_second or adopted == NOBODY)
        cleared = [t._replace(adopted=adopted, accepts_second=accepts) for t in self.cleared(s)]
        if "restarts" in self.on and s.task == "running":
            # Its process can neither read nor write any more.
            t = cleared[0]._replace(max_tries=s.max_tries)
            yield t._replace(task="restarting", step=("restart",))
            return
        yield from cleared
        if "enter" in self.on and s.task in ("failed", "success"):
            for run in self._found(s):
                yield from (t._replace(adopted=run) for t in cleared)

    def _found(self, s: State) -> list[int]:
        """The runs that a person may enter."""
        return [i for i, run in enumerate(s.runs) if "denied" in self.on or not run.is_denied]
