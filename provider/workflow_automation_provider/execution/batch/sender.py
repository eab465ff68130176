"""Send the open items of a batch, each once, from several threads over one client."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from workflow_automation_provider.client.outcome import (
    Busy,
    Failure,
    NotSent,
    Outcome,
    Rejected,
    Started,
    Unidentified,
    Unknown,
)
from workflow_automation_provider.execution.batch.throttle import Throttle
from workflow_automation_provider.execution.batch_state import BatchItem
from workflow_automation_provider.execution.telemetry import metric_of
from workflow_automation_provider.failures import reason_of

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.execution.batch_state import ItemStatus
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

# Rejections that the next item would meet as well: they are about the key, the flow or the URL, not the inputs.
_BATCH_ENDING_STATUSES = frozenset({401, 402, 403, 404, 405, 407, 410})

# How much is kept of a response without run_id, in characters: it may have up to 1 MiB.
_MAX_RESPONSE = 2000


@dataclass(slots=True)
class Job:
    """
    An item to be sent.

    :param is_taken: whether a thread has it; once the sender is stopped, no thread sends what it takes
    :param result: that of this try, empty until it is known
    :param settled: the result of all tries, empty until :meth:`~.ledger.Ledger.settle` decided it
    :param ends_batch: the failure if the next items would meet it as well, or the service did not become available
    :param metric: the counter for the outcome of its last request, if it had one
    :param retried: how often it was sent again
    :param took: how long each response took, in seconds
    """

    index: int
    request: Request
    digest: bytes
    is_taken: bool = False
    result: BatchItem = field(default_factory=BatchItem)
    settled: BatchItem = field(default_factory=BatchItem)
    ends_batch: Failure | None = None
    metric: str | None = None
    retried: int = 0
    took: list[float] = field(default_factory=list)

    @property
    def is_under_way(self) -> bool:
        """Whether a thread has it, and its result is not known."""
        return self.is_taken and not self.result

    def end(self, status: ItemStatus, why: str) -> None:
        """Note that no run is known."""
        self.result = {"index": self.index, "status": status, "why": why}


class Sender:
    """
    The threads, and what they wait for.

    :param retrier: how long the service may be busy or unreachable without interruption
    :param per_second: how many requests to send in a second at most; None for no limit
    """

    is_stopped = False
    """Whether nothing more is sent."""

    def __init__(self, hook: WorkflowAutomationHook, retrier: SendRetrier, per_second: float | None) -> None:
        self._hook = hook
        self._retrier = retrier
        self._throttle = Throttle(retrier.seconds, per_second, retrier.log, lambda: self.is_stopped)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: SimpleQueue[Job] = SimpleQueue()

    @contextlib.contextmanager
    def threads(self, number: int, known_runs: Iterable[str]) -> Iterator[None]:
        """Send from this many threads, until this context ends."""
        # Daemons, so that a request that hangs does not keep the process of an ended task alive.
        threads = [Thread(target=self._work, name=f"batch-{n}", daemon=True) for n in range(number)]
        with self._hook.get_conn().keep_connections(known_runs):
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self.is_stopped = True
                for _ in threads:
                    self._jobs.put(None)

    @property
    def waiting(self) -> int:
        """How many jobs no thread has taken."""
        return self._jobs.qsize()

    @property
    def done(self) -> int:
        """How many jobs are done, and not collected."""
        return self._done.qsize()

    def send(self, jobs: Iterable[Job]) -> None:
        """Have the threads send jobs."""
        for job in jobs:
            self._jobs.put(job)

    def collect(self, seconds: float) -> Iterator[Job]:
        """Yield the jobs that are done, waiting for the first of them."""
        with contextlib.suppress(Empty):
            yield self._done.get(timeout=seconds)
            while True:
                yield self._done.get_nowait()

    def stop(self) -> Iterator[Job]:
        """Send nothing more, and yield the jobs that no thread has taken."""
        self.is_stopped = True
        with contextlib.suppress(Empty):
            while job := self._jobs.get_nowait():
                yield job

    def _work(self) -> None:
        while job := self._jobs.get():
            job.is_taken = True
            try:
                self._send(job)
            except BaseException as error:
                # Without its text, which nothing has redacted.
                job.end("unknown", f"{type(error).__name__} while it was sent.")
                job.metric = "runs.unknown"
            self._done.put(job)

    def _send(self, job: Job) -> None:
        """Send an item until the service has acted on it, or the batch is stopped."""
        is_again = False
        while self._throttle.wait():
            job.retried += is_again
            is_again = True
            sent_at = time.monotonic()
            match self._request(job):
                case Busy() | NotSent() as failure:
                    if self.is_stopped or self._retrier.is_ended():
                        break
                    if not self._throttle.on_busy(failure, sent_at):
                        job.ends_batch = failure
                        return job.end("not started", reason_of(failure))
                case outcome:
                    if not isinstance(outcome, Unknown):
                        self._throttle.on_response()
                    return _note(job, outcome)
        return job.end("not started", "The batch was stopped.")

    def _request(self, job: Job) -> Outcome:
        """Send an item once, and note its metric."""
        began = time.monotonic()
        outcome = self._hook.send_trigger(job.request)
        job.metric = metric_of(outcome)
        if not isinstance(outcome, Failure) or outcome.status is not None:
            job.took.append(time.monotonic() - began)
        return outcome


def _note(job: Job, outcome: Outcome) -> None:
    """Note the result of a request that the service may have acted on, or rejected."""
    match outcome:
        case Started(run=run):
            job.result = _started(job.index, run)
        case Rejected(status=status) if status in _BATCH_ENDING_STATUSES or 300 <= (status or 0) < 400:
            job.ends_batch = outcome
            job.end("not started", reason_of(outcome))
        case Rejected():
            job.end("rejected", reason_of(outcome))
        case Unidentified():
            job.end("unidentified", reason_of(outcome))
        case Unknown():
            job.end("unknown", reason_of(outcome))


def _started(index: int, run: Run) -> BatchItem:
    item: BatchItem = {"index": index, "status": "started"}
    if run.run_id is not None:
        item["run_id"] = run.run_id
    if run.run_link is not None:
        item["run_link"] = run.run_link
    if run.run_id is None and run.response is not None:
        size = len(json.dumps(run.response))
        item["response"] = run.response if size <= _MAX_RESPONSE else f"(not kept: it has {size} characters)"
    return item
