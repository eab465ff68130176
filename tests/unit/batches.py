"""What the tests of batches share: tries of a task, and a store that is watched."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import Any

from workflow_automation_provider.execution.batch.report import counts_text
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator


class Batches:
    """
    Execute batches, each as a try of a task does.

    ``task`` and ``context`` are those of the last one.
    """

    task: TriggerFlowBatchOperator
    context: Any

    def __init__(self, make_context):
        self._make_context = make_context

    def __call__(self, items, *, try_number=1, store=None, before=None, **arguments):
        options = {"send_retry_timeout": 0, "retries": 3, **arguments}
        self.task = TriggerFlowBatchOperator(task_id="batch", batch=items, **options)
        self.context = self._make_context(self.task, try_number=try_number)
        if store is not None:
            self.context["task_state_store"] = store(self.context["task_state_store"])
        if before:
            before(self.task)
        return self.task.execute(self.context)


def rows(number, **more):
    return [{"n": n, **more} for n in range(number)]


def times_started(service):
    return Counter(run.inputs["n"] for run in service.runs)


def statuses(items):
    return Counter(item["status"] for item in items)


def counts(total, **of):
    """Return what a log or an error says of a batch of which so many items ended so."""
    known: Any = {"total": total, "started": 0, "rejected": 0, "unknown": 0, **of}
    return counts_text(known | {"remaining": total - sum(of.values())})


def entries_of(store):
    """Return the entries of a batch, in order."""
    keys = (f"workflow_automation_batch_{number:06}" for number in itertools.count())
    return list(itertools.takewhile(bool, map(store.get, keys)))


class Watched:
    """
    A task state store that looks at the service before each write.

    :param inner: the store
    :param runs: returns how often each item was started
    :param fail_at: the number of the write that fails, from 1
    """

    def __init__(self, inner, runs, fail_at=0):
        self.inner, self.runs, self.fail_at = inner, runs, fail_at
        self.writes = 0
        self.opened: dict[str, set[int]] = {}
        self.breaches: list[str] = []
        self.most_unrecorded = 0
        self.recorded: set[int] = set()

    def get(self, key, default=None):
        return self.inner.get(key, default)

    def delete(self, key):
        self.inner.delete(key)

    def set(self, key, value, *, retention=None):
        if key.startswith("workflow_automation_probe"):
            self.inner.set(key, value, retention=retention)
            return
        self.writes += 1
        time.sleep(0.02)  # as long as a write takes in Airflow, in which the threads go on
        started = set(self.runs())
        self.most_unrecorded = max(self.most_unrecorded, len(started - self.recorded))
        if not started <= set().union(*self.opened.values()):
            self.breaches.append(f"{started} of {self.opened}")
        if self.fail_at and self.writes >= self.fail_at:
            raise RuntimeError("The store is gone")
        self.inner.set(key, value, retention=retention)
        self.opened[key] = {int(n) for n in value["opened"]}
        self.recorded |= {int(n) for n in value["results"]}


def failing(service, fail_at):
    """Return what makes a store fail from a write on."""
    return lambda inner: Watched(inner, lambda: times_started(service), fail_at)
