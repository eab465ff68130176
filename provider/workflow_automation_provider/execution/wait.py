"""
Wait for the end of a run, which the flow itself tells by its last step, or a person who looked.

The service tells nothing of a run. So the flow is given a URL of Airflow among its inputs, which holds a token
for this run alone, and the task parks until the flow has called it:

1. **Open**: make the token and record its hash, before *starting* is recorded and the request is sent.
2. **Look** whether there is an answer: after the start, after asking, and whenever the task continues.
3. **Ask**: list the wait under **Required Actions**, once per try.
4. **Park**, without a worker, until the endpoint wakes the task, a person answers, or the next check is due.

:mod:`~workflow_automation_provider.execution.wait_state` has what is kept.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.configuration import conf

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.client.protocol import is_loopback, parse_base_url
from workflow_automation_provider.exceptions import (
    InvalidRequestError,
    OutcomeUnknownError,
    RunFailedError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution import parking
from workflow_automation_provider.execution.callback import (
    OPTIONS,
    PATH,
    Answer,
    digest_of,
    new_token,
)
from workflow_automation_provider.execution.parking import Question, Reply
from workflow_automation_provider.failures import how_to_enter, run_started
from workflow_automation_provider.hooks.connection import CALLBACK_BASE_URL

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.callback import Status
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.start_record import StartedRun, StartEntry
    from workflow_automation_provider.execution.wait_state import Waiting, WaitRecord
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

__all__ = ["ANSWER_FIELDS", "FAILED", "SUCCEEDED", "CompletionWait", "ResultUnreadableError"]

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
# the task's last look and its park wakes nobody.
_FIRST_CHECK, _LONGEST_CHECK = timedelta(seconds=15), timedelta(hours=6)

# How often a task that cannot be parked looks for an answer, in seconds.
_POLL = 0.5


class ResultUnreadableError(InvalidRequestError):
    """The run has ended, but its result cannot be redacted: the connection is broken. A later try returns the result."""


class CompletionWait:
    """
    The wait of one task for the end of its run.

    :param record: what the task instance knows about it
    :param retrier: its logger, and whether Airflow ended the task
    :param callback_input: name of the input that holds the URL
    :param timeout: how long to wait
    """

    def __init__(
        self,
        record: WaitRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        context: Context,
        *,
        callback_input: str,
        timeout: timedelta,
    ) -> None:
        self._record = record
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._context = context
        self._input = callback_input
        self._timeout = timeout
        self._since: datetime | None = None

    def check(self) -> None:
        """
        Check that Airflow can wait, before anything else is done.

        :raises InvalidRequestError: if it cannot
        """
        if not parking.can_park(self._context):
            raise InvalidRequestError(
                "wait_for_completion needs Airflow 3.3 or newer, which can park a task and keeps its state.",
                next_step="Upgrade Airflow, or leave wait_for_completion out.",
            )

    def open(self, inputs: Mapping[str, Any], prepare: Callable[[Mapping[str, Any]], Request]) -> Request:
        """
        Build the request with the URL for the flow's last step, and record what its token stands for.

        :param prepare: builds the request, given the inputs
        :raises InvalidRequestError: if there is no usable address of Airflow's API server, or the inputs have
            one of this name already
        :raises OutcomeUnknownError: if the flow of an earlier start has called back: then it started a run
        """
        if not isinstance(inputs, Mapping):
            return prepare(inputs)  # which says what is wrong with them
        if self._input in inputs:
            raise InvalidRequestError(
                f"inputs already has {self._input!r}, the name of the callback URL: pass another callback_input."
            )
        base = self._base_url()
        token = new_token(self._context["ti"].id)
        self._hook.redact_also(token)
        request = prepare({**inputs, self._input: f"{base}{PATH}?token={token}"})
        if not self._record.open(digest_of(token)):
            raise OutcomeUnknownError("The flow of an earlier start has called back.")
        return request

    def _base_url(self) -> str:
        extra = self._hook.extra
        try:
            base, name = extra.callback_base_url, "The connection's callback_base_url"
            if not base:
                name = "[api] base_url"
                base = parse_base_url(
                    conf.get("api", "base_url", fallback=None) or "",
                    allow_http=extra.allow_http,
                    kind=replace(CALLBACK_BASE_URL, name=name),
                )
            host = urlsplit(base).hostname or ""
            if is_loopback(host) and not is_loopback(urlsplit(self._hook.get_conn().base_url).hostname or ""):
                raise InvalidRequestError(
                    f"{name} is {host}, which only this machine reaches: the flow could not call back."
                )
        except InvalidRequestError as error:
            raise InvalidRequestError(
                error.message,
                next_step=(
                    "Set the connection's extra callback_base_url to the URL at which the service reaches Airflow's API "
                    f"server, such as {CALLBACK_BASE_URL.example}."
                ),
            ) from None
        return base

    def supplied(self, earlier: StartEntry | None, run: StartedRun) -> None:
        """
        Prepare to wait for a run that a person entered.

        :param earlier: what the task knew. If it did not know its run, or if that is the one that was entered, its
            token counts; any other run was given no token, and only a person can tell how it ended
        """
        if earlier and earlier.run.get("run_id") in (None, run["run_id"]):
            self._record.keep_token_across_clear()
        else:
            self._record.forget_token()

    def has_answer(self) -> bool:
        """Return whether the flow has called back, whatever is known of the start of its run."""
        return self._record.answer(self._record.read().digest) is not None

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
        :raises RunTimeoutError: if nobody told in time
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
            raise
        self._count_end("succeeded")
        return ended

    def _count_end(self, outcome: str) -> None:
        telemetry = self._record.telemetry
        telemetry.count(f"waits.{outcome}")
        if self._since:
            telemetry.time("waits.duration", (datetime.now(UTC) - self._since).total_seconds())

    def _wait(self, run: StartedRun, reply: Reply, checks: int, waiting: Waiting) -> StartedRun:
        if answer := self._record.answer(waiting.digest):
            return self.settle(run, answer)
        if reply.option in (SUCCEEDED, FAILED):
            if answer := self._record.close(waiting.digest):
                return self.settle(run, answer)
            answer = _of_person(reply)
            self._log.info("%s answered that the run %s.", reply.by, _ended(answer))
            self._record.answered(waiting.digest, answer)
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
        if left <= timedelta():
            return self._end_late(run, waiting)
        check = min(left, _LONGEST_CHECK, _FIRST_CHECK * 4 ** min(checks, 10))
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
        shown = self._shown(answer, by)
        if shown != answer:
            # The endpoint does not know the secrets, and what it stored can be read in Airflow.
            with suppress(Exception):
                self._record.answered(self._record.read().digest, shown)
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
        if not run:
            self._log.warning(
                "The run_id is unknown: it was lost with the response, or with the try that started it."
            )
        self._log.info("%s", f"{by} said that the run succeeded. {one_line(message)}".strip())
        if result is None:
            return run
        return {**run, "result": result}

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
        raise self._overdue(run, waiting)

    def _overdue(self, run: StartedRun, waiting: Waiting) -> RunTimeoutError:
        where = run.get("run_link") or f"run {run.get('run_id', '')}".strip()
        callback = (
            "If its last step failed to call back, look at its error, and whether the service reaches callback_base_url.\n"
            if waiting.digest
            else "It was given no callback URL.\n"
        )
        error = RunTimeoutError(
            f"No result was reported within completion_timeout ({self._timeout}).",
            consequence=run_started(run.get("run_id")),
            next_step=(
                f"Look at {where}.\nIf it is still running, enter its run_id, then clear the task to wait for it again.\n"
                f"{how_to_enter(run_id=run.get('run_id'))}\nWithout that entry, a Clear starts another run.\n{callback}"
                "If it succeeded, mark the task as success. If it failed, clear the task to start another run."
            ),
        )
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
            if self._left(waiting) <= timedelta():
                return self._end_late(run, waiting)
            if self._retrier.is_ended():
                error = RunTimeoutError(
                    "The task was ended before anybody said how the run ended.",
                    consequence=run_started(run.get("run_id")),
                )
                error.locate(None, run.get("flow_id"), run.get("run_id"))
                raise error
            time.sleep(_POLL)

    def _shown(self, answer: Answer, by: str) -> Answer:
        try:
            with self._hook:
                return replace(
                    answer, result=self._redacted(answer.result), message=self._redacted(answer.message)
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
