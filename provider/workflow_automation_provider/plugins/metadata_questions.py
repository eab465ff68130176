"""
The questions under **Required Actions** that parked tasks wait for.

A parked task is not resumed from here: until the scheduler has handled its executor's message that the task has
left the worker, Airflow takes a task that is queued again for one that was lost, and fails it. Its timeout is
lowered instead, and the scheduler, which looks for timeouts after it has read such messages, resumes it.
``airflow dags test`` has no scheduler, and resumes whatever is *scheduled*.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow.models.taskinstance import TaskInstance
from airflow.triggers.base import TriggerEvent
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select

from workflow_automation_provider.execution.callback import CALLBACK_USER, OPTIONS, Answer
from workflow_automation_provider.plugins.metadata_session import limit_waiting, transaction

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy.orm import Session

with contextlib.suppress(ImportError):  # before Airflow 3.3: nothing here is called then
    from airflow.models.hitl import HITLDetail
    from airflow.models.trigger import handle_event_submit

# The scheduler has handled the executor's message about the parked task by then.
_WAKE_AFTER = timedelta(seconds=5)


def wake(session: Session, ti: TaskInstance, answer: Answer | None, now: datetime) -> None:
    """
    Answer the question of a task, and wake the task if it is parked.

    :param answer: the flow's, None for a claim, which only answers whether a run was started
    """
    if ti.state != TaskInstanceState.AWAITING_INPUT:
        return
    detail = _lock_question(session, ti.id)
    if answer is None and (detail is None or {*detail.options} == {*OPTIONS.values()}):
        return
    if detail is not None and detail.responded_at is None:
        option = OPTIONS[answer.status] if answer else ""
        detail.responded_at = now
        detail.responded_by = {"id": CALLBACK_USER, "name": "The flow's callback"}
        detail.chosen_options = [option] if option in detail.options else []
        detail.params_input = {}
    if ti.queued_by_job_id is None:
        _resume(session, ti, detail)
    elif ti.trigger_timeout is None or ti.trigger_timeout > now + _WAKE_AFTER:
        ti.trigger_timeout = now + _WAKE_AFTER


def _lock_question(session: Session, ti_id: UUID) -> HITLDetail | None:
    detail: HITLDetail | None = session.scalar(
        select(HITLDetail).where(HITLDetail.ti_id == ti_id).with_for_update(of=HITLDetail)
    )
    return detail


def _resume(session: Session, ti: TaskInstance, detail: HITLDetail | None) -> None:
    """Resume a parked task that no scheduler knows of."""
    payload = {} if detail is None else detail.as_resume_event_payload()
    event = TriggerEvent(payload)  # type: ignore[no-untyped-call]
    handle_event_submit(event, task_instance=ti, session=session)


def _lock(session: Session, ti_id: UUID) -> TaskInstance | None:
    """Return the task instance, None if its next try has replaced it."""
    ti: TaskInstance | None = session.scalar(
        select(TaskInstance)
        .where(TaskInstance.id == ti_id)
        .with_for_update(of=TaskInstance)
        .execution_options(populate_existing=True)
    )
    return ti


# For tests, which have no scheduler and nobody to answer ------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """
    A question under **Required Actions** that a task waits for.

    :param ti_id: of the task instance that asks
    :param map_index: -1 if the task is not mapped
    :param is_answered: whether it was answered, but the task is still parked
    """

    ti_id: UUID
    task_id: str
    map_index: int
    subject: str
    body: str
    options: Sequence[str]
    is_answered: bool


def open_questions() -> list[OpenQuestion]:
    """
    Return the questions of the tasks that are parked, oldest first.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
    query = (
        select(HITLDetail, TaskInstance)
        .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .where(TaskInstance.state == TaskInstanceState.AWAITING_INPUT)
        .order_by(HITLDetail.created_at)
    )
    with transaction() as session:
        return [
            OpenQuestion(
                ti_id=ti.id,
                task_id=ti.task_id,
                map_index=ti.map_index,
                subject=detail.subject,
                body=detail.body or "",
                options=[*detail.options],
                is_answered=detail.responded_at is not None,
            )
            for detail, ti in session.execute(query)
        ]


def respond(ti_id: UUID, option: str, fields: dict[str, str], user: str) -> bool:
    """
    Answer a question as a person does, and resume the task if it is parked.

    :param fields: text fields that are filled in
    :param user: id of the person
    :return: whether the question was still open
    :raises UnavailableError: if the database is locked or cannot be reached
    """
    with transaction() as session:
        limit_waiting(session)
        ti, detail = _lock(session, ti_id), _lock_question(session, ti_id)
        if ti is None or detail is None or detail.responded_at is not None:
            return False
        detail.responded_at = datetime.now(UTC)
        detail.responded_by = {"id": user, "name": user}
        detail.chosen_options = [option]
        detail.params_input = fields
        if ti.state == "awaiting_input":
            _resume(session, ti, detail)
        return True


def resume(ti_id: UUID) -> None:
    """
    Resume a task whose question was answered, if it is parked.

    :raises UnavailableError: if the database is locked or cannot be reached
    """
    with transaction() as session:
        limit_waiting(session)
        ti, detail = _lock(session, ti_id), _lock_question(session, ti_id)
        if ti is not None and ti.state == "awaiting_input" and detail is not None and detail.responded_at:
            _resume(session, ti, detail)
