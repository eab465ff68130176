"""Operators whose tries a world executes, and what is done between the calls of a try."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from workflow_automation_provider.execution.ledger import START
from workflow_automation_provider.operators.flows import TriggerFlowOperator


def trigger(**options):
    """Make an operator that sends once; it looks for a claim for no time."""
    return TriggerFlowOperator(
        **{
            "task_id": "flow",
            "inputs": {"a": 1},
            "retries": 2,
            "send_retry_timeout": 0,
            "claim_timeout": timedelta(microseconds=1),
            **options,
        }
    )


def claims(**options):
    return trigger(**{"on_unknown_start": "claim", **options})


def waits(**options):
    return trigger(**{"wait_for_completion": True, **options})


def before(kind, name, what, *, nth=0):
    """Do something before the nth call of a kind whose name begins so."""
    seen = iter(range(99))

    def at(call):
        if call.kind == kind and call.name.startswith(name) and next(seen) == nth:
            what()

    return at


def after_sending(what):
    """Do something once the service has responded, before the task calls Airflow again."""
    sent: list[int] = []

    def at(call):
        if sent and sent.pop() == call.number - 1:
            what()
        if call.kind == "send":
            sent.append(call.number)

    return at


def requests(task):
    return task.requests.count("/api/trigger")


def entry(task, key):
    """Return the one entry whose key begins so."""
    (found,) = (json.loads(value) for name, value in task.rows.entries.items() if name.startswith(key))
    return found


def starts(task):
    """Return the entries of the starts, by where they are."""
    return {
        key.removeprefix(START): json.loads(value)
        for key, value in task.rows.entries.items()
        if key.startswith(START)
    }


def later(task, **passed):
    """Let time pass for a task that is parked."""
    then = dict(task.rows.ti.next_kwargs)
    for name in ("since", "until"):
        moved = datetime.fromisoformat(then["waiting"][name]) - timedelta(**passed)
        then["waiting"][name] = moved.isoformat()
    timeout = task.rows.ti.trigger_timeout - datetime.now(UTC)
    task.rows.park(task.rows.ti.next_method, then, timeout)
