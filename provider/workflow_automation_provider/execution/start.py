"""
Start a run at most once: for operators and TaskFlow.

1. **Read** the last start; :mod:`~.ledger` decides whether to return its run, to report it, or to send.
2. **Close** a start in doubt whose run was given a URL, before anything else is decided.
3. **Prepare** the whole request, so that errors in it are found before anything is recorded or sent.
4. **Record** the start. From here on, a later try knows that a run may exist.
5. **Send** the request, again only while nothing was started, and record the outcome.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RunFailedError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.ledger import (
    Asked,
    Decision,
    Facts,
    Outcome,
    RunResult,
    Spoken,
    decide,
    run_result,
    why_not,
)
from workflow_automation_provider.execution.retry import LEFT_TO_AIRFLOW
from workflow_automation_provider.execution.wait import (
    POLL_INTERVAL,
    check_entered,
    not_continued,
    with_said,
)

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.execution.ledger import Start
    from workflow_automation_provider.execution.record import StartRecord
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

OnUnknownStart = Literal["fail", "start_again"]
"""What to do if it is unknown whether a run was started; operators can also have the run ``"claim"`` it."""

_LOOK = "Look in the workflow's list of runs."
_CLOSED = "A run of it that claims its start from now on is told to stop."


def request_digest(inputs: object, flow_id: object) -> str | None:
    """Return a hash of the request, None if its inputs cannot be encoded: to send them then fails."""
    from workflow_automation_provider.client.json_values import encode

    with contextlib.suppress(InvalidRequestError):
        return hashlib.sha256(encode("", [flow_id, inputs])).hexdigest()
    return None


class RunStarter:
    """
    Start the run of one record, unless an earlier try did.

    :param record: what earlier tries recorded
    :param hook: sends the request
    :param retrier: how long to keep retrying while the service is busy or cannot be reached
    :param asked: what the task asks for
    :param claim_timeout: how long to wait for a claim, if ``on_unknown_start`` is ``"claim"``
    :param waits: whether the task waits for the end of the run
    """

    def __init__(
        self,
        record: StartRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        asked: Asked,
        *,
        claim_timeout: timedelta = timedelta(),
        waits: bool = False,
    ) -> None:
        self._record = record
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._asked = asked
        self._claims = asked.on_unknown_start == "claim"
        self._claim_timeout = claim_timeout
        self._waits = waits
        self.earlier: WorkflowAutomationError | None = None
        """What an earlier try left, as an error: one of this try must mention it if nothing was started."""
        self.facts: Facts
        """What is known of the start whose run is returned."""
        self._start: Start
        self._request: Request
        # Whether the last byte of a request of unknown outcome was sent.
        self._may_exist = False

    def start(self, prepare: Callable[[], tuple[Request, str | None]]) -> RunResult:
        """
        Start the run, or return the one that an earlier try started, or that a person entered.

        :param prepare: returns the request, and the hash of the run's token, None if it has none; called
            only if a run is to be started
        :raises WorkflowAutomationError: if no run was started, or it is unknown whether one was
        """
        facts = self._record.last_start()
        if facts and facts.counts(self._asked.max_tries):
            self.earlier = _earlier(facts)
        entered = self._record.entered()
        decision = decide(facts, self._asked, entered["run_id"] if entered else None)
        if entered and decision is Decision.ENTER:
            return self._enter(entered, facts)
        if facts:
            if decision is Decision.CLOSE:
                if facts.text:
                    self._log.warning(_sentence(facts.text))
                facts = self._await_claim_or_close(facts)
                decision = decide(facts, self._asked)
            if decision is Decision.RETURN:
                run = self._return(facts)
                if entered:
                    self._record.forget_entered()
                return run
            if decision is not Decision.SEND:
                raise self._reported(decision, facts)
            self._log_earlier(facts)
        self._request, token = prepare()
        return self._send_once(token, facts)

    # An earlier start --------------------------------------------------------------------------------------

    def _enter(self, run: RunResult, last: Facts | None) -> RunResult:
        """Continue with the run that a person entered, if it may be that of the last start."""
        if last and last.start.token:
            _, *others = self._record.all_starts()
            reason = why_not(run["run_id"], last, others)
        else:
            reason = "nobody can tell its end, since it was given no URL" if self._waits else None
        if reason:
            raise not_continued(run["run_id"], reason)
        self._log.info(
            "Returning run %s, which was entered in the task's state store, not starting another.",
            one_line(run["run_id"]),
        )
        return self._return(self._record.enter(run, last, waits=self._waits))

    def _return(self, facts: Facts) -> RunResult:
        """
        Return the run of a start.

        :raises WorkflowAutomationError: if it was told to stop, or another one has the task
        """
        start, spoken = facts.start, facts.spoken
        known: RunResult = start.run or (facts.outcome and facts.outcome.run) or {}
        if start.run:
            check_entered(start.run["run_id"], spoken)
        if spoken.stopped:
            raise RunFailedError("The run was told to stop.", run_id=known.get("run_id"))
        self.facts = facts
        if start.run is None and self.earlier and start.place[0] != self._record.try_number:
            self._log.info(
                "%s Returning that run, not starting another.", _sentence(self.earlier.message)
            )
        if start.request and self._asked.request and start.request != self._asked.request:
            self._log.warning(
                "The inputs or the flow_id differ from those of try %d, which its run has.",
                start.try_number,
            )
        run: RunResult = {"flow_id": start.flow_id, **known} if start.flow_id else {**known}
        if not spoken.has_begun:
            return run
        run = with_said(run, spoken, self._hook)
        if spoken.claim:
            self._log.info(
                "Run %s has claimed this start.", one_line(run.get("run_id", "(unknown id)"))
            )
        if "run_id" not in run and "response" not in run:
            self._log.warning(
                "The run_id is unknown: it was lost with the response, or with the try that started it, and the run did "
                "not say it."
            )
        return run

    def _reported(self, decision: Decision, facts: Facts) -> WorkflowAutomationError:
        """Return the error for a start after which nothing may be sent."""
        if decision is Decision.CHANGED:
            # Such as names by position in a list that changed: the recorded run is that of another request.
            return InvalidRequestError(
                f"{self._record.name!r} has other inputs or another flow_id than in try {facts.start.try_number}.",
                consequence="Nothing was sent for it in this try.",
                next_step="Inside a task, use a name for each start that means the same in every try.",
            )
        text = _sentence(facts.text)
        closed = _CLOSED if facts.is_closed else ""
        error: WorkflowAutomationError = OutcomeUnknownError(text, consequence=_LOOK)
        if facts.outcome and decision is Decision.UNIDENTIFIED:
            error = UnidentifiedError(facts.outcome.reason, consequence=f"{text} {_LOOK}")
        return error.with_facts(next_step=closed)

    def _log_earlier(self, facts: Facts) -> None:
        """Log why another run is started, where an earlier try may have started one."""
        why = f"on_unknown_start is {self._asked.on_unknown_start!r}"
        if not facts.counts(self._asked.max_tries):
            why = "the task has been cleared since"
        elif facts.spoken.stopped:
            why = "its run was told to stop"
        elif facts.spoken.end:
            why = "its run failed"
        elif self._claims:
            why = "a run that has not claimed its start in time, or was told to stop, can no longer go on"
        if facts.text:
            self._log.warning("%s Starting another run: %s.", _sentence(facts.text), why)

    def _await_claim_or_close(
        self, facts: Facts, *, looks: bool = True, closes: bool = True
    ) -> Facts:
        """
        Wait up to ``claim_timeout`` for a claim of a start; close the start, unless its run has begun.

        :param looks: whether to wait for a claim; otherwise, only the close looks
        :param closes: whether to close the start; otherwise, a later try does
        :raises Exception: if it is not certain that the start is closed
        """
        start = facts.start
        assert start.token  # noqa: S101
        # Another worker's clock may be ahead.
        timeout = self._claim_timeout if self._claims and looks else timedelta()
        until = min(start.at, datetime.now(UTC)) + timeout
        is_logged = False
        while not (facts.spoken.has_begun or facts.spoken.stopped or self._retrier.is_ended()):
            left = (until - datetime.now(UTC)).total_seconds()
            if left <= 0:
                break
            if not is_logged:
                # If this try is killed while it waits, and is the last one, the log ends with this line.
                self._log.info(
                    "A run may have been started. Waiting up to %.0f s for one to claim this start.",
                    left,
                )
                is_logged = True
            time.sleep(min(POLL_INTERVAL, left))
            facts = facts._replace(spoken=self._record.spoken(start.token))
        if facts.spoken.has_begun or not closes:
            return facts
        closed = self._record.close(facts)
        if not closed.spoken.has_begun:
            self._log.info(
                "No run has claimed this start; one that does so from now on is told to stop."
            )
        return closed

    # Send --------------------------------------------------------------------------------------------------

    def _send_once(self, token: str | None, before: Facts | None) -> RunResult:
        """
        Record a start, send it, and record its outcome.

        :param before: the start before it, None if there is none
        """
        request = self._request
        if self._retrier.is_ended():
            raise NotSentError(f"{request.title} was not sent: the task was ended.")
        start = self._start = self._record.new_start(
            request=self._asked.request,
            token=token,
            waits=self._waits,
            conn_id=self._hook.workflow_automation_conn_id,
            flow_id=request.flow_id,
            earlier=before.text if before and before.counts(self._asked.max_tries) else "",
        )
        # Logged before the record is written: if the task is killed in its last try, no other try reports
        # the start, and these lines are in the log by then.
        flow = f"flow {start.flow_id}" if start.flow_id else "the flow of the API key"
        self._log.info("Triggering %s via connection %s.", flow, start.conn_id)
        self._log.info("If no later line gives its outcome, a run may have been started.")
        try:
            self._record.write_start(start)
            if not self._record.may_send(start, before):
                raise NotSentError(
                    f"{request.title} was not sent: Airflow no longer runs this try, or has lost its record."
                )
            run = self._retrier.send(self._send)
        except WorkflowAutomationError as error:
            return self._unnamed(error)
        except (
            BaseException
        ) as error:  # such as the task's execution_timeout, or an error of the store
            if not self._may_exist:
                self._write_outcome("nothing")
            else:
                self._log.warning(
                    "Interrupted by %s while waiting for the response. A run may have been started.",
                    type(error).__name__,
                )
            raise
        return self._started(run)

    def _send(self) -> Run:
        """Send the request, unless the task was ended, which has stopped its hook."""
        try:
            return cast(
                "Run", self._hook.get_conn().send(self._request, before_last_byte=self._hand_over)
            )
        except WorkflowAutomationError as error:
            self._may_exist = error.accepted is not Accepted.NO
            raise

    def _hand_over(self) -> None:
        self._may_exist = True

    def _started(self, run: Run) -> RunResult:
        """Record and return a run that was started."""
        if run.run_id is None:
            self._log.warning(
                "Started a run, but the response has no run_id. Find it in the workflow's list of runs: %s",
                one_line(run.run_link or json.dumps(run.response)),
            )
        else:
            self._log.info(
                "Started run %s: %s", one_line(run.run_id), one_line(run.run_link or "no run_link")
            )
        response = run.response if run.run_id is None else None
        started = run_result(run.run_id, run.run_link, run.flow_id, response)
        outcome = self._write_outcome("run", run=started)
        spoken = Spoken()
        if self._claims and self._start.token:
            # A proxy may have sent the request twice, and returned the run that is told to stop.
            spoken = self._record.spoken(self._start.token)
        return self._return(Facts(start=self._start, outcome=outcome, spoken=spoken))

    def _unnamed(self, error: WorkflowAutomationError) -> RunResult:
        """
        Record what the response said; return the run that has begun, if one has.

        The start is closed if no later try would do it: until then, also the run of a rejected request can claim.

        :raises WorkflowAutomationError: if no run has begun
        """
        start, is_unknown = self._start, error.accepted is Accepted.MAYBE
        is_nothing = error.accepted is Accepted.NO
        if is_nothing:
            self._write_outcome("nothing")
        elif not is_unknown:
            self._write_outcome("unidentified", reason=error.reason)
        if start.token is None:
            raise error
        is_left = is_unknown and self._asked.on_unknown_start != "fail"
        is_final = self._record.is_last_try or not (is_left or isinstance(error, LEFT_TO_AIRFLOW))
        try:
            facts = Facts(start=start, spoken=self._record.spoken(start.token))
            closes = is_final and not self._retrier.is_ended()
            facts = self._await_claim_or_close(facts, looks=not is_nothing, closes=closes)
        except Exception:
            self._log.exception("Whether a run has claimed this start could not be settled.")
            raise error from None
        if facts.spoken.has_begun:
            if is_nothing:
                self._log.warning("The run has begun anyway: %s", error.reason)
            return self._return(facts)
        if is_nothing:
            raise error
        if not (is_unknown and self._claims):
            closed = f"{error.next_step}\n{_CLOSED}".strip()
            raise error.with_facts(next_step=closed) if facts.is_closed else error
        waited = f"No run claimed this start within claim_timeout ({self._claim_timeout})."
        if not facts.is_closed:
            raise error.with_facts(next_step=f"{waited} One still can: wait for the next try.")
        raise error.with_facts(code=Code.START_REVOKED, consequence="", next_step=waited)

    def _write_outcome(
        self, kind: Literal["run", "nothing", "unidentified"], **fields: Any
    ) -> Outcome:
        """Record the outcome of the request. A failure is only logged: the request has had its effect."""
        outcome = Outcome(kind=kind, at=datetime.now(UTC), **fields)
        try:
            self._record.write_outcome(self._start, outcome)
        except BaseException as error:
            try:
                # Even if the task was ended: a later try must know.
                self._record.write_outcome(self._start, outcome)
            except Exception:
                self._log.exception(
                    "What the request ended in could not be recorded: a later try reports that a run may "
                    "have been started."
                )
            if not isinstance(error, Exception):
                raise
        return outcome


def _sentence(text: str) -> str:
    """Return the text of :class:`~.ledger.Facts` as a sentence: it begins with a small "try"."""
    return f"{text[:1].upper()}{text[1:]}"


def _earlier(facts: Facts) -> WorkflowAutomationError | None:
    outcome, text = facts.outcome, facts.text
    if not text:
        return None
    if outcome and outcome.run:
        return UnidentifiedError(text, run_id=outcome.run.get("run_id"))
    kind = UnidentifiedError if outcome and outcome.kind == "unidentified" else OutcomeUnknownError
    return kind(f"{text} {_LOOK}")
