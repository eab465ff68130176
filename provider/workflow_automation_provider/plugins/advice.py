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
It waits                                    nothing to do          the run succeeded; the run failed
A run may have been started                 look for it
None of these                               nothing to do
==========================================  =====================  =================================

A task whose starts have names has one sentence for each, and the actions are for all of them. Only
a start that waits makes a task wait for its run: an operator may suspend its task for something
else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workflow_automation_provider.execution.errors import TICK
from workflow_automation_provider.plugins.actions import (
    A_CLEAR,
    Action,
    ActionKind,
    actions_of,
    marks,
)
from workflow_automation_provider.plugins.task_starts import (
    KnownBatch,
    RunStatus,
    TaskNow,
    TaskStart,
    given_run,
    state_of,
)

_LOOK = "look in the workflow's list of runs."
_SINCE = "This is from before the task was cleared or made again."


_NOTHING_TO_DO = "Nothing to do: the task goes on by itself."


class Advice(NamedTuple):
    """
    What is said of each start, and what a person may do with the task.

    :param sentences: by the name of the start, what is known, and what to look for; that of a batch
        by an empty name
    :param actions: the one that comes first in mind is the first
    """

    sentences: Mapping[str, str]
    actions: Sequence[Action]


def advise(task: TaskNow, starts: Sequence[TaskStart]) -> Advice:
    """
    Return what is said of a task and what can be done with it, by the table above.

    :param starts: the last start of each name
    """
    sentences = {start.name: _sentence(task, start) for start in starts}
    return Advice(sentences, actions_of(task, starts))


def advise_batch(task: TaskNow, batch: KnownBatch, state: RunStatus, is_current: bool) -> Advice:
    """Return what is said of a batch, and what a person may do: mark its task."""
    if not is_current:
        return Advice({"": f"{_SINCE} It starts all items again."}, ())
    if state is RunStatus.WAITING and task.is_suspended:
        awaited = "all runs have written their ends, or the time is up"
        lost = (
            " There is no output file, and what lies in "
            f"{batch.folder.partition('?')[0]} is read by nobody."
        )
        return Advice({"": _of_wait(awaited)}, marks("The runs", "", lost))
    if not task.has_ended:
        return Advice({"": _NOTHING_TO_DO}, ())

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
    return Advice({"": "\n".join(lines)}, actions)


def _sentence(task: TaskNow, start: TaskStart) -> str:
    state = state_of(task, start)
    if not start.counts(task):
        return f"{_SINCE} {_left_behind(state)}".strip()
    if start.given is not None:
        return _of_given(task, start)
    if start.known is None:
        return (
            "An entry of this start cannot be read here: the task's log and its tab Storage have "
            "more."
        )

    if task.has_failed:
        return _of_failed(start, state)
    if task.has_ended:
        how = {"success": "succeeded", "skipped": "was skipped"}.get(str(task.state), "has ended")
        # Such as by a dagrun_timeout, or a mark of the DAG run.
        doubt = f" {_left_behind(state)}" if state is RunStatus.DOUBT else ""
        return f"The task {how}.{doubt}\n{A_CLEAR}"
    if task.is_suspended and start.waits:
        return _of_run_wait(start)
    if state is RunStatus.DOUBT:
        return f"{_LOOK.capitalize()} The task's log says what its next try does."

    return _NOTHING_TO_DO


def _left_behind(state: RunStatus) -> str:
    """Return what there is to do about a run that the task no longer has, beside its state."""
    if state in (RunStatus.DOUBT, RunStatus.UNREADABLE):
        return f"A run may have been started: {_LOOK}"
    if state in (RunStatus.STARTED, RunStatus.CLAIMED):
        return "The run may still be at work. If it asks Airflow, it is told to stop."
    return ""


def _of_given(task: TaskNow, start: TaskStart) -> str:
    """Return what there is to say of a run that a person has given the task."""
    run_id, why = given_run(start)
    what = f"Run {run_id} is given to this task"
    if why:
        return f"{what}, but it cannot continue with that run: {why}." if run_id else why
    if not task.has_ended:
        return f"{what}: its next try continues with it."
    if task.drops_state:
        return f"{what}: a Clear continues with it. {TICK}"
    return f"{what}: a Clear continues with it."


def _of_failed(start: TaskStart, state: RunStatus) -> str:
    if start.end == "failed":
        return "The run failed. Fix the cause, then start another run."
    if state is RunStatus.STOPPED:
        return "The run is told to stop when it asks Airflow."
    if state is RunStatus.IDLE:
        return "No run was started."

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


def _of_run_wait(start: TaskStart) -> str:
    if start.end:
        return (
            f"Nothing to do: the run has ended ({start.end}). The task ends once the scheduler "
            "looks, but not while its DAG is paused."
        )

    if start.unread_mailbox:
        return _of_wait("the run has written its end")
    return _of_wait("the run calls Airflow")


def _of_wait(awaited: str) -> str:
    """
    Return what there is to say of a wait.

    :param awaited: what ends it, as a sentence
    """
    return f"Nothing to do: the task asks for nothing, and ends once {awaited}."
