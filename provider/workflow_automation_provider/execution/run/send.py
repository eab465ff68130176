"""
Send one start: record it, send its request, and record what the response said.

A task that is killed in between leaves a start without an outcome. What then happens, the next try
decides: see :mod:`~.start_decision`.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    ConnectionUnusableError,
    NotSentError,
    RunTimeoutError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.record.callback import MARGIN
from workflow_automation_provider.execution.record.entries import Outcome, Start, run_result
from workflow_automation_provider.execution.record.start_decision import KnownStart
from workflow_automation_provider.execution.retry import LEFT_TO_AIRFLOW
from workflow_automation_provider.execution.run.claim_wait import revoke, wait_for_claim
from workflow_automation_provider.wording import one_line, run_text

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.execution.run.tools import RunTools

# An attempt after that would give its run a URL that expires before the wait for it ends: the next
# try signs another.
_LONGEST = (MARGIN - timedelta(minutes=2)).total_seconds()

REVOKED = "A run of it that claims its start from now on is told to stop."


class StartSender:
    """
    The sending of one start.

    :param request: that of the start
    """

    def __init__(self, tools: RunTools, request: Request, start: Start) -> None:
        self._tools = tools
        self._request = request
        self._start = start
        # Whether the last byte of a request was sent, and no response has said that it did nothing.
        self._may_have_started = False

    def send(self, before: KnownStart | None) -> KnownStart:
        """
        Record the start, send its request, and record its outcome.

        :param before: what is known of the start before, None if there is none
        :return: what is known of the start, which has a run
        :raises WorkflowAutomationError: if no run was started, or it is unknown whether one was
        """
        if self._tools.retrier.is_ended():
            raise NotSentError(f"{self._request.title} was not sent: the task was ended.")

        self._log_start()
        try:
            self._tools.record.write_start(self._start)
            if not self._tools.record.may_send(self._start, before):
                raise NotSentError(
                    f"{self._request.title} was not sent: Airflow no longer runs this try, or has "
                    "lost its record."
                )

            longest = _LONGEST if self._start.mailbox else math.inf
            run = self._tools.retrier.send(self._send_request, longest=longest)
        except WorkflowAutomationError as error:
            return self._after_error(error)
        except BaseException as error:
            # Such as the task's execution_timeout, or an error of the store.
            self._after_interruption(error)
            raise

        return self._after_response(run)

    def _log_start(self) -> None:
        """
        Log what is about to be sent, before it is recorded.

        If the task is killed in its last try, no later try reports the start: only these lines do.
        """
        start = self._start
        self._tools.log.info(
            "Triggering the flow %s via connection %s.",
            start.flow_id or "of the API key",
            start.conn_id,
        )
        if start.callback_url:
            self._tools.log.info("Its run calls Airflow at %s.", start.callback_url)
        if start.mailbox:
            self._tools.log.info("Its run writes its end to %s.", start.mailbox)

        self._tools.log.info(
            "If the log ends here, the task was killed, and a run may have been started."
        )

    def _send_request(self) -> Run:
        """Send the request, unless the task was ended, which has stopped its hook."""
        try:
            client = self._tools.hook.get_conn()
            return client.trigger(self._request, before_last_byte=self._before_last_byte)
        except WorkflowAutomationError as error:
            self._may_have_started = error.accepted is not Accepted.NO
            raise

    def _before_last_byte(self) -> None:
        self._may_have_started = True

    # The outcome --------------------------------------------------------------------------------

    def _after_response(self, run: Run) -> KnownStart:
        """Record a run that was started, and return what is known of it."""
        response = None
        if run.run_id is None:
            response = run.response
            self._tools.log.warning(
                "Started a run, but the response has no run_id. Find it in the workflow's list of "
                "runs: %s",
                one_line(run.run_link or json.dumps(run.response)),
            )
        else:
            self._tools.log.info(
                "Started run %s: %s",
                one_line(run.run_id),
                one_line(run.run_link or "no run_link"),
            )

        started = run_result(run.run_id, run.run_link, run.flow_id, response)
        outcome = Outcome(status="started", at=datetime.now(UTC), run=started)
        is_recorded = self._write_outcome(outcome)

        if not is_recorded and self._start.wait_for_completion:
            # A task that waits is continued by its record alone: by what the run has reported.
            error = UnidentifiedError(
                "The run could not be recorded, so nothing can wait for its end.",
                consequence=f"{run_text(run.run_id)} was started.",
                run_id=run.run_id,
            )
            return self._after_error(error, outcome)

        known = KnownStart(start=self._start, outcome=outcome)
        if self._start.token_hash is None:
            return known

        # A proxy may have sent the request twice, and returned the run that is told to stop.
        try:
            return self._tools.record.look(known)
        except Exception:
            self._tools.log.warning("Whether another run has claimed is unknown.", exc_info=True)
            return known

    def _after_error(
        self, error: WorkflowAutomationError, outcome: Outcome | None = None
    ) -> KnownStart:
        """
        Record what the response said; return what is known of the run, if one has begun anyway.

        If no later try would do it, the token is revoked: until then, even the run of a rejected
        request can claim.

        :param outcome: the one that could not be recorded
        :raises WorkflowAutomationError: if no run has begun
        """
        if outcome is None:
            outcome = _outcome_of(error)
            if outcome:
                self._write_outcome(outcome)

        if self._start.token_hash is None:
            raise error

        try:
            known = self._settled(KnownStart(start=self._start, outcome=outcome), error)
        except (ConnectionUnusableError, NotSentError) as problem:
            # The next try looks again.
            raise problem.with_facts(
                consequence=f"{error.reason}\n{error.consequence}"
            ) from problem.__cause__

        if known and known.reports.has_begun:
            if error.accepted is Accepted.NO:
                self._tools.log.warning("The run has begun anyway: %s", error.reason)
            return known

        if known is None or error.accepted is Accepted.NO:
            raise error

        raise self._in_doubt(error, is_settled=known.is_settled)

    def _settled(self, known: KnownStart, error: WorkflowAutomationError) -> KnownStart | None:
        """
        Return what is known of a start without a usable response.

        If no later try would settle it, its token is revoked.

        :return: None if the store cannot tell
        :raises WorkflowAutomationError: if its mailbox cannot be read, or has what is not valid
        """
        is_unknown = error.accepted is Accepted.MAYBE
        may_send_again = is_unknown and self._tools.options.on_unknown_start != "fail"
        is_retried = may_send_again or isinstance(error, LEFT_TO_AIRFLOW)
        # Without a token that can be revoked, another try has nothing to do.
        has_next_try = is_retried and not self._tools.record.is_last_try
        is_left_to_next_try = not self._start.can_call or has_next_try
        try:
            if error.accepted is Accepted.NO:
                known = self._tools.record.look(known)
            else:
                known = wait_for_claim(self._tools, known)
            if known.reports.has_begun or is_left_to_next_try or self._tools.retrier.is_ended():
                return known
            return revoke(self._tools, known)
        except (ConnectionUnusableError, NotSentError, RunTimeoutError):
            raise
        except Exception:
            self._tools.log.exception("Whether a run has claimed this start could not be settled.")
            return None

    def _in_doubt(
        self, error: WorkflowAutomationError, *, is_settled: bool
    ) -> WorkflowAutomationError:
        """Return the error for a start of which no run has reported anything."""
        if not is_settled:
            return error

        is_unknown = error.accepted is Accepted.MAYBE
        if is_unknown and self._tools.options.on_unknown_start == "claim":
            return error.with_facts(code=Code.START_REVOKED, consequence="")
        return error.with_facts(next_step=f"{error.next_step}\n{REVOKED}".strip())

    def _after_interruption(self, error: BaseException) -> None:
        """Record that nothing was started, or log that a run may have been."""
        if not self._may_have_started:
            self._write_outcome(Outcome(status="not started", at=datetime.now(UTC)))
            return

        self._tools.log.warning(
            "Interrupted by %s while waiting for the response. A run may have been started.",
            type(error).__name__,
        )

    def _write_outcome(self, outcome: Outcome) -> bool:
        """
        Record the outcome of the request; return whether it could be recorded.

        A failure is only logged: the request has had its effect.
        """
        try:
            self._tools.record.write_outcome(self._start, outcome)
        except BaseException as error:
            # Again, even if the task was ended: a later try must know.
            is_recorded = self._write_outcome_again(outcome)
            if not isinstance(error, Exception):
                raise
            return is_recorded

        return True

    def _write_outcome_again(self, outcome: Outcome) -> bool:
        try:
            self._tools.record.write_outcome(self._start, outcome)
        except Exception:
            self._tools.log.exception(
                "The outcome of the request could not be recorded: a later try reports that a run "
                "may have been started."
            )
            return False

        return True


def _outcome_of(error: WorkflowAutomationError) -> Outcome | None:
    """Return what an error has said of a start, None if that is unknown."""
    now = datetime.now(UTC)
    if error.accepted is Accepted.NO:
        return Outcome(status="not started", at=now)
    if error.accepted is Accepted.YES:
        return Outcome(status="unidentified", at=now, reason=error.reason)
    return None
