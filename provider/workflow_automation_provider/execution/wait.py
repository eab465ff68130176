"""
Wait for a run to finish.

The service has no status API, so the flow's last step, or a person, reports the result. Among its inputs, the flow gets
a URL of Airflow with a token for this run alone, and the task parks until the flow has called it:

1. **Look** whether there is an answer: after the start, after asking, and whenever the task continues.
2. **Ask**: list the wait under **Required Actions**, once per try.
3. **Park**, without a worker, until the endpoint wakes the task, a person answers, or the next check is due.

:mod:`~workflow_automation_provider.execution.wait_state` has what is kept.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.exceptions import (
    InvalidRequestError,
    RunFailedError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution import parking
from workflow_automation_provider.execution.callback import OPTIONS, Answer
from workflow_automation_provider.execution.claim import POLL_INTERVAL
from workflow_automation_provider.execution.parking import Question, Reply
from workflow_automation_provider.failures import how_to_enter, run_started, silence_error

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from workflow_automation_provider.execution.callback import Status
    from workflow_automation_provider.execution.claim import ClaimRecord
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.start_record import StartedRun
    from workflow_automation_provider.execution.wait_state import Waiting, WaitRecord
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

# Nothing else ends a link of Markdown.
_LINK = re.compile(r"https?://[^\s<>]+")

SUCCEEDED = OPTIONS["success"]
"""A person's answer in place of the flow's."""

FAILED = OPTIONS["failed"]
"""A person's answer in place of the flow's."""

ANSWER_FIELDS = {
    "result": "What the flow returned, as JSON or text",
    "message": "A message for the task's log",
}
"""What a person may add to an answer, and the descriptions of the fields."""

# How long a parked task sleeps if nobody wakes it. The first check is soon, because an answer that comes between
# the task's last look and its park wakes nobody. No sleep may end before the scheduler knows that the task has left
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
        self._since: datetime | None = None

    def expect(self, token: str | None, *, anew: bool = False) -> None:
        """
        Wait for the run of a start.

        :param token: the hash of its token, None if it has none
        :param anew: whether a person entered the run
        """
        if anew:
            self._record.begin_anew(token)
        self._record.token = token

    def needs_files(self, reply: Reply) -> bool:
        """Return whether the run's files are still to be uploaded: none were before it waited, and the run has not failed."""
        waiting = self._record.read()
        if waiting.since is not None and self._record.has_uploaded():
            return False
        answer = self._record.answer(waiting.digest)
        has_failed = answer.status == "failed" if answer else reply.option == FAILED
        if has_failed:
            self._log.warning("The run failed before its files were uploaded: not uploading them.")
        return not has_failed

    def wait(self, run: StartedRun, reply: Reply, checks: int = 0) -> StartedRun:
        """
        Return the run with the flow's result once it succeeded; park the task until then.

        :param reply: why the task continues
        :param checks: how often it continued without an answer
        :raises RunFailedError: if the run failed
        :raises RunTimeoutError: if no result was reported in time
        :raises BaseException: Airflow's signal to park the task
        """
        waiting = self._record.read()
        self._since = waiting.since
        try:
            ended = self._wait(run, reply, checks, waiting)
        except RunTimeoutError:
            self._count_end("timed_out")
            raise
        except RunFailedError:
            self._count_end("failed")
            if self._on_failed:
                self._log.warning(
                    "Run %s failed: another one is started.", one_line(run.get("run_id", "(unknown id)"))
                )
                try:
                    self._on_failed(waiting.digest)
                    self._record.forget()  # last: a person's answer is nowhere else
                except Exception:
                    self._log.exception(
                        "The run that failed is still recorded: the next try reports it again."
                    )
            raise
        self._count_end("succeeded")
        return ended

    def _count_end(self, outcome: str) -> None:
        telemetry = self._record.telemetry
        telemetry.count(f"waits.{outcome}")
        if self._since:
            telemetry.time("waits.duration", (datetime.now(UTC) - self._since).total_seconds())

    def _wait(self, run: StartedRun, reply: Reply, checks: int, waiting: Waiting) -> StartedRun:
        run = self._claimed(run, waiting.digest)
        if answer := self._record.answer(waiting.digest):
            return self.settle(run, answer)
        if reply.option in (SUCCEEDED, FAILED):
            if answer := self._record.close(waiting.digest):
                return self.settle(run, answer)
            answer = _of_person(reply)
            self._log.info("%s answered that the run %s.", reply.by, _ended(answer))
            self._record.store_answer(waiting.digest, answer)
            return self.settle(run, answer, by=reply.by)
        if not parking.is_supervised():
            return self._poll(run, waiting)
        question = self._question(run, waiting)
        # Answered, but without saying how the run ended: the question must be open again, or the task could not
        # park.
        if not waiting.asked or reply.by:
            waiting = self._began(waiting, asked=self._ask(question))
            if answer := self._record.answer(waiting.digest):
                return self.settle(run, answer)
        left = self._left(waiting)
        if left <= timedelta() or (silence := self._silence_left(waiting)) <= timedelta():
            return self._end_late(run, waiting)
        check = max(_MIN_CHECK, min(left, silence, _MAX_CHECK, _FIRST_CHECK * 4 ** min(checks, 10)))
        self._log.info(
            "Waiting for the end of run %s, until %s at the latest.",
            one_line(run.get("run_id", "(unknown id)")),
            (datetime.now(UTC) + left).isoformat(timespec="seconds"),
        )
        then = {"run": dict(run), "checks": checks + 1, "timeout": self._timeout.total_seconds()}
        return parking.park(self._context, question, check, then)

    def settle(self, run: StartedRun, answer: Answer, *, by: str = "The flow") -> StartedRun:
        """
        Return the run and the flow's result.

        :param by: who said so
        :raises RunFailedError: if the run failed
        :raises ResultUnreadableError: if the connection is broken: then nothing may be shown
        """
        token = self._record.read().digest
        shown = self._shown(answer, by)
        # Once more: a run claims before it ends, but perhaps after the last look.
        run = self._claimed(run, token)
        if shown != answer:
            # The endpoint does not know the secrets, and what it stored can be read in Airflow.
            with suppress(Exception):
                self._record.store_answer(token, shown)
        self._close(token)
        result, message = shown.result, shown.message or ""
        if answer.status == "failed":
            error = RunFailedError(
                f"{by} said that the run failed{f': {message}' if message else '.'}",
                consequence=run_started(run.get("run_id")),
                next_step="Fix the cause, then clear the task to start another run.",
            )
            error.result = result
            error.locate(None, run.get("flow_id"), run.get("run_id"))
            raise error
        self._log.info("%s", f"{by} said that the run succeeded. {one_line(message)}".strip())
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

    def _claimed(self, run: StartedRun, token: str | None) -> StartedRun:
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

    def _ask(self, question: Question) -> bool:
        """List the question, and return whether that was possible."""
        try:
            parking.ask(self._context, question)
        except Exception:
            # The flow can still call back, and the next check asks again.
            self._log.exception("The wait could not be listed under Required Actions.")
            return False
        return True

    def _question(self, run: StartedRun, waiting: Waiting) -> Question:
        run_id, link = run.get("run_id"), run.get("run_link")
        lines = [
            "The task continues once the flow calls back. If it does not, look at the run, and answer."
            if waiting.digest
            else "The run was given no callback URL. Look at the run, and answer.",
            f"- Run: {parking.code(run_id) if run_id else 'unknown'}{f' <{link}>' if link and _LINK.fullmatch(link) else ''}",
            f"- Connection: {parking.code(self._hook.workflow_automation_conn_id)}",
        ]
        if flow_id := run.get("flow_id"):
            lines.append(f"- Flow: {parking.code(flow_id)}")
        return Question(
            f"How did run {run_id} end?" if run_id else "How did the run end?",
            "\n".join(lines),
            (SUCCEEDED, FAILED),
            ANSWER_FIELDS,
        )

    def _left(self, waiting: Waiting) -> timedelta:
        return (waiting.since or datetime.now(UTC)) + self._timeout - datetime.now(UTC)

    def _end_late(self, run: StartedRun, waiting: Waiting) -> StartedRun:
        # In this order: what the endpoint has confirmed to a flow must not be lost.
        if answer := self._record.close(waiting.digest):
            return self.settle(run, answer)
        error = (
            self._overdue(run, waiting) if self._left(waiting) <= timedelta() else self._silent(run, waiting)
        )
        raise self._located(error, run)

    def _silent(self, run: StartedRun, waiting: Waiting) -> RunTimeoutError:
        assert waiting.digest  # noqa: S101
        assert self._heartbeat  # noqa: S101
        last = "It has said nothing."
        if (word := self._claims.word(waiting.digest)) is not None:
            with self._hook:
                said = self._redacted(word.message)
            done = "" if word.progress is None else f" ({word.progress:.0%})"
            last = f"Its last word, at {word.at.isoformat(timespec='seconds')}: {one_line(said or 'running')}{done}"
        return silence_error(run.get("run_id"), self._heartbeat, last)

    def _overdue(self, run: StartedRun, waiting: Waiting) -> RunTimeoutError:
        where = run.get("run_link") or f"run {run.get('run_id', '')}".strip()
        callback = (
            "If its last step failed to call back, look at its error, and whether the service reaches callback_base_url.\n"
            if waiting.digest
            else "It was given no callback URL.\n"
        )
        return RunTimeoutError(
            f"No result was reported within completion_timeout ({self._timeout}).",
            consequence=run_started(run.get("run_id")),
            next_step=(
                f"Look at {where}.\nIf it is still running, enter its run_id, then clear the task to wait for it again.\n"
                f"{how_to_enter(run_id=run.get('run_id'))}\nWithout that entry, a Clear starts another run.\n{callback}"
                "If it succeeded, mark the task as success. If it failed, clear the task to start another run."
            ),
        )

    def _located(self, error: RunTimeoutError, run: StartedRun) -> RunTimeoutError:
        error.locate(None, run.get("flow_id"), run.get("run_id"))
        return error

    def _began(self, waiting: Waiting, *, asked: bool) -> Waiting:
        if not waiting.digest:
            self._log.warning(
                "The run was given no callback URL: it was started before the task waited, or a person entered it. "
                "Only an answer under Required Actions ends the wait."
            )
        began = self._record.began(waiting, asked=asked)
        self._since = began.since
        if not waiting.since:
            self._record.telemetry.count("waits.started")
        return began

    def _poll(self, run: StartedRun, waiting: Waiting) -> StartedRun:
        """Wait in this process: outside a scheduler, nobody would wake a parked task."""
        waiting = self._began(waiting, asked=False)
        self._log.info(
            "Waiting for the end of run %s in this process.", one_line(run.get("run_id", "(unknown id)"))
        )
        while True:
            if answer := self._record.answer(waiting.digest):
                return self.settle(run, answer)
            if self._left(waiting) <= timedelta() or self._silence_left(waiting) <= timedelta():
                return self._end_late(run, waiting)
            if self._retrier.is_ended():
                error = RunTimeoutError(
                    "The task was ended before anybody said how the run ended.",
                    consequence=run_started(run.get("run_id")),
                )
                raise self._located(error, run)
            run = self._claimed(run, waiting.digest)
            time.sleep(POLL_INTERVAL)

    def _shown(self, answer: Answer, by: str) -> Answer:
        try:
            with self._hook:
                return answer._replace(
                    result=self._redacted(answer.result), message=self._redacted(answer.message)
                )
        except Exception as error:
            why = error.message if isinstance(error, WorkflowAutomationError) else error
            raise ResultUnreadableError(
                f"{by} said that the run {_ended(answer)}, but the connection cannot be used: {why}",
                next_step="What was said is stored. Once the connection works, the next try returns it.",
            ) from error

    def _redacted(self, value: Any) -> Any:
        """Return a value of the flow's, or a note instead if it reveals a secret."""
        if value is None:
            return None
        text = value if isinstance(value, str) else json.dumps(value)
        shown = self._hook.get_conn().redact(text)
        return value if shown == text else shown


def _of_person(reply: Reply) -> Answer:
    status: Status = "success" if reply.option == SUCCEEDED else "failed"
    result, message = reply.fields.get("result"), reply.fields.get("message")
    with suppress(ValueError, RecursionError):  # what is not JSON is text
        return Answer.read(
            json.dumps(
                {"status": status, "result": json.loads(result or "null"), "message": message}
            ).encode()
        )
    return Answer(status, result, message)


def _ended(answer: Answer) -> str:
    return "succeeded" if answer.status == "success" else "failed"
