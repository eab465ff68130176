"""
Wait without a worker, and ask a person: what Airflow offers for both, found by looking.

A parked task (Airflow 3.3+, ``awaiting_input``) uses no worker, no triggerer and no pool slot. It continues in
the operator's ``execute_complete`` when a person answers under **Required Actions**, or at its timeout.
Airflow 3.1 and 3.2 can ask a person as well, and defer the task to the triggerer meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.execution.callback import CALLBACK_USER

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_METHOD = "execute_complete"


class Question(NamedTuple):
    """
    What a person is asked under **Required Actions**.

    :param body: Markdown
    :param options: to choose one of
    :param fields: further text fields that may be left empty, and their descriptions
    """

    subject: str
    body: str
    options: Sequence[str]
    fields: Mapping[str, str]


class Reply(NamedTuple):
    """
    What ended a wait.

    :param option: the option that was chosen, empty at a timeout
    :param fields: the text fields that were filled in
    :param by: who chose it, as the log names them
    """

    option: str = ""
    fields: Mapping[str, str] = MappingProxyType({})
    by: str = ""

    @classmethod
    def of(cls, event: Mapping[str, Any] | None) -> Reply:
        """
        Read the event that Airflow continues a task with.

        :return: empty at a timeout; without an option where the endpoint answered
        """
        event = event or {}
        user = event.get("responded_by_user") or {}
        options = event.get("chosen_options") or []
        if not options or user.get("id") == CALLBACK_USER:
            return cls(by=CALLBACK_USER if options else "")
        fields = {
            name: str(value).strip()
            for name, value in (event.get("params_input") or {}).items()
            if value is not None and str(value).strip()
        }
        return cls(str(options[0]), fields, str(user.get("name") or user.get("id") or "somebody"))


def is_supervised() -> bool:
    """Return whether Airflow runs this task in a process of its own, rather than ``dag.test()`` or a test."""
    comms = _comms()
    return comms is not None and not type(comms).__name__.startswith("InProcess")


def can_park(context: Context) -> bool:
    """Return whether this Airflow can park a task, and remember what it waits for (3.3+)."""
    try:
        from airflow.sdk.exceptions import TaskAwaitingInput  # noqa: F401
    except ImportError:
        return False
    return "task_state_store" in context


def can_ask() -> bool:
    """Return whether this Airflow can ask a person (3.1+)."""
    try:
        from airflow.sdk.execution_time.hitl import upsert_hitl_detail  # noqa: F401
    except ImportError:
        return False
    return True


def has_supervisor() -> bool:
    """Return whether a supervisor of Airflow executes this task, rather than a test that calls ``execute``."""
    return _comms() is not None


def ask(context: Context, question: Question) -> None:
    """
    List a question under **Required Actions**, in place of an earlier one of this task instance.

    :raises Exception: if Airflow could not store it
    """
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail

    upsert_hitl_detail(
        ti_id=context["ti"].id,
        options=list(question.options),
        subject=question.subject,
        body=question.body,
        params=_params(question),
    )


def is_from_before_a_clear(context: Context, ti_id: str | None) -> bool:
    """
    Return whether what the task continues with is from before a Clear.

    A Clear of a task that is running, of one that continued included, gives it another id, but leaves what Airflow
    continues it with.

    :param ti_id: of the task instance that was parked, None if that is unknown
    """
    return ti_id not in (None, str(context["ti"].id))


def code(text: str) -> str:
    """Return a text as a code span of Markdown, whatever characters it has."""
    text = one_line(text)
    if "`" not in text:
        return f"`{text}`"
    fence = "`" * (1 + max(map(len, re.findall("`+", text))))
    return f"{fence} {text} {fence}"


def park(context: Context, question: Question, timeout: timedelta, then: dict[str, Any]) -> NoReturn:
    """
    Leave the worker until the question is answered, or for ``timeout``.

    :param then: further arguments for ``execute_complete``, as JSON values; ``ti_id`` is added
    :raises BaseException: always: Airflow's signal to park or defer the task
    """
    then = {**then, "ti_id": str(context["ti"].id)}
    try:
        from airflow.sdk.exceptions import TaskAwaitingInput
    except ImportError:
        from airflow.providers.common.compat.sdk import TaskDeferred
        from airflow.providers.standard.triggers.hitl import HITLTrigger

        trigger = HITLTrigger(
            ti_id=context["ti"].id,
            options=list(question.options),
            params=_params(question),
            timeout_datetime=datetime.now(UTC) + timeout,
        )
        raise TaskDeferred(trigger=trigger, method_name=_METHOD, kwargs=then) from None
    raise TaskAwaitingInput(method_name=_METHOD, kwargs=then, timeout=timeout)


def _params(question: Question) -> dict[str, dict[str, Any]]:
    from airflow.sdk import Param

    return {
        name: Param(None, type=["null", "string"], description=description).serialize()
        for name, description in question.fields.items()
    }


def _comms() -> object | None:
    try:
        from airflow.sdk.execution_time import task_runner
    except ImportError:  # Airflow 2
        return None
    return getattr(task_runner, "SUPERVISOR_COMMS", None)
