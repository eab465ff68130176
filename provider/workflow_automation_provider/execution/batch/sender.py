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

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.exceptions import (
    BusyError,
    Code,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
)
from workflow_automation_provider.execution.batch.throttle import Throttle
from workflow_automation_provider.execution.batch_state import BatchItem

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.exceptions import WorkflowAutomationError
    from workflow_automation_provider.execution.batch_state import ItemStatus
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

# Rejections that the next item would meet as well: they are about the key, the flow or the URL, not the inputs.
_BATCH_ENDING_STATUSES = frozenset({401, 402, 404, 405, 407, 410})

# About the key, or about one item that a firewall dislikes.
_FORBIDDEN = 403

# How much is kept of a response without run_id, in characters: it may have up to 1 MiB.
_MAX_RESPONSE = 2000


@dataclass(slots=True)
class Job:
    """
    An item to be sent.

    :param is_taken: whether a thread has it; once the sender is stopped, no thread sends what it takes
    :param result: that of this try, empty until it is known
    :param settled: the result of all tries, empty until :meth:`~.ledger.Ledger.settle` decided it
    :param ends_batch: the error if the next items would meet it as well, or the service did not become available
    :param forbidden: the rejection if it may be about the item or about the key
    """

    index: int
    request: Request
    digest: bytes
    is_taken: bool = False
    result: BatchItem = field(default_factory=BatchItem)
    settled: BatchItem = field(default_factory=BatchItem)
    ends_batch: WorkflowAutomationError | None = None
    forbidden: RejectedError | None = None

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

    def send(self, jobs: Iterable[Job]) -> None:
        """Have the threads send jobs."""
        for job in jobs:
            self._jobs.put(job)

    def collect(self, seconds: float) -> Iterator[Job]:
        """Yield the jobs that are done, in that order, waiting for the first of them."""
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
            self._done.put(job)

    def _send(self, job: Job) -> None:
        """Send an item until the service has acted on it, or the batch is stopped."""
        while self._throttle.wait():
            sent_at = time.monotonic()
            try:
                run = self._hook.send_trigger(job.request)
            except (BusyError, NotSentError) as error:
                if self.is_stopped or self._retrier.is_ended():
                    break
                if not self._throttle.on_busy(error, sent_at):
                    job.ends_batch = error
                    return job.end("not started", error.reason)
            except OutcomeUnknownError as error:
                return job.end("unknown", error.reason)
            except (UnidentifiedError, RejectedError) as error:
                self._throttle.on_response()
                return _note(job, error)
            else:
                self._throttle.on_response()
                job.result = self._started(job.index, run)
                return None
        return job.end("not started", "The batch was stopped.")

    def _started(self, index: int, run: Run) -> BatchItem:
        item: BatchItem = {"index": index, "status": "started"}
        if run.run_id is not None:
            item["run_id"] = run.run_id
        if run.run_link is not None:
            item["run_link"] = run.run_link
        if run.run_id is None and run.response is not None:
            text = json.dumps(run.response)
            item["response"] = run.response
            if len(text) > _MAX_RESPONSE:
                item["response"] = f"(not kept: it has {len(text)} characters, see the log)"
                self._retrier.log.info("The response for batch[%d]: %s", index, one_line(text))
        return item


def _note(job: Job, error: UnidentifiedError | RejectedError) -> None:
    """Note the error of a request that the service has responded to."""
    if isinstance(error, UnidentifiedError):
        job.end("unidentified", error.reason)
    elif error.status in _BATCH_ENDING_STATUSES or error.code is Code.REDIRECTED:
        job.ends_batch = error
        job.end("not started", error.reason)
    else:
        job.end("rejected", error.reason)
        job.forbidden = error if error.status == _FORBIDDEN else None
