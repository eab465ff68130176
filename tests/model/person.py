"""
A person who follows the tab *Flow run*, and what is promised to them.

What is offered, ``advise`` of ``plugins/advice.py`` says, here as on the page. The model has what
``page.js`` does then: it looks whether the page is still the same, and sends the requests in their
order, each of which may be the last one that is sent.

The page compares all that it knows when a person confirms, so a question that is confirmed is one
that could be shown at that moment. Requests end before the scheduler begins the next try. Who takes back a run
accepts that a Clear of the same moment, with which another person continues, starts one: Airflow has
no request that does both.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace as replace_entry

from rules import Task
from state import NOBODY, NOW, Known, Press, Start, State, run_id
from workflow_automation_provider.plugins.actions import Action, ActionKind
from workflow_automation_provider.plugins.advice import Advice, advise
from workflow_automation_provider.plugins.task_starts import TaskNow, TaskStart

if TYPE_CHECKING:
    from words import Size
    from workflow_automation_provider.execution.record.start_decision import KnownStart

_STATES = {"suspended": "awaiting_input", "retry": "up_for_retry"}
_CLEARS = {ActionKind.CONTINUE, ActionKind.START}
_MARKS = {ActionKind.SUCCEED: "success", ActionKind.FAIL: "failed"}


class Tab(NamedTuple):
    """What the tab shows of the last start, and by what."""

    start: TaskStart
    advice: Advice

    @property
    def text(self) -> str:
        return self.advice.sentences[self.start.name]

    @property
    def kinds(self) -> set[ActionKind]:
        return {action.kind for action in self.advice.actions}

    @property
    def denies_run(self) -> bool:
        """Whether it says that there may be no run."""
        words = [self.text, *(action.label for action in self.advice.actions)]
        return "No run was started" in " ".join(words)


class People(Task):
    """What people see and press, and what that does."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.advised = cache(self._advised)
        self.most_people = 2 if "two" in self.on else 1 if "person" in self.on else 0

    def people(self, s: State) -> Iterator[State]:
        """Let somebody press a button, or a page send its next request; or a try fail early."""
        if not self.most_people or s.is_gone:
            return
        if s.step == ("begin",) and s.task == "retry":
            # Such as in a template: nothing of the operator is executed.
            yield from self.retried(s._replace(task="running"))
        if len(s.people) < self.most_people:
            for press in self.presses(s):
                yield self._with(s, *s.people, press)
        for number, press in enumerate(s.people):
            others = s.people[:number] + s.people[number + 1 :]
            yield s._replace(people=others)  # the rest is never sent
            for t in self._requested(s, press):
                yield self._with(t, *others, press._replace(todo=press.todo[1:]))

    def _with(self, s: State, *people: Press) -> State:
        """The state with these presses, but for those that are done."""
        return s._replace(people=tuple(sorted(press for press in people if press.todo)))

    def without_late(self, s: State, t: State) -> State:
        """The state after a step: a press that a try has outlasted is over, and what it allowed."""
        if t.step[0] == "send" and s.step[0] != "send":
            t = t._replace(accepts_second=False)
        has_begun = s.step == ("begin",) and (t.step, t.kills) != (s.step, s.kills)
        if not t.people or not has_begun:
            return t
        return t._replace(people=tuple(x for x in t.people if x.execution == t.execution))

    # A press --------------------------------------------------------------------------------------

    def presses(self, s: State) -> Iterator[Press]:
        """Yield what can be pressed and confirmed now."""
        for tab in self.tabs(s):
            for action in tab.advice.actions:
                for run in self._entered(s, tab) if action.fields else [NOBODY]:
                    yield self._press(s, tab, action, run)

    def _entered(self, s: State, tab: Tab) -> list[int]:
        """The runs that a person may find and enter, and that the page takes."""
        found = [number for number, run in enumerate(s.runs) if not run.is_denied]
        return [number for number in found if tab.start.why_not(run_id(number)) is None]

    def _press(self, s: State, tab: Tab, action: Action, run: int) -> Press:
        todo = []
        is_taken_back = action.kind is ActionKind.TAKE_BACK or "given-stays" not in self.on
        if run != NOBODY:
            todo.append("give")
        elif tab.start.given is not None and is_taken_back:
            todo.append("forget")

        if action.kind in _CLEARS:
            todo.append("clear")
        if action.kind in _MARKS:
            todo.append(_MARKS[action.kind])

        if "clear-first" in self.on:
            todo.reverse()
        if "no-same" in self.on:
            todo.insert(0, "confirm")
        question = action.question
        return Press(
            kind=action.kind.value,
            run=run,
            todo=tuple(todo),
            execution=s.execution,
            says_second="second run" in question,
            says_end="has succeeded" in question or "has reported" in question,
            says_mailbox="lie in mailbox" in question,
        )

    def _requested(self, s: State, press: Press) -> Iterator[State]:
        """Yield what the next request does."""
        name = press.todo[0]
        if name == "confirm":
            yield s
        elif name == "forget":
            yield s._replace(adopted=NOBODY, accepts_second=True)
        elif name == "give":
            yield s._replace(adopted=press.run)
        elif name == "clear":
            if s.task == "failed" and s.clears < self.size.clears and self.is_free(s):
                accepts = press.says_second or (s.accepts_second and self.most_people > 1)
                yield from (t._replace(accepts_second=accepts) for t in self.cleared(s))
        elif self.is_free(s):
            yield self.marked(s, name)

    # What the tab shows ---------------------------------------------------------------------------

    def tabs(self, s: State) -> list[Tab]:
        """What the tab may show: nobody knows whether an end came before or after that of the task."""
        last = s.last
        if last is None or ("since-clear" in self.on and last.max_tries != s.max_tries):
            return []
        reads = tuple(self.read(s, start) for start in sorted(s.starts))
        adopted = NOBODY if "no-given" in self.on else s.adopted
        return self.advised(reads, adopted, s.task, s.execution, s.max_tries)

    def _advised(
        self, reads: tuple[Known, ...], adopted: int, task: str, execution: int, max_tries: int
    ) -> list[Tab]:
        *others, known = [self._seen(known) for read in reads if (known := read.known_start())]

        def task_now(ended_at: datetime) -> TaskNow:
            return TaskNow(
                state=_STATES.get(task, task),
                try_number=execution,
                max_tries=max_tries,
                ended_at=ended_at,
                drops_state="deletes" in self.on and "no-version" not in self.on,
            )

        start = TaskStart(
            try_number=known.start.try_number,
            known=known,
            others=() if "no-others" in self.on else others,
            given=None if adopted == NOBODY else run_id(adopted),
        )
        ended = [NOW, NOW - timedelta(seconds=1)] if known.reports.end else [NOW]
        return [Tab(start, advise(now, [start])) for now in map(task_now, ended)]

    def _seen(self, known: KnownStart) -> KnownStart:
        """What the page knows of a start."""
        start, reports = known.start, known.reports
        if self.waits:
            start = replace_entry(start, completion_timeout=60.0)
        if "no-unread" in self.on:
            start = replace_entry(start, mailbox="")
        if "no-end" in self.on:
            reports = replace_entry(reports, end=None)
        outcome = None if "no-outcome" in self.on else known.outcome
        return known._replace(start=start, outcome=outcome, reports=reports)

    # What is promised -----------------------------------------------------------------------------

    def is_misled(self, s: State) -> str:
        """Return what is untrue of what the tab shows and offers in a state, empty if nothing is."""
        if not self.most_people or s.is_gone:
            return ""
        for press in self.presses(s):
            if breach := self.is_deceived(s, press):
                return breach

        tabs = self.tabs(s)
        kinds = set.intersection(*(tab.kinds for tab in tabs)) if tabs else set()
        is_given = s.last is not None and s.adopted != NOBODY
        if is_given and s.task in ("failed", "success") and ActionKind.TAKE_BACK not in kinds:
            return "what was given can no longer be taken back"
        if self._lacks_action(s, kinds):
            return "a doubt has no action that settles it"
        if self._is_recorded(s) and any(tab.denies_run for tab in tabs):
            return "the tab asks whether a run was started, though an entry says so"
        return ""

    def is_deceived(self, s: State, press: Press) -> str:
        """Return what a press breaks that is confirmed in a state, empty if nothing."""
        last = s.last
        if last is None or press.kind not in ("start", "succeed", "fail"):
            return self._is_other(s, press)
        if press.kind == "start" and not press.says_second and self._beside(s, s.starts):
            return "a second run, without a question that says so"
        if last.token == NOBODY:
            return ""
        end = s.reports_of(last.token).end
        if end and end.status == "success" and not press.says_end:
            return "an end that was recorded is lost"
        if self.has_mailbox and self.mailbox(s, last.token) and not end and not press.says_mailbox:
            return "an end that lies in a mailbox is lost, and the question does not name it"
        return ""

    def _is_other(self, s: State, press: Press) -> str:
        """Return what is wrong with the run that a person enters."""
        if press.run == NOBODY:
            return ""
        last, *others = [self.read(s, start) for start in sorted(s.starts, reverse=True)]
        if self.why_not(press.run, last, tuple(others)):
            return "the tab takes a run that the task refuses"
        return ""

    def is_betrayed(self, s: State, t: State) -> str:
        """Return what of a question does not hold at a step, empty if nothing is broken."""
        if not self.most_people:
            return ""
        is_sent = t.step[0] == "send" and s.step[0] in ("start", "check")
        before = frozenset(start for start in s.starts if start.execution != s.execution)
        was_cleared = before and max(before).max_tries != s.max_tries
        if is_sent and was_cleared and not s.accepts_second:
            beside = self._beside(s, before)
            # An end that came after the question stays shown.
            if any(not s.runs[number].is_denied for number in beside):
                return "a second run is sent, without a question that warned of it"

        is_given, was_given = t.adopted != NOBODY, s.adopted != NOBODY
        is_by_hand = t.clears > s.clears and t.people == s.people
        if is_by_hand and was_given and not is_given and self._says_it_continues(s):
            return "a Clear drops the run that was given, though the tab says that it continues"

        for press in s.people:
            if t.people or self.most_people > 1:
                break
            if press.todo[0] in _MARKS.values() and t.task == press.todo[0] and is_given:
                return "what was given is neither used nor taken back"
        for press in s.people:
            is_confirmed = any(press.todo[1:] == x.todo for x in t.people)
            if press.todo[0] == "confirm" and is_confirmed:
                return self.is_deceived(s, press)
        return ""

    def _says_it_continues(self, s: State) -> bool:
        return any(tab.text.endswith(": a Clear continues with it.") for tab in self.tabs(s))

    def _is_recorded(self, s: State) -> bool:
        """Whether an entry says for certain that the last start has a run."""
        if not (last := s.last):
            return False
        outcome = s.outcome(last)
        has_begun = last.token != NOBODY and s.reports_of(last.token).has_begun
        return has_begun or (outcome is not None and outcome.status != "not started")

    def _beside(self, s: State, starts: frozenset[Start]) -> list[int]:
        """The runs that may work, or have worked, of the last of these starts that count."""
        if not starts:
            return []
        max_tries = max(starts).max_tries
        counting = {start.token for start in starts if start.max_tries == max_tries}
        return [n for n, run in enumerate(s.runs) if run.token in counting and self._works(s, n)]

    def _works(self, s: State, number: int) -> bool:
        """Whether a run may work, or has worked, as far as people can know."""
        run = s.runs[number]
        reports = s.reports_of(run.token)
        if run.does in ("failed", "stopped") or reports.stopped:
            return False
        if run.does.endswith("exists") and run.token in s.revoked and "no-first" not in self.on:
            return False  # it asks, and is told to stop
        return not run.is_denied or reports.has_begun

    def _lacks_action(self, s: State, kinds: set[ActionKind]) -> bool:
        """Whether nothing settles what became of the run of the last start."""
        last = s.last
        if last is None or s.task not in ("failed", "suspended"):
            return False
        runs = [n for n, run in enumerate(s.runs) if n == last.run or run.token == last.token]
        end = s.reports_of(last.token).end if last.token != NOBODY else None
        if s.task == "suspended":
            return end is None and not kinds >= _MARKS.keys()
        if not any(self._works(s, number) for number in runs):
            return False
        has_failed = end is not None and end.status == "failed"
        return ActionKind.START not in kinds or not (
            has_failed or kinds & {ActionKind.CONTINUE, ActionKind.SUCCEED}
        )
