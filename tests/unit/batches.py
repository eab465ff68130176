"""What the tests of batches share: tries of a task, and what is done before its writes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import Any

from batch_counts import batch_counts
from entry_keys import PROBE, batch_key
from state_store import StateStore
from workflow_automation_provider.execution.batch.summary import counts_text
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator


class Batches:
    """
    Execute batches, each as a try of a task does.

    ``task``, ``context`` and ``store`` are those of the last one.
    """

    task: TriggerFlowBatchOperator
    context: Any

    def __init__(self, make_context):
        self._make_context = make_context
        self.store = StateStore()

    def __call__(
        self, items, *, try_number=1, before=None, before_get=None, before_set=None, **arguments
    ):
        options = {"send_retry_timeout": 0, "retries": 3, **arguments}
        self.task = TriggerFlowBatchOperator(task_id="batch", batch=items, **options)
        self.context = self._make_context(self.task, try_number=try_number)
        if try_number == 1:
            self.store = StateStore()
        self.store.before_get = before_get or (lambda *_: None)
        self.store.before_set = before_set or (lambda *_: None)
        if "task_state_store" in self.context:
            self.context["task_state_store"] = self.store
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
    known: Any = batch_counts(total, **of)
    return counts_text(known)


def entries_of(store):
    """Return the entries of a batch, in order."""
    keys = map(batch_key, itertools.count())
    return list(itertools.takewhile(bool, map(store.get, keys)))


class OpenWindows:
    """
    What a batch records, compared with what was started, before each of its writes.

    :param service: whose runs are compared
    """

    def __init__(self, service):
        self._service = service
        self._recorded: set[int] = set()
        self.opened: dict[str, set[int]] = {}
        self.breaches: list[str] = []
        self.most_unrecorded = 0

    def __call__(self, key, value):
        if key == PROBE:
            return
        time.sleep(0.02)  # as long as a write takes in Airflow, in which the threads go on
        started = set(times_started(self._service))
        self.most_unrecorded = max(self.most_unrecorded, len(started - self._recorded))
        if not started <= set().union(*self.opened.values()):
            self.breaches.append(f"{started} of {self.opened}")
        self.opened[key] = {int(n) for n in value["opened"]}
        self._recorded |= {int(n) for n in value["results"]}


def failing(fail_at):
    """Return what fails before each write of a batch from one on, by its number from 1."""
    writes = itertools.count(1)

    def before_set(key, _):
        if key == PROBE:
            return
        time.sleep(0.02)  # as long as a write takes in Airflow, in which the threads go on
        if next(writes) >= fail_at:
            raise RuntimeError("The store is gone")

    return before_set
