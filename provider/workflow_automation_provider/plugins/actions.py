"""What a person may do with a task: the actions of :mod:`~.advice`, and what each of them asks."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from workflow_automation_provider.execution.record.entries import adopted_key
from workflow_automation_provider.plugins.task_starts import (
    RunStatus,
    TaskNow,
    TaskStart,
    given_run,
    state_of,
)

A_CLEAR = "A Clear starts another run."

MAX_FIELDS = 200
"""How many names have a field at most."""

_MAX_RUN_ID = 1000
"""A run with a longer id is not filled in."""


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


def given_keys(starts: Iterable[TaskStart]) -> list[str]:
    """Return the keys of the entries by which a person has given the task its runs."""
    return [adopted_key(start.name) for start in starts if start.given is not None]


def actions_of(task: TaskNow, starts: Sequence[TaskStart]) -> list[Action]:
    """Return what a person may do with a task; of starts that no longer count, nothing."""
    current = [start for start in starts if start.counts(task)]
    if any(start.known is None for start in current):
        return []
    if task.is_suspended:
        is_open = any(start.waits and not start.end for start in current)
        if not is_open:
            return []
        return marks("The run", " The next tasks go on.", _unread(current), takes_result=True)
    if not task.has_ended:
        return []

    found = []
    if task.has_failed and current:
        found = _of_failed_task(task, current)
    given = [start for start in current if start.given is not None]
    if given:
        found.append(_take_back(given))

    return found


def marks(subject: str, if_success: str, lost: str, *, takes_result: bool = False) -> list[Action]:
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
    question = f"The task no longer has {what}. {A_CLEAR}"
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
