"""
Wait without a worker: what Airflow offers for it, found by looking.

A parked task (Airflow 3.3+, ``awaiting_input``) uses no worker, no triggerer and no pool slot. The scheduler's sweep of
timeouts continues it in the operator's ``execute_complete``; the endpoint wakes it by lowering its timeout. Nothing is
asked under **Required Actions**.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import BaseOperator, Context

_METHOD = "execute_complete"


def is_supervised() -> bool:
    """Return whether Airflow runs this task in a process of its own, rather than ``dag.test()`` or a test."""
    from airflow.sdk.execution_time import task_runner

    comms = getattr(task_runner, "SUPERVISOR_COMMS", None)
    return comms is not None and not type(comms).__name__.startswith("InProcess")


def is_from_before_a_clear(context: Context, ti_id: str | None) -> bool:
    """
    Return whether what the task continues with is from before a Clear.

    A Clear of a task that is running, of one that continued included, gives it another id, but leaves what Airflow
    continues it with.

    :param ti_id: of the task instance that was parked, None if that is unknown
    """
    return ti_id not in (None, str(context["ti"].id))


def push_result(context: Context, result: Mapping[str, Any]) -> None:
    """
    Push a result as Airflow does once a task has succeeded.

    A task that a person then marks as success leaves it to the next one: a park and a mark keep the XComs.
    """
    ti, task = context["ti"], cast("BaseOperator", context["task"])
    if task.do_xcom_push:
        pushed = {**(result if task.multiple_outputs else {}), "return_value": {**result}}
        for key, value in pushed.items():
            ti.xcom_push(key=key, value=value)


def park(context: Context, timeout: timedelta, then: dict[str, Any]) -> NoReturn:
    """
    Leave the worker until the endpoint wakes the task, or for ``timeout``.

    :param then: further arguments for ``execute_complete``, as JSON values; ``ti_id`` is added
    :raises BaseException: always: Airflow's signal to park the task
    """
    from airflow.sdk.exceptions import TaskAwaitingInput

    then = {**then, "ti_id": str(context["ti"].id)}
    raise TaskAwaitingInput(method_name=_METHOD, kwargs=then, timeout=timeout)
