"""
What a person can do with a task now: in words, and by the forms of the tab **Flow run**.

A form is offered only where it is true. What it does, Airflow's own REST API does, with the rights
of the person: ``page.js`` sends the requests, and nothing of this package changes anything.

============================================  ====================================================
The task                                      Forms
============================================  ====================================================
waits for the end of its run                  the run succeeded; the run failed
failed, and a run of it may go on             continue with this run; start another one; mark the
or have done the work                         task as success
failed otherwise                              start another run
is a batch, or goes on by itself              none
============================================  ====================================================
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow.utils.state import TaskInstanceState

from workflow_automation_provider.execution.errors import how_to_enter
from workflow_automation_provider.execution.starts.entries import adopted_key
from workflow_automation_provider.plugins.conversation import (
    Adoptable,
    Conversation,
    State,
    is_suspended,
)

_LOOK_FOR = "look in the workflow's list of runs."
_LOOK = "Look in the workflow's list of runs."
_CLEAR = "A Clear starts another run."

_MAX_RUN_ID = 1000
"""A run with a longer id is nothing for a form."""


@dataclass(frozen=True, slots=True)
class Advice:
    """
    What a person can do now.

    :param text: what is known, and what to look for
    :param by_hand: how to do by hand what the forms do; empty if there is nothing to do
    """

    text: str
    by_hand: str = ""


class Kind(enum.StrEnum):
    """What a form does."""

    CONTINUE = "continue"
    START = "start"
    SUCCEED = "succeed"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunField:
    """
    The run that a start is to continue with.

    :param key: key of the entry that names it
    :param name: name of the start within the task
    :param run_id: the id, if it is known
    :param run_link: its link, if it is known
    :param adoptable: the runs that the task can continue with
    """

    key: str
    name: str
    run_id: str
    run_link: Any
    adoptable: Adoptable


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """
    A form of the tab.

    :param label: what its button says
    :param question: what will happen
    :param done: what has happened, once it has
    :param fields: the runs to continue with
    :param takes_result: whether the flow's result can be given
    :param forgotten: keys of entries that are deleted first, unless a field names another run
    """

    kind: Kind
    label: str
    question: str
    done: str
    fields: Sequence[RunField] = ()
    takes_result: bool = False
    forgotten: Sequence[str] = ()


# In words -----------------------------------------------------------------------------------------


def advice(run: Conversation) -> Advice:
    """Return what a person can do with the task, as far as one of its starts is concerned."""
    if not run.is_current:
        return Advice(_left_behind(run))
    if run.is_batch:
        return _of_batch(run)
    if run.given:
        return _of_given(run, run.given)

    if run.state is State.UNKNOWN:
        return Advice(
            "An entry of this start cannot be read here: the task's log and its tab Storage have "
            "more."
        )

    if run.row.state == TaskInstanceState.FAILED:
        return _of_failed(run)
    if run.has_ended:
        return Advice("The task has ended.", _CLEAR)
    if run.state is State.DOUBT:
        return Advice(f"{_LOOK} The task's log says what its next try does.")

    if run.state is State.WAITING:
        if run.mailbox:
            return Advice(
                "Nothing to do: the task asks for nothing, and ends once the run has written its "
                "end.",
                "If the run cannot write it, mark the task as success or failed.",
            )

        return Advice(
            "Nothing to do: the task asks for nothing, and ends once the run calls Airflow.",
            "If the run cannot call, mark the task as success or failed.",
        )

    return Advice("Nothing to do: the task goes on by itself.")


def _of_batch(run: Conversation) -> Advice:
    if not run.has_ended:
        return Advice("Nothing to do: the task goes on by itself.")
    again = (
        "A Clear starts all items again. "
        "Correct any rejected ones, and start those without a run in a new batch."
    )
    if run.state is State.DOUBT:
        return Advice(f"{_LOOK} {again}")
    return Advice(again)


def _of_given(run: Conversation, given: str) -> Advice:
    """Return what there is to say of a run that a person has given the task."""
    if not run.has_ended:
        return Advice(f"Run {given} is given to this task: its next try continues with it.")
    if run.adoptable.takes(given):
        return Advice(f"Run {given} is given to this task: a Clear continues with it.")
    return Advice(
        f"Run {given} is given to this task, but it cannot continue with that run.",
        f"Delete the entry {adopted_key(run.name)} in the tab Storage before you clear the task.",
    )


def _of_failed(run: Conversation) -> Advice:
    if run.end == "failed":
        return Advice("The run failed. Fix the cause, then start another run.", _CLEAR)
    if run.state is State.STOPPED:
        return Advice("The run is told to stop when it asks Airflow.", _CLEAR)
    if run.state is State.IDLE:
        return Advice("No run was started.", "Fix the cause, then clear the task.")

    run_id = str(run.run_id or "")
    if run_id and run.adoptable.takes(run_id):
        what = f"Look whether run {run_id} still works, or has succeeded."
        if run.end:
            what = f"Run {run_id} has succeeded."

        how = how_to_enter(run_id, run.name)
        return Advice(what, f"If the task is to continue with it, {how}")

    what = f"A run may have been started when the request was sent: {_LOOK_FOR}"
    if run.is_unidentified:
        what = (
            f"A run was started when the request was sent, and it is not known which: {_LOOK_FOR}"
        )

    if not run.adoptable.is_possible:
        return Advice(what, "If it did the work, mark the task as success. If not, clear the task.")

    how = how_to_enter(name=run.name)
    return Advice(what, f"If one was started, {how}\nIf none was started, clear the task.")


def _left_behind(run: Conversation) -> str:
    """Return what is known of a run that the task no longer has."""
    since = "This is from before the task was cleared or made again."
    if run.given and not run.has_ended:
        return f"{since} Run {run.given} is given to this task: its next try continues with it."
    if run.is_batch:
        return f"{since} It starts all items again."
    if run.state is State.IDLE:
        return f"{since} No run was started."
    if run.state is State.ENDED:
        return f"{since} The run has ended."
    if run.state is State.STOPPED:
        return f"{since} The run was told to stop."
    if run.state in (State.STARTED, State.CLAIMED) and run.asks:
        return f"{since} If the run asks Airflow, it is told to stop."
    if run.state in (State.STARTED, State.CLAIMED):
        return f"{since} The run may still be at work."

    return f"{since} A run may have been started: look in the workflow's list of runs."


# By forms -----------------------------------------------------------------------------------------


def forms(row: Any, runs: Sequence[Conversation]) -> list[Form]:
    """
    Return the forms of a task, none if nothing can be done here.

    :param row: columns of the task instance
    :param runs: its starts and its batch
    """
    current = [run for run in runs if run.is_current]
    is_readable = all(run.state is not State.UNKNOWN and not run.is_batch for run in current)
    if not current or not is_readable:
        return []
    if is_suspended(row):
        return [_succeeded(), _failed()]
    if row.state != TaskInstanceState.FAILED:
        return []

    found = []
    if any(_may_continue(run) for run in current):
        found.append(_continue(current))

    found.append(_start(current))
    if any(_may_have_worked(run) for run in current):
        found.append(_mark_as_success(current))

    return found


def _may_continue(run: Conversation) -> bool:
    """Return whether the task may continue with a run of a start."""
    is_over = run.end == "failed" or run.state in (State.IDLE, State.STOPPED)
    ids = run.adoptable.only | run.adoptable.never
    is_short = all(len(run_id) <= _MAX_RUN_ID for run_id in ids)
    return run.adoptable.is_possible and is_short and not is_over


def _may_have_worked(run: Conversation) -> bool:
    """Return whether a start may have a run that did the work."""
    return run.end != "failed" and run.state is not State.IDLE


def _continue(runs: Sequence[Conversation]) -> Form:
    # A Clear starts the others again as well, so each start has a field.
    fields = [
        RunField(
            key=adopted_key(run.name),
            name=run.name,
            run_id=_known_id(run),
            run_link="" if run.given else run.run_link,
            adoptable=run.adoptable,
        )
        for run in runs
        if _may_continue(run)
    ]
    return Form(
        kind=Kind.CONTINUE,
        label="Continue with this run",
        question="The task continues with {runs}.",
        done="The task was given {runs}.",
        fields=fields,
        forgotten=_given_keys(runs),
    )


def _known_id(run: Conversation) -> str:
    """Return the id of the run that a start is to continue with, empty if it is not known."""
    for run_id in (run.given, run.run_id):
        if run_id and run.adoptable.takes(str(run_id)):
            return str(run_id)
    return ""


def _given_keys(runs: Sequence[Conversation]) -> list[str]:
    """Return the keys of the runs that a person has given the task before."""
    return [adopted_key(run.name) for run in runs if run.has_given_entry]


def _start(runs: Sequence[Conversation]) -> Form:
    states = {run.state for run in runs}
    is_first = states == {State.IDLE}
    doubts = [run for run in runs if run.state is State.DOUBT]
    is_doubt = bool(doubts)
    # A response, or a late end, has told that there is a run.
    is_second = any(run.is_unidentified or run.end for run in doubts)
    at_work = [run for run in runs if run.state in (State.STARTED, State.CLAIMED)]

    label = "Start another run"
    question = "Starts another run."
    if len(runs) > 1:
        question = f"Starts the runs of all {len(runs)} names again."
    elif is_first:
        label = "Start a run"
        question = "Starts a run."
    elif is_doubt and not is_second:
        label = "No run was started: start one"
        question = "Starts a run."

    if is_second:
        question = f"{question} That is a second run: one was started before."
    elif is_doubt:
        question = f"{question} That is a second run if there is one already."
    elif at_work and all(run.asks for run in at_work):
        question = f"{question} The one before is told to stop when it asks Airflow."
    elif at_work:
        question = f"{question} The one before may still be at work: it cannot be told to stop."

    return Form(
        kind=Kind.START,
        label=label,
        question=question,
        done="The task starts its run." if is_first else "The task starts another run.",
        forgotten=_given_keys(runs),
    )


def _mark_as_success(runs: Sequence[Conversation]) -> Form:
    question = "Marks the task as success, starts no run, and clears failed tasks downstream."
    if any(run.state is State.DOUBT for run in runs):
        question = f"{question} The next tasks get no run_id."
    return Form(
        kind=Kind.SUCCEED,
        label="The run did the work: mark as success",
        question=question,
        done="The task was marked as success.",
    )


def _succeeded() -> Form:
    return Form(
        kind=Kind.SUCCEED,
        label="The run succeeded",
        question="Marks the task as success{result}. The next tasks go on.",
        done="The task was marked as success{result}.",
        takes_result=True,
    )


def _failed() -> Form:
    return Form(
        kind=Kind.FAIL,
        label="The run failed",
        question="Marks the task as failed, without a retry.",
        done="The task was marked as failed.",
    )
