"""
Wait for a run to finish.

The service has no status API, so the flow's last step reports the result. Among its inputs, the flow gets a URL of
Airflow with a token for this run alone, and the task parks until the flow has called it:

1. **Look** whether the run has ended: after the start, and whenever the task continues.
2. **Push** what is known of the run, before the first park: a person who knows its end may mark the task.
3. **Park**, without a worker, until the endpoint wakes the task, or the next check is due.

:mod:`~workflow_automation_provider.execution.wait_state` has what is kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.exceptions import (
    Code,
    InvalidRequestError,
    RunFailedError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution import parking
from workflow_automation_provider.execution.claim import POLL_INTERVAL

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.execution.callback import Answer
    from workflow_automation_provider.execution.claim import ClaimRecord
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.start_record import RunResult
    from workflow_automation_provider.execution.wait_state import Waiting, WaitRecord
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

# How long a parked task sleeps if nobody wakes it. The first check is soon, because an end that comes between the
# task's last look and its park wakes nobody. No sleep may end before the scheduler knows that the task has left
# its worker: Airflow 3.3 would take that for a failure.
_MIN_CHECK, _FIRST_CHECK, _MAX_CHECK = timedelta(seconds=5), timedelta(seconds=15), timedelta(hours=6)


class ResultUnreadableError(InvalidRequestError):
    """The run has ended, but its result cannot be redacted: the connection is broken. A later try returns the result."""


class CompletionWait:
    """
    The wait of one task for the end of its run.

    :param record: what the task instance knows about it
    :param retrier: its logger, and whether Airflow ended the task
    :param claims: what the run says while it works
    :param timeout: how long to wait
    :param heartbeat_timeout: how long to wait for a word of the run, None for as long as ``timeout``
    :param expects_claim: whether a flow that never claims its start is worth a warning
    :param on_failed: called with the hash of its token when a run has failed, if another is to be started
    """

    def __init__(
        self,
        record: WaitRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        context: Context,
        *,
        claims: ClaimRecord,
        timeout: timedelta,
        heartbeat_timeout: timedelta | None = None,
        expects_claim: bool = False,
        on_failed: Callable[[str | None], None] | None = None,
    ) -> None:
        self._record = record
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._context = context
        self._claims = claims
        self._timeout = timeout
        self._heartbeat = heartbeat_timeout
        self._expects_claim = expects_claim
        self._on_failed = on_failed

    def expect(self, token: str | None, *, anew: bool = False) -> None:
        """
        Wait for the run of a start.

        :param token: the hash of its token, None if it has none
        :param anew: whether a person entered the run
        """
        if anew:
            self._record.begin_anew(token)
        self._record.token = token

    def needs_files(self) -> bool:
        """Return whether the run's files are still to be uploaded: none were before it waited, and the run has not failed."""
        waiting = self._record.read()
        if waiting.since is not None and self._record.has_uploaded():
            return False
        answer = self._record.answer(waiting.digest)
        if answer is None or answer.status != "failed":
            return True
        self._log.warning("The run failed before its files were uploaded: not uploading them.")
        return False

    def wait(self, run: RunResult, checks: int = 0) -> RunResult:
        """
        Return the run with the flow's result once it succeeded; park the task until then.

        :param checks: how often the task continued without an answer
        :raises RunFailedError: if the run failed
        :raises RunTimeoutError: if no result was reported in time
        :raises BaseException: Airflow's signal to park the task
        """
        waiting = self._record.read()
        try:
            return self._wait(run, checks, waiting)
        except RunFailedError:
            if self._on_failed:
                self._log.warning(
                    "Run %s failed: another one is started.", one_line(run.get("run_id", "(unknown id)"))
                )
                try:
                    self._on_failed(waiting.digest)
                    self._record.forget()
                except Exception:
                    self._log.exception(
                        "The run that failed is still recorded: the next try reports it again."
                    )
            raise

    def _wait(self, known: RunResult, checks: int, waiting: Waiting) -> RunResult:
        run = self._claimed(known, waiting.digest)
        if answer := self._record.answer(waiting.digest):
            return self.settle(run, answer)
        waiting = self._began(waiting)
        if not parking.is_supervised():
            return self._poll(run, waiting)
        left = self._left(waiting)
        if left <= timedelta() or (silence := self._silence_left(waiting)) <= timedelta():
            return self._end_late(run, waiting)
        check = max(_MIN_CHECK, min(left, silence, _MAX_CHECK, _FIRST_CHECK * 4 ** min(checks, 10)))
        self._log.info(
            "Waiting for the end of run %s, until %s at the latest.",
            one_line(run.get("run_id", "(unknown id)")),
            (datetime.now(UTC) + left).isoformat(timespec="seconds"),
        )
        if checks == 0 or run != known:
            self._push(run)
        then = {"run": dict(run), "checks": checks + 1, "timeout": self._timeout.total_seconds()}
        return parking.park(self._context, check, then)

    def _push(self, run: RunResult) -> None:
        try:
            parking.push_result(self._context, run)
        except Exception:
            self._log.warning(
                "The run could not be pushed as an XCom: if the task is marked as success while it waits, the next one "
                "does not get it.",
                exc_info=True,
            )

    def settle(self, run: RunResult, answer: Answer) -> RunResult:
        """
        Return the run and the flow's result.

        :raises RunFailedError: if the run failed
        :raises ResultUnreadableError: if the connection is broken: then nothing may be shown
        """
        token = self._record.read().digest
        shown = self._shown(answer)
        # Once more: a run claims before it ends, but perhaps after the last look.
        run = self._claimed(run, token)
        if shown != answer:
            # The endpoint does not know the secrets, and what it stored can be read in Airflow.
            with suppress(Exception):
                self._record.store_answer(token, shown)
        self._close(token)
        result, message = shown.result, shown.message or ""
        if answer.status == "failed":
            raise RunFailedError(
                f"The flow said that the run failed{f': {message}' if message else '.'}",
                result=result,
                run_id=run.get("run_id"),
                flow_id=run.get("flow_id"),
            )
        self._log.info("%s", f"The flow said that the run succeeded. {one_line(message)}".strip())
        if result is None:
            return run
        return {**run, "result": result}

    def _close(self, token: str | None) -> None:
        """Let the run be told that nobody waits any more, and say what no claim means."""
        if token is None:
            return
        with suppress(Exception):  # what the task waited for is known
            if self._expects_claim and self._claims.claim_of(token) is None:
                self._log.warning(
                    "The run has not claimed its start: the flow has no first step that does. Wherever the outcome of a "
                    "start is unknown, another run is started, as with on_unknown_start='start_again'."
                )
            self._claims.close(token)

    def _claimed(self, run: RunResult, token: str | None) -> RunResult:
        """Return the run that claimed the start, which a proxy may have sent twice."""
        claim = self._claims.claim() if token else None
        # That of an earlier run stays if it was told to stop.
        if not claim or claim.token != token or claim.run_id in (None, run.get("run_id")):
            return run
        with self._hook:
            shown = self._claims.shown(claim, self._hook)
        if "run_id" in run:
            self._log.warning(
                "The response named run %s, but run %s has claimed the start: waiting for that one.",
                one_line(run["run_id"]),
                one_line(shown.get("run_id", "(unknown id)")),
            )
        return {**run, **shown}

    def _silence_left(self, waiting: Waiting) -> timedelta:
        """Return how long the run may still say nothing."""
        if self._heartbeat is None or waiting.digest is None:
            return timedelta.max
        claim, word = self._claims.claim(), self._claims.word(waiting.digest)
        said = (waiting.since, claim and claim.at, word and word.at)
        return max(at for at in said if at) + self._heartbeat - datetime.now(UTC)

    def _left(self, waiting: Waiting) -> timedelta:
        return (waiting.since or datetime.now(UTC)) + self._timeout - datetime.now(UTC)

    def _end_late(self, run: RunResult, waiting: Waiting) -> RunResult:
        # In this order: what the endpoint has confirmed to a flow must not be lost.
        if answer := self._record.close(waiting.digest):
            return self.settle(run, answer)
        raise (
            self._overdue(run, waiting) if self._left(waiting) <= timedelta() else self._silent(run, waiting)
        )

    def _silent(self, run: RunResult, waiting: Waiting) -> RunTimeoutError:
        assert waiting.digest  # noqa: S101
        assert self._heartbeat  # noqa: S101
        last = "It has said nothing."
        if (word := self._claims.word(waiting.digest)) is not None:
            with self._hook:
                said = self._redacted(word.message)
            done = "" if word.progress is None else f" ({word.progress:.0%})"
            last = f"Its last word, at {word.at.isoformat(timespec='seconds')}: {one_line(said or 'running')}{done}"
        return RunTimeoutError(
            f"The run has said nothing for longer than heartbeat_timeout ({self._heartbeat}). {last}",
            code=Code.RUN_SILENT,
            run_id=run.get("run_id"),
            flow_id=run.get("flow_id"),
        )

    def _overdue(self, run: RunResult, waiting: Waiting) -> RunTimeoutError:
        where = run.get("run_link") or f"run {run.get('run_id', '')}".strip()
        callback = (
            "If its last step failed to call back, look at its error, and whether the service reaches callback_base_url."
            if waiting.digest
            else "It was given no callback URL."
        )
        return RunTimeoutError(
            f"No result was reported within completion_timeout ({self._timeout}).",
            next_step=f"Look at {where}.\n{callback}",
            run_id=run.get("run_id"),
            flow_id=run.get("flow_id"),
        )

    def _began(self, waiting: Waiting) -> Waiting:
        if not waiting.digest:
            self._log.warning(
                "The run was given no callback URL: it was started before the task waited, or a person entered it. "
                "Only marking the task, as success or failed, ends the wait."
            )
        return waiting if waiting.since else self._record.began(waiting)

    def _poll(self, run: RunResult, waiting: Waiting) -> RunResult:
        """Wait in this process: outside a scheduler, nobody would wake a parked task."""
        self._log.info(
            "Waiting for the end of run %s in this process.", one_line(run.get("run_id", "(unknown id)"))
        )
        while True:
            if answer := self._record.answer(waiting.digest):
                return self.settle(run, answer)
            if self._left(waiting) <= timedelta() or self._silence_left(waiting) <= timedelta():
                return self._end_late(run, waiting)
            if self._retrier.is_ended():
                raise RunTimeoutError(
                    "The task was ended before anybody said how the run ended.",
                    run_id=run.get("run_id"),
                    flow_id=run.get("flow_id"),
                )
            run = self._claimed(run, waiting.digest)
            time.sleep(POLL_INTERVAL)

    def _shown(self, answer: Answer) -> Answer:
        try:
            with self._hook:
                return answer._replace(
                    result=self._redacted(answer.result), message=self._redacted(answer.message)
                )
        except Exception as error:
            why = error.message if isinstance(error, WorkflowAutomationError) else error
            raise ResultUnreadableError(
                f"The flow said that the run {_ended(answer)}, but the connection cannot be used: {why}",
                next_step="What was said is stored. Once the connection works, the next try returns it.",
            ) from error

    def _redacted(self, value: Any) -> Any:
        """Return a value of the flow's, or a note instead if it reveals a secret."""
        if value is None:
            return None
        text = value if isinstance(value, str) else json.dumps(value)
        shown = self._hook.get_conn().redact(text)
        return value if shown == text else shown


def _ended(answer: Answer) -> str:
    return "succeeded" if answer.status == "success" else "failed"
