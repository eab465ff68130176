"""Send the open items of a batch, each once, from several threads over one client."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.client.protocol import with_inputs
from workflow_automation_provider.exceptions import (
    BusyError,
    Code,
    NotSentError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.retry import SendRetrier

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.execution.batch_record import BatchItem, ItemStatus
    from workflow_automation_provider.execution.batch_source import Item
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

# Seconds between two looks at whether the batch is stopped.
_POLL_INTERVAL = 0.1

# Rejections that the next item would meet as well: they are about the key, the flow or the URL, not the inputs.
_ENDS_BATCH = frozenset({401, 402, 404, 405, 407, 410})

# How much is kept of a response without run_id, in characters: it may have up to 1 MiB.
_MAX_RESPONSE = 2000


@dataclass(slots=True)
class Job:
    """
    An item in flight: to be opened by a write, and without a recorded result.

    :param is_open: whether the write that opens it is durable
    :param is_taken: whether a thread has it; once the sender is stopped, no thread sends what it takes
    :param error: what its request ended with
    :param result: the item's result in this try, None until it is known
    :param settled: the result of all tries, None until that is known
    """

    item: Item
    is_open: bool = False
    is_taken: bool = False
    error: WorkflowAutomationError | None = None
    result: BatchItem | None = None
    settled: BatchItem | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a thread has it, and its result is not known."""
        return self.is_taken and not self.result

    def end(self, status: ItemStatus, why: str) -> None:
        """Note that no run is known."""
        self.result = {"index": self.item.index, "status": status, "why": why}


class Sender:
    """
    The threads that send, and what they wait for: while the service is busy, one of them asks it again, and all others wait.

    :param retrier: how long the service may be busy or unreachable without interruption
    :param per_second: how many requests to send in a second at most, spread evenly; None for no limit
    """

    is_stopped = False
    """Whether nothing more is sent."""

    def __init__(self, hook: WorkflowAutomationHook, retrier: SendRetrier, per_second: float | None) -> None:
        self._hook = hook
        self._is_ended = retrier.is_ended
        self._retrier = SendRetrier(retrier.seconds, retrier.log, lambda: not self._goes_on)
        self._interval = 1 / per_second if per_second else 0.0
        self._next = self._resumed_at = 0.0
        self._gate = Lock()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: SimpleQueue[Job] = SimpleQueue()

    @contextlib.contextmanager
    def threads(self, number: int, template: Request, known_runs: Iterator[str]) -> Iterator[None]:
        """Send from this many threads, until this context ends."""
        # Daemons, so that a request that hangs does not keep the process of an ended task alive.
        threads = [
            Thread(target=self._work, args=(template,), name=f"batch-{n}", daemon=True) for n in range(number)
        ]
        with self._hook.get_conn().keep_connections(known_runs):
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self.is_stopped = True
                for _ in threads:
                    self._jobs.put(None)

    def send(self, job: Job) -> None:
        """Have a thread send an item."""
        self._jobs.put(job)

    def collect(self, seconds: float) -> Iterator[Job]:
        """Yield the items that are done, in that order, waiting for the first of them."""
        with contextlib.suppress(Empty):
            yield self._done.get(timeout=seconds)
            while True:
                yield self._done.get_nowait()

    def stop(self) -> Iterator[Job]:
        """Send nothing more, and yield the items that no thread has taken."""
        self.is_stopped = True
        with contextlib.suppress(Empty):
            while job := self._jobs.get_nowait():
                yield job

    @property
    def _goes_on(self) -> bool:
        return not self.is_stopped and not self._is_ended()

    def _work(self, template: Request) -> None:
        while job := self._jobs.get():
            job.is_taken = True
            try:
                run = self._request(with_inputs(template, job.item.inputs))
                if run is not None:
                    job.result = self._started(job.item.index, run)
                else:
                    job.end("not started", "The batch was stopped.")
            except WorkflowAutomationError as error:
                job.error = error
                job.end(_status_of(error), error.reason)
            except BaseException as error:
                # Without its text, which nothing has redacted.
                job.end("unknown", f"{type(error).__name__} while it was sent.")
            self._done.put(job)

    def _request(self, request: Request) -> Run | None:
        """Send an item until the service has acted on it; return None once the batch is stopped."""
        while True:
            with self._alone() as goes_on:
                if not goes_on or not self._is_its_turn():
                    return None
            sent_at = time.monotonic()
            try:
                return self._hook.send_trigger(request)
            except (BusyError, NotSentError) as error:
                with self._alone() as goes_on:
                    if not goes_on:
                        return None
                    # Unless another thread has waited meanwhile.
                    if sent_at > self._resumed_at:
                        return self._ask_again(request, error)

    def _ask_again(self, request: Request, error: WorkflowAutomationError) -> Run | None:
        def send() -> Run | None:
            return self._hook.send_trigger(request) if self._is_its_turn() else None

        try:
            return self._retrier.send(send, after=error)
        except (BusyError, NotSentError):
            if not self._goes_on:
                return None
            self.is_stopped = True
            raise
        finally:
            self._resumed_at = time.monotonic()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Let no other thread begin a request; yields whether one may be sent, False once the batch is stopped."""
        while not self._gate.acquire(timeout=_POLL_INTERVAL):
            if not self._goes_on:
                yield False
                return
        try:
            yield self._goes_on
        finally:
            self._gate.release()

    def _is_its_turn(self) -> bool:
        """Wait for the turn of the next request; return False once the batch is stopped."""
        if self._interval:
            self._retrier.sleep(self._next - time.monotonic())
            now = time.monotonic()
            # A thread that wakes up a little late does not delay those after it.
            is_on_time = now - self._next < self._interval / 2
            self._next = (self._next if is_on_time else now) + self._interval
        return self._goes_on

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


def _status_of(error: WorkflowAutomationError) -> ItemStatus:
    if isinstance(error, RejectedError):
        return "not started" if error.status in _ENDS_BATCH or error.code is Code.REDIRECTED else "rejected"
    if isinstance(error, UnidentifiedError):
        return "unidentified"
    return "not started" if isinstance(error, BusyError | NotSentError) else "unknown"
