"""
What a person can do with a task now: :func:`advise`, a pure function of what is known.

An action is offered only where it is true. What it does, Airflow's own REST API does, with the
rights of the person: ``page.js`` sends the requests, and nothing of this package changes anything.

The first row that fits:

==========================================  =====================  =================================
The task and its last start                 What is said           Actions
==========================================  =====================  =================================
The task was cleared or made again, and     what is known of the
has not failed since                        run of before
An entry cannot be read                     that
*A person has given it a run*
The task will refuse it                     why                    those below, and take back
The task has not ended                      its next try takes it
The task has ended                          a Clear takes it       those below, and take back
*The task has failed*
The run failed                              that                   start
The run was told to stop                    that                   start; mark
Nothing was started                         that                   start
The run has succeeded                       that                   continue, or mark; start
Its id is known                             look at the run        continue, if it may; start; mark
A run was started, its id is unknown        look for it            continue, if it may; start; mark
A run may have been started                 look for it            continue, if it may; start; mark
*The task has not failed*
It has ended                                how; in doubt, that
It waits, and the run has ended             it ends by itself
It waits for a mailbox, without triggerer   that                   the run succeeded; the run failed
It waits                                    nothing to do          the run succeeded; the run failed
A run may have been started                 look for it
None of these                               nothing to do
==========================================  =====================  =================================

A task whose starts have names has one sentence for each, and the actions are for all of them. Only
a start that waits makes a task wait for its run: an operator may suspend its task for something
else.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from workflow_automation_provider.client.redaction import Redactor
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.errors import TICK, how_to_enter
from workflow_automation_provider.execution.record.entries import (
    RunResult,
    adopted_key,
    read_adopted,
)
from workflow_automation_provider.execution.record.start_decision import KnownStart, why_not

_FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
_SUSPENDED = frozenset({"awaiting_input", "deferred"})

_LOOK = "look in the workflow's list of runs."
_CLEAR = "A Clear starts another run."
_SINCE = "This is from before the task was cleared or made again."

MAX_FIELDS = 200
"""How many names have a field at most."""

_MAX_RUN_ID = 1000
"""A run with a longer id is not filled in."""

_ANY_ID = ""
"""Stands for a run that nothing is known of: no run has this id."""

_NO_SECRETS = Redactor(())


# What is known ------------------------------------------------------------------------------------


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
    :param has_triggerer: whether a triggerer lives
    """

    state: str | None
    try_number: int
    max_tries: int
    ended_at: datetime | None = None
    drops_state: bool = False
    has_triggerer: bool = True

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


# What is said -------------------------------------------------------------------------------------


class Sentence(NamedTuple):
    """
    What is said of a start.

    :param text: what is known, and what to look for
    :param by_hand: how to do by hand what the actions do; empty if there is nothing to do
    """

    text: str
    by_hand: str = ""


_NOTHING_TO_DO = Sentence("Nothing to do: the task goes on by itself.")


class ActionKind(enum.StrEnum):
    """What an action does, as the script has it."""

    CONTINUE = "continue"
    START = "start"
    SUCCEED = "succeed"
    FAIL = "fail"
    TAKE_BACK = "take-back"


class RunField(NamedTuple):
    """
    The run that a start is to continue with.

    :param key: key of the entry that names it
    :param name: name of the start within the task
    :param run_id: the id, if it is known
    :param run_link: its link, if it is known
    """

    key: str
    name: str
    run_id: str
    run_link: str


class Action(NamedTuple):
    """
    What a person may do. All of them first delete what was given, unless a field names another run.

    :param label: what its button says
    :param question: what will happen
    :param fields: the runs to continue with
    :param names: how many starts the task has
    :param takes_result: whether the flow's result can be given
    """

    kind: ActionKind
    label: str
    question: str
    fields: Sequence[RunField] = ()
    names: int = 1
    takes_result: bool = False


class Advice(NamedTuple):
    """
    What is said of each start, in their order, and what a person may do with the task.

    :param actions: the one that comes first in mind is the first
    """

    sentences: Sequence[Sentence]
    actions: Sequence[Action]


def advise(task: TaskNow, starts: Sequence[TaskStart]) -> Advice:
    """
    Return what is said of a task and what can be done with it, by the table above.

    :param starts: the last start of each name
    """
    return Advice([_sentence(task, start) for start in starts], _actions(task, starts))


def advise_batch(task: TaskNow, batch: KnownBatch, state: RunStatus, is_current: bool) -> Advice:
    """Return what is said of a batch, and what a person may do: mark its task."""
    if not is_current:
        return Advice([Sentence(f"{_SINCE} It starts all items again.")], ())
    if state is RunStatus.WAITING and task.is_suspended:
        awaited = "all runs have written their ends, or the time is up"
        lost = (
            " There is no output file, and what lies in "
            f"{batch.folder.partition('?')[0]} is read by nobody."
        )
        sentence = _of_wait(awaited, has_triggerer=task.has_triggerer)
        return Advice([sentence], _marks("The runs", "", lost))
    if not task.has_ended:
        return Advice([_NOTHING_TO_DO], ())

    lines = [
        "Correct those that were rejected. Start those that failed or have no run in a new batch.",
        "A Clear starts all items again.",
    ]
    if state is RunStatus.DOUBT:
        lines.insert(0, _LOOK.capitalize())

    actions = []
    if batch.has_ends and task.has_failed:
        label = "Go on with these ends: mark as success"
        question = "Marks the task as success. The next tasks get the output file."
        actions = [Action(ActionKind.SUCCEED, label, question)]
    return Advice([Sentence("\n".join(lines))], actions)


def _sentence(task: TaskNow, start: TaskStart) -> Sentence:
    state = state_of(task, start)
    if not start.counts(task):
        return Sentence(f"{_SINCE} {_left_behind(state)}".strip())
    if start.given is not None:
        return _of_given(task, start)
    if start.known is None:
        return Sentence(
            "An entry of this start cannot be read here: the task's log and its tab Storage have "
            "more."
        )

    if task.has_failed:
        return _of_failed(task, start, state)
    if task.has_ended:
        how = {"success": "succeeded", "skipped": "was skipped"}.get(str(task.state), "has ended")
        # Such as by a dagrun_timeout, or a mark of the DAG run.
        doubt = _left_behind(state) if state is RunStatus.DOUBT else ""
        return Sentence(f"The task {how}. {doubt}".strip(), _CLEAR)
    if task.is_suspended and start.waits:
        return _of_run_wait(task, start)
    if state is RunStatus.DOUBT:
        return Sentence(f"{_LOOK.capitalize()} The task's log says what its next try does.")

    return _NOTHING_TO_DO


def _left_behind(state: RunStatus) -> str:
    """Return what there is to do about a run that the task no longer has, beside its state."""
    if state in (RunStatus.DOUBT, RunStatus.UNREADABLE):
        return f"A run may have been started: {_LOOK}"
    if state in (RunStatus.STARTED, RunStatus.CLAIMED):
        return "The run may still be at work. If it asks Airflow, it is told to stop."
    return ""


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


def _of_given(task: TaskNow, start: TaskStart) -> Sentence:
    """Return what there is to say of a run that a person has given the task."""
    run_id, why = given_run(start)
    what = f"Run {run_id} is given to this task"
    if why:
        text = f"{what}, but it cannot continue with that run: {why}." if run_id else why
        key = adopted_key(start.name)
        return Sentence(text, f"Delete the entry {key} in the tab Storage.")
    if not task.has_ended:
        return Sentence(f"{what}: its next try continues with it.")
    if task.drops_state:
        return Sentence(f"{what}: a Clear continues with it. {TICK}")
    return Sentence(f"{what}: a Clear continues with it.")


def _of_failed(task: TaskNow, start: TaskStart, state: RunStatus) -> Sentence:
    if start.end == "failed":
        return Sentence("The run failed. Fix the cause, then start another run.", _CLEAR)
    if state is RunStatus.STOPPED:
        return Sentence("The run is told to stop when it asks Airflow.", _CLEAR)
    if state is RunStatus.IDLE:
        return Sentence("No run was started.", "Fix the cause, then clear the task.")

    what = _what_is_known(start)
    if not start.can_continue:
        return Sentence(
            what, "If it did the work, mark the task as success. If not, clear the task."
        )

    how = how_to_enter(start.run_id, start.name, drops_state=task.drops_state)
    if start.has_run:
        return Sentence(what, f"If the task is to continue with it, {how}")
    return Sentence(what, f"If one was started, {how}\nIf none was started, clear the task.")


def _what_is_known(start: TaskStart) -> str:
    """Return what is known of a run that may go on, or may have done the work."""
    run_id = start.run_id
    if start.end and run_id:
        return f"Run {run_id} has succeeded."
    if start.end:
        return f"The run has succeeded, and has not said its run_id: {_LOOK}"
    if run_id:
        return f"Look whether run {run_id} still works, or has succeeded."
    if start.has_run:
        return f"A run was started, and its run_id is unknown: {_LOOK}"

    return f"A run may have been started when the request was sent: {_LOOK}"


def _of_run_wait(task: TaskNow, start: TaskStart) -> Sentence:
    if start.end:
        return Sentence(
            f"Nothing to do: the run has ended ({start.end}). The task ends once the scheduler "
            "looks, but not while its DAG is paused."
        )

    if start.unread_mailbox:
        return _of_wait("the run has written its end", has_triggerer=task.has_triggerer)
    return _of_wait("the run calls Airflow")


def _of_wait(awaited: str, *, has_triggerer: bool = True) -> Sentence:
    """
    Return what there is to say of a wait.

    :param awaited: what ends it, as a sentence
    :param has_triggerer: whether a triggerer lives, if one has to look
    """
    text = f"Nothing to do: the task asks for nothing, and ends once {awaited}."
    if not has_triggerer:
        text = f"No triggerer is running: until one is, nothing looks whether {awaited}."
    return Sentence(text, "If that cannot happen, mark the task as success or failed.")


# What can be done ---------------------------------------------------------------------------------


def given_keys(starts: Iterable[TaskStart]) -> list[str]:
    """Return the keys of the entries by which a person has given the task its runs."""
    return [adopted_key(start.name) for start in starts if start.given is not None]


def _actions(task: TaskNow, starts: Sequence[TaskStart]) -> list[Action]:
    current = [start for start in starts if start.counts(task)]
    if any(start.known is None for start in current):
        return []
    if task.is_suspended:
        is_open = any(start.waits and not start.end for start in current)
        if not is_open:
            return []
        return _marks("The run", " The next tasks go on.", _unread(current), takes_result=True)
    if not task.has_ended:
        return []

    found = []
    if task.has_failed and current:
        found = _of_failed_task(task, current)
    given = [start for start in current if start.given is not None]
    if given:
        found.append(_take_back(given))

    return found


def _marks(subject: str, if_success: str, lost: str, *, takes_result: bool = False) -> list[Action]:
    """
    Return the actions of a task that waits.

    :param subject: what has succeeded or failed
    :param if_success: what a mark as success does
    :param lost: what each mark may lose
    """
    succeed = f"Marks the task as success.{if_success}{lost}"
    fail = f"Marks the task as failed, without a retry.{lost}"
    return [
        Action(ActionKind.SUCCEED, f"{subject} succeeded", succeed, takes_result=takes_result),
        Action(ActionKind.FAIL, f"{subject} failed", fail),
    ]


def _of_failed_task(task: TaskNow, current: Sequence[TaskStart]) -> list[Action]:
    states = [state_of(task, start) for start in current]
    # Those that may have a run that did the work.
    open_ones = [
        start
        for start in current
        if start.end != "failed" and state_of(task, start) is not RunStatus.IDLE
    ]
    to_continue = [start for start in open_ones if start.can_continue]

    found = []
    if to_continue:
        # A Clear starts the others again as well, so each start has a field.
        fields = [_field(start) for start in to_continue[:MAX_FIELDS]]
        label, question = "Continue with this run", "The task continues with {runs}."
        found.append(Action(ActionKind.CONTINUE, label, question, fields, len(current)))

    found.append(_start(current, states))
    # With the end that it has reported, the task ends by itself, and has the result.
    has_end = to_continue == open_ones and all(start.end for start in open_ones)
    if open_ones and not has_end:
        found.append(_mark_as_success(open_ones))

    return found


def _field(start: TaskStart) -> RunField:
    """Return the field of a start, with the run that the task can continue with."""
    key = adopted_key(start.name)
    given, why = given_run(start)
    if given and not why and len(given) <= _MAX_RUN_ID:
        return RunField(key, start.name, given, "")

    run_id = start.run_id
    if start.why_not(run_id) or len(run_id) > _MAX_RUN_ID:
        run_id = ""
    return RunField(key, start.name, run_id, start.run.get("run_link", ""))


def _start(current: Sequence[TaskStart], states: Sequence[RunStatus]) -> Action:
    label, question = "Start another run", "Starts a run."
    is_first = {*states} == {RunStatus.IDLE}
    if is_first:
        label = "Start a run"
    elif [*states] == [RunStatus.DOUBT] and not current[0].has_run:
        label = "No run was started: start one"

    if len(current) > 1:
        question = f"Starts the runs of all {len(current)} names again."
        if not is_first:
            question = f"{question} That is a second run of each that has one."
    elif not is_first:
        question = _question_of_another(current[0], states[0])

    return Action(ActionKind.START, label, f"{question}{_unread(current)}")


def _question_of_another(start: TaskStart, state: RunStatus) -> str:
    """Return what it means to start a run where there may be one."""
    if start.end == "failed" or state is RunStatus.STOPPED:
        return "Starts another run."
    if not start.has_run:
        return "Starts a run. That is a second run if there is one already."
    if start.end:
        return "Starts a second run: one was started before, and has succeeded."
    return "Starts a second run: one was started before, and may still be at work."


def _mark_as_success(open_ones: Sequence[TaskStart]) -> Action:
    question = "Marks the task as success."
    if not all(start.run_id for start in open_ones):
        question = f"{question} The next tasks get no run_id."
    if any(start.end for start in open_ones):
        question = f"{question} They do not get the result that the run has reported."

    label = "The run did the work: mark as success"
    return Action(ActionKind.SUCCEED, label, f"{question}{_unread(open_ones)}")


def _take_back(given: Sequence[TaskStart]) -> Action:
    run_id, _ = given_run(given[0])
    what = f"run {run_id}" if run_id and len(given) == 1 else "what was given"
    question = f"The task no longer has {what}. {_CLEAR}"
    return Action(ActionKind.TAKE_BACK, f"Take back {what}", question)


def _unread(starts: Iterable[TaskStart]) -> str:
    """Return what an action may lose that this page cannot read."""
    mailboxes = [start.unread_mailbox for start in starts if start.unread_mailbox]
    if not mailboxes:
        return ""
    return (
        f" An end may already lie in {mailboxes[0]}, which cannot be read here: the task does not "
        "get it."
    )
