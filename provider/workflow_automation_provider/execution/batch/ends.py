"""
The ends of a batch's runs, in a folder of a store that holds mailboxes.

Each run is given a URL for one object of the batch's own folder, whose name is the index of its
item. Once all items are sent, the task is suspended, and a trigger lists the folder
(:class:`~workflow_automation_provider.triggers.mailbox.MailboxFolderTrigger`). When all runs have
ended, or the time is up, the task reads the objects into the output file.

An end tells that an item was started, whatever its response was. That none is there tells nothing,
for the run may be at work: so what decides about sending does not look into the folder.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

from airflow.providers.common.compat.sdk import TaskDeferred

from workflow_automation_provider.client.redaction import SIGNATURE_MARKS, WITHHELD
from workflow_automation_provider.client.setting_kinds import MAILBOX_EXAMPLE, is_mailbox
from workflow_automation_provider.exceptions import (
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RunFailedError,
    RunTimeoutError,
)
from workflow_automation_provider.execution.batch.item_results import without_bulk
from workflow_automation_provider.execution.record.callback import MARGIN
from workflow_automation_provider.execution.run.claim_wait import POLL_INTERVAL
from workflow_automation_provider.execution.run.completion import (
    TRIGGERER_MARGIN,
    is_supervised,
    trigger_failed,
    usable_connection,
    warn_without_retries,
)
from workflow_automation_provider.execution.run.mailbox import mailbox_of, read_end
from workflow_automation_provider.execution.run.tools import redactor_for
from workflow_automation_provider.hooks.mailbox import Mailbox

if TYPE_CHECKING:
    from workflow_automation_provider.client.redaction import Redactor
    from workflow_automation_provider.execution.batch.batch_record import BatchRecord
    from workflow_automation_provider.execution.batch.item_results import BatchItem
    from workflow_automation_provider.execution.batch.options import BatchOptions
    from workflow_automation_provider.execution.batch.source import Item
    from workflow_automation_provider.execution.record.entries import End
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

# How many ends are read before they are needed: each may have 64 KiB.
_READ_AHEAD = 32


class BatchEnds:
    """
    The ends of one batch's runs.

    :param record: has the folder, and until when the task waits
    :param options: what the task asks for
    """

    def __init__(
        self,
        record: BatchRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        options: BatchOptions,
    ) -> None:
        self._record = record
        self._results = record.results
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._options = options

    @property
    def are_awaited(self) -> bool:
        """Whether the batch waits: as recorded once items were sent, whatever the DAG says then."""
        if self._record.has_opened:
            return bool(self._record.folder)
        return self._options.wait_for_completion

    def not_awaited(self) -> RunTimeoutError | None:
        """Return the error for a batch that is to wait, and has begun without; else None."""
        if self.are_awaited or not self._options.wait_for_completion:
            return None

        return RunTimeoutError(
            "The batch was begun without wait_for_completion=True: look at its runs, and mark it."
        )

    # Before the start -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """
        Choose the folder, unless an earlier try did, and check that runs can write there.

        :raises InvalidRequestError: if they cannot
        :raises NotSentError: if the store does not answer
        """
        record = self._record
        record.check_lasting("wait_for_completion")
        base = self._hook.extra.callback_base_url
        if record.folder:
            base = record.folder.rpartition("/")[0]
        if not base or not is_mailbox(base):
            raise InvalidRequestError(
                "wait_for_completion of a batch needs a connection whose callback_base_url is a "
                f"folder of an object store, such as {MAILBOX_EXAMPLE}."
            )

        if not record.folder:
            record.folder = f"{base}/{secrets.token_hex(16)}"
            record.until = datetime.now(UTC) + self._options.completion_timeout

        client = self._hook.get_conn()
        # Not each signature: Airflow's masker compiles one expression of all secrets.
        for marker in (self._token, *SIGNATURE_MARKS):
            client.redactor.add_marker(marker)

        lifetime = max(self._left(), timedelta()) + MARGIN
        allow_http = self._hook.extra.allow_http
        Mailbox(mailbox_of(base, "0")).check(lifetime, client.base_url, allow_http=allow_http)
        Mailbox(record.folder).indexes()  # as the trigger and the wait ask

    def inputs_of(self, item: Item) -> bytes:
        """
        Return what is sent for an item, as JSON: with a URL that is signed now, if the batch waits.

        :raises InvalidRequestError: if the time is up, or the URL could not be used for long enough
        :raises NotSentError: if the credentials cannot be had
        """
        if not self._record.folder:
            return item.inputs

        left = self._left()
        if left <= timedelta():
            raise InvalidRequestError(
                f"The time was up at {self._until}, before all items were sent: "
                "pass a longer completion_timeout."
            )

        url = Mailbox(self.url_of(item.index)).sign(left + MARGIN)
        member = json.dumps({self._options.callback_input: url}).encode()[1:]
        others = item.inputs.removesuffix(b"}").rstrip()
        separator = b"" if others.endswith(b"{") else b","
        return others + separator + member

    def url_of(self, index: int) -> str:
        """Return the URL of an item's object, without a signature."""
        return mailbox_of(self._record.folder, str(index))

    def _left(self) -> timedelta:
        """Return how long the task may still wait."""
        return self._record.until - datetime.now(UTC)

    @property
    def is_over(self) -> bool:
        """Whether the time is up, so that no further end counts."""
        return self._left() <= timedelta()

    @property
    def _until(self) -> str:
        return self._record.until.isoformat(timespec="seconds")

    @property
    def _token(self) -> str:
        """The name of the folder, which each URL has."""
        return self._record.folder.rpartition("/")[2]

    # The wait -------------------------------------------------------------------------------------

    def wait(self, trigger_failure: str) -> set[int]:
        """
        Return which runs have ended, once all have or the time is up; suspend the task until then.

        :param trigger_failure: why the trigger has failed, empty if it has not
        :raises NotSentError: if the store cannot be asked
        :raises ConnectionUnusableError: if the trigger has failed
        :raises BaseException: Airflow's signal to suspend the task
        """
        if not self._record.folder:  # of an empty batch
            return set()

        awaited = set(self._results.with_run())
        logged: int | None = None
        while True:
            # Before the look: an end that was written in time counts.
            is_over = self.is_over
            ended = Mailbox(self._record.folder).indexes()
            if is_over or awaited <= ended:
                return ended

            number = len(awaited & ended)
            if number != logged:
                logged = number
                self._log.info(
                    "%d of %d runs have ended. Waiting for the others until %s at the latest.",
                    number,
                    len(awaited),
                    self._until,
                )

            if trigger_failure:
                raise trigger_failed(trigger_failure)
            if is_supervised():
                self._record.write_ended(number)
                self._suspend(seen=len(ended), awaited=len(awaited | ended))
            # Outside a scheduler, nobody would wake the task.
            if self._retrier.is_ended():
                raise RunTimeoutError("The task was ended before all runs had.")
            time.sleep(POLL_INTERVAL)

    def _suspend(self, *, seen: int, awaited: int) -> NoReturn:
        from workflow_automation_provider.triggers import mailbox

        warn_without_retries(self._record, self._log)
        folder, until = self._record.folder, self._record.until.isoformat()
        raise TaskDeferred(
            trigger=mailbox.MailboxFolderTrigger(
                folder, until, mailbox.INTERVAL, seen=seen, awaited=awaited
            ),
            method_name="execute_complete",
            kwargs={"entries": self._record.number_of_entries},
            # The trigger ends before that, unless there is no triggerer.
            timeout=self._left() + TRIGGERER_MARGIN,
        )

    # The end --------------------------------------------------------------------------------------

    def settled(self, items: Iterator[BatchItem], ended: set[int]) -> Iterator[BatchItem]:
        """
        Yield items with the ends of their runs, and keep their statuses as results.

        :param items: the results of the starts
        :param ended: which runs have ended
        :raises NotSentError: if the store cannot be asked
        :raises ConnectionUnusableError: if the connection cannot be used
        """
        with usable_connection("The runs were started"):
            redactor = redactor_for(self._hook, self._record.target.get("conn_id"))

        for item, end in self._with_ends(items, ended):
            settled = self._settled(item, end, redactor)
            self._results.put(without_bulk(settled))
            yield settled

    def _with_ends(
        self, items: Iterator[BatchItem], ended: set[int]
    ) -> Iterator[tuple[BatchItem, End | RunFailedError | None]]:
        """Yield items with what their runs wrote, which is read a bounded number ahead."""
        ahead: deque[tuple[BatchItem, Future[End | RunFailedError | None]]] = deque()
        pool = ThreadPoolExecutor(self._options.max_concurrency)
        try:
            for item in items:
                ahead.append((item, pool.submit(self._read, item["index"], ended)))
                if len(ahead) == _READ_AHEAD:
                    first, future = ahead.popleft()
                    yield first, future.result()

            for first, future in ahead:
                yield first, future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, index: int, ended: set[int]) -> End | RunFailedError | None:
        """
        Return how a run ended, if it has; an error if what it wrote is no end.

        :raises NotSentError: if the store cannot be asked, or has lost what it has listed
        """
        if index not in ended:
            return None

        url = self.url_of(index)
        try:
            end = read_end(url, self._token)
        except RunFailedError as error:
            return error

        if end is None:
            raise NotSentError(f"The mailbox {url} is listed, and cannot be read: it is missing.")
        return end

    def _settled(
        self, item: BatchItem, end: End | RunFailedError | None, redactor: Redactor
    ) -> BatchItem:
        """Return an item with the end of its run."""
        if end is None:
            if item["status"] == "started":
                why = f"Its run has written no end until {self._until}."
                return {**item, "status": "overdue", "why": why}
            return item

        if item["status"] in ("rejected", "not started"):
            name = self._results.name_of(item["index"])
            self._log.warning("%s was %s, but its run has ended.", name, item["status"])

        settled: BatchItem = {**item}
        del settled["why"]
        if isinstance(end, RunFailedError):
            return {**settled, "status": "failed", "why": end.reason}

        whys = []
        run_id = item.get("run_id")
        if end.run_id not in (None, run_id):
            settled.pop("run_link", None)
            settled["run_id"] = WITHHELD if redactor.has_key(end.run_id) else end.run_id
            if run_id is not None:
                whys.append(f"The response had named another run, {run_id}.")

        settled["status"] = end.status
        if end.result is not None:
            settled["result"] = redactor.value(end.result)
        if end.message:
            settled["message"] = redactor.text(end.message)
        if end.status == "failed":
            whys.insert(0, settled.get("message", "The flow said that the run failed."))
        if whys:
            settled["why"] = OutcomeUnknownError(" ".join(whys)).reason  # in one line, and cut

        return settled
