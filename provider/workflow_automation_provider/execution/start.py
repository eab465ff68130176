"""
Start a run at most once: the driver of a :class:`~.ledger.Ledger` of one item, for operators, TaskFlow and the notifier.

1. **Read** what an earlier try wrote; the ledger decides whether to return its run, to report it, or to send.
2. **Prepare** the whole request, so that errors in it are found before anything is recorded or sent.
3. **Open**: record *starting*. From here on, a later try knows that a run may exist.
4. **Send** the request, once, and **settle** what it ended in: record the run, or clear the record if no run can have been
   started; the request may then be retried.

Where the run is given a URL, it claims its start by it (:mod:`~.claim`), and each send has a token of its own. What is in
doubt is settled by a claim; before anything else is sent, and before the task fails for good, the token is revoked.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.client.outcome import (
    Busy,
    Failure,
    NotSent,
    Outcome,
    Reason,
    Rejected,
    Started,
    Unidentified,
    Unknown,
)
from workflow_automation_provider.client.protocol import Run
from workflow_automation_provider.exceptions import (
    Accepted,
    InvalidRequestError,
)
from workflow_automation_provider.execution.earlier_start import earlier_run
from workflow_automation_provider.execution.ledger import IN_DOUBT, State
from workflow_automation_provider.execution.start_record import started_run
from workflow_automation_provider.execution.telemetry import metric_of
from workflow_automation_provider.failures import (
    PreviousTry,
    error_class,
    reason_of,
    request_error,
    revoked_error,
    unclaimed_error,
    unsettled_error,
)

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.callback_url import CallbackUrl
    from workflow_automation_provider.execution.claim import Claim, StartClaims
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.start_record import StartedRun, StartEntry, StartRecord
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

OnUnknownStart = Literal["fail", "start_again"]
"""What to do if it is unknown whether a run was started; operators can also ``"ask"``, or have the run ``"claim"`` it."""

_UNSETTLED = "Whether a run has claimed this start could not be settled."

# What a request ended in, as the ledger has it; otherwise, it was not sent.
_STATES: dict[type[Outcome], State] = {
    Started: State.STARTED,
    Unidentified: State.UNIDENTIFIED,
    Rejected: State.REJECTED,
    Busy: State.REJECTED,
    Unknown: State.UNKNOWN,
}


def request_digest(inputs: object, flow_id: object) -> str:
    """
    Return a hash that identifies the request.

    :raises InvalidRequestError: if ``inputs`` cannot be encoded as JSON
    """
    from workflow_automation_provider.client.json_values import encode

    return hashlib.sha256(
        f"{flow_id} ".encode(errors="surrogatepass") + encode("inputs", inputs)
    ).hexdigest()[:32]


class RunStarter:
    """
    Start the run of one record, unless an earlier try did.

    :param record: what the task instance knows about the run
    :param hook: sends the request; closed afterwards
    :param retrier: how long to keep retrying while the service is busy or cannot be reached
    :param claims: what the runs of the task say of their start, None if they were never asked
    :param url: makes the request with a URL for the run, once ``prepare`` has; None if the run gets none
    """

    def __init__(
        self,
        record: StartRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        *,
        on_unknown_start: OnUnknownStart | Literal["ask", "claim"],
        claims: StartClaims | None = None,
        url: CallbackUrl | None = None,
    ) -> None:
        self._record = record
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._telemetry = record.telemetry
        self._on_unknown = on_unknown_start
        self._claims = claims
        self._url = url
        # None if its token was revoked: another send needs another one.
        self._request: Request | None
        self._ledger = record.ledger(
            start_again=on_unknown_start == "start_again",
            claims=on_unknown_start == "claim",
            resends_rejected=True,
        )
        self.previous: PreviousTry | None = None
        """What an earlier try did, once it is read: an error that says nothing was started must mention it."""
        self._run: StartedRun
        self.handed_over = False
        """Whether the last byte of a request was sent whose outcome is not known: a run may have been started."""

    def start(
        self,
        prepare: Callable[[], Request],
        *,
        on_supplied: Callable[[str | None], None] | None = None,
        invalid: InvalidRequestError | None = None,
    ) -> StartedRun:
        """
        Start the run, or return the one that an earlier try started, or that a person entered.

        :param prepare: builds the request; called only if a run is to be started
        :param on_supplied: called before a run that a person entered is recorded, with the hash of its token, None if it
            has none
        :param invalid: an error in the arguments, raised once it is known what an earlier try did
        :raises WorkflowAutomationError: if no run was started, or it is unknown whether one was
        """
        entry = self._record.read()
        if entry:
            accepted = Accepted.MAYBE if entry.state in IN_DOUBT else Accepted.YES
            self.previous = PreviousTry(accepted, entry.text)
        may_be_supplied = self._record.outlives_try and (entry or self._record.is_later_try)
        # Also where the task was cleared: who enters a run wants to continue with it, not to start another.
        if may_be_supplied and not invalid and (supplied := self._record.supplied_run()):
            self._keep_token(entry, supplied)
            if on_supplied:
                on_supplied(self._record.token)
            return self._adopt_supplied(supplied)
        if entry and not self._ledger.read(entry.for_ledger()):
            self.previous = None
        if invalid:
            raise invalid
        if entry and entry.token and self._claims:
            self._record.token = entry.token
            if (claim := self._settle_earlier(entry, self._claims)) is not None:
                return self._adopt_claim(claim)
        if entry:
            run = earlier_run(entry, self._record, self._ledger, self._log, self._on_unknown)
            if run is not None:
                return run
        if not self._record.outlives_try:
            self._log.warning(
                "Task state does not persist across tries before Airflow 3.3: if this try fails after it triggered "
                "the flow, the next may start a second run."
            )
        return self.send(prepare)

    def send(self, prepare: Callable[[], Request]) -> StartedRun:
        """
        Start the run; the ledger must allow it.

        :param prepare: builds the request
        :raises WorkflowAutomationError: if no run was started, or it is unknown whether one was
        """
        try:
            with self._hook:
                self._request = prepare()
                outcome = self._retrier.send(
                    self._send, on_retry=lambda: self._telemetry.count("runs.retried")
                )
        finally:
            self._close_unsent()
        if not isinstance(outcome, Failure):
            return self._run
        error = request_error(outcome)
        if outcome.accepted is Accepted.NO or not self._url or not self._claims:
            raise error
        try:
            claim = self._claims.settle_doubt(self._ledger)
        except Exception:
            self._log.exception(_UNSETTLED)
            raise error from None
        if claim is not None:
            return self._adopt_claim(claim)
        if self._on_unknown == "claim":
            error = unclaimed_error(error, self._claims.timeout, is_revoked=self._ledger.token(0) is None)
        elif self._ledger.token(0) is None:
            error = revoked_error(error)
        raise error

    @property
    def token(self) -> str | None:
        """The hash of the token of the run that is known, None if it was given none."""
        return self._record.token

    def claimed(self, *, revokes: bool = False) -> StartedRun | None:
        """
        Return the run that has claimed the start of which a person was asked, None if none has.

        :param revokes: whether none may claim it any more, because the person says that there is none
        """
        entry = self._record.read()
        if entry is None or not entry.token or entry.state is State.STARTED or not self._claims:
            return None
        record = self._claims.record
        claim = record.revoke(entry.token) if revokes else record.said(entry.token)
        return None if claim is None else self._adopt_claim(claim)

    def _keep_token(self, entry: StartEntry | None, run: StartedRun) -> None:
        """Let a run that a person entered speak, if it may be that of an earlier try, also if there was a Clear since."""
        if not entry or not entry.token or not self._claims:
            return
        if entry.run.get("run_id") in (None, run["run_id"]):
            self._record.token = entry.token
            self._claims.record.reopen(entry.token)
        else:
            self._claims.record.forget(entry.token, entry.attempt.max_tries)

    def _close_unsent(self) -> None:
        """Delete the token of a request that was not sent."""
        token = self._ledger.token(0)
        if token and self._claims and self._ledger.state(0) is State.IDLE:
            with suppress(Exception):  # nobody was given it
                self._claims.record.close(token)

    def _adopt_claim(self, claim: Claim) -> StartedRun:
        """Record and return the run that claimed its start."""
        assert self._claims  # noqa: S101
        run = self._run = self._claims.run_of(claim)
        self._ledger.claimed(0, claim.token)
        self._record.token = self._ledger.token(0)
        try:
            self._record_started(run)
        except Exception:
            self._log.exception("The run that claimed this start could not be recorded.")
        self._telemetry.count("starts.claimed")
        return run

    def adopt(self, run: StartedRun) -> StartedRun:
        """Record and return a run that a person found, in place of starting one."""
        self._keep_token(self._record.read(), run)
        try:
            self._record_started(run)
        except Exception:
            self._log.exception("Run %s could not be recorded.", run["run_id"])
        return run

    def _adopt_supplied(self, run: StartedRun) -> StartedRun:
        self._log.info(
            "Returning run %s, which was entered in the task's state store, not starting another.",
            one_line(run["run_id"]),
        )
        self._record_started(run)
        self._record.consume_supplied_run()  # only once the run is recorded: a kill must not lose it
        return run

    def _settle_earlier(self, entry: StartEntry, claims: StartClaims) -> Claim | None:
        try:
            return claims.settle_earlier(entry, self._ledger)
        except Exception:
            # A run that is known must be able to speak.
            if self._ledger.was_cleared or entry.state is State.STARTED:
                raise
            self._log.exception(_UNSETTLED)  # the doubt is reported
            return None

    def _send(self) -> Outcome:
        if self._request is None:
            assert self._url  # noqa: S101
            self._request = self._url.next()
        request = self._request
        attributes = {
            "conn_id": self._hook.workflow_automation_conn_id,
            "flow_id": self._hook.flow_of(request),
        }
        self._record.target = attributes
        with self._telemetry.span("trigger", attributes) as known:
            outcome = self._send_once(request)
            if isinstance(outcome, Started):
                known["run_id"] = outcome.run.run_id
            elif isinstance(outcome, Failure):
                known["error"] = error_class(outcome).__name__
        return outcome

    def _send_once(self, request: Request) -> Outcome:
        """Send the request; the record is always written before it."""
        if self._retrier.is_ended():
            return NotSent(request=request, reason=Reason.STOPPED)
        # Logged before the record is written, which waits for a response from Airflow: by then these lines
        # are in the log, even if the task is killed in its last try, after which no other try reports it.
        self._log.info(
            "Triggering %s via connection %s.",
            f"flow {flow}" if (flow := self._hook.flow_of(request)) else "the flow of the API key",
            self._hook.workflow_automation_conn_id,
        )
        self._log.info("If no later line gives its outcome, a run may have been started.")
        # Opened before the write: whatever interrupts it, the ledger knows what to write then.
        is_repeated = self._ledger.token(0) is not None
        self._record.token = token = self._url.digest if self._url else None
        self._ledger.open(0, self._record.digest, token)
        try:
            if token and self._claims and not is_repeated:
                self._claims.record.open(token)
            self._record.starting()
            began = time.monotonic()
            outcome = self._hook.send_trigger(request, before_last_byte=self._hand_over)
            took = time.monotonic() - began
        # It is unknown what went wrong, and whether this process may still write the record.
        except Exception:
            raise
        except BaseException:  # such as the task's execution_timeout
            if self.handed_over:
                self._log.warning("Interrupted while waiting for the response. A run may have been started.")
            else:
                self._record_no_run(self._ledger.settle(0, State.IDLE))
            raise
        outcome = self._record_outcome(outcome)
        if metric := metric_of(outcome):
            self._telemetry.count(metric)
        if getattr(outcome, "status", 0) is not None:
            self._telemetry.time("runs.response_time", took)
        return outcome

    def _hand_over(self) -> None:
        from workflow_automation_provider.client.deadline import StoppedError

        self.handed_over = True
        if self._retrier.is_ended():
            raise StoppedError

    def _record_outcome(self, outcome: Outcome) -> Outcome:
        self.handed_over = outcome.accepted is not Accepted.NO
        state = self._ledger.settle(0, _STATES.get(type(outcome), State.IDLE))
        if isinstance(outcome, Started):
            self._run = self._started(outcome.run)
        elif isinstance(outcome, Unidentified):
            try:
                self._record.unidentified(request_error(outcome).message)
            except Exception:
                self._log.exception("A run was started, but its record could not be completed.")
        elif self._url and isinstance(outcome, Rejected | Busy):
            return self._record_rejected(outcome, self._url.digest, state)
        elif not isinstance(outcome, Unknown):
            self._record_no_run(state)
        return outcome

    def _record_rejected(self, outcome: Rejected | Busy, token: str, state: State) -> Outcome:
        """Record a request that the service says it rejected: unless its run has claimed, it has none."""
        claim = self._claim_of_rejected(outcome, token)
        if claim is not None:
            self._log.warning("The request was rejected, but its run has begun: %s", reason_of(outcome))
            run = self._adopt_claim(claim)
            return Started(request=outcome.request, run=Run(run.get("run_id"), None))
        self._request = None
        self._record_no_run(state)
        return outcome

    def _claim_of_rejected(self, outcome: Rejected | Busy, token: str) -> Claim | None:
        assert self._claims  # noqa: S101
        try:
            return self._claims.revoke(token, self._ledger)
        except Exception:
            self._log.exception(_UNSETTLED)
            raise unsettled_error(request_error(outcome)) from None

    def _record_no_run(self, state: State) -> None:
        """
        Record that a request started no run.

        :param state: what its item has become: *unknown* if an earlier try may have started one
        """
        try:
            if state is not State.UNKNOWN:
                self._record.clear()
            else:
                self._log.warning("This try started no run, but an earlier try may have started one.")
                self._record.restore()
        except Exception:
            self._log.exception(
                "This try started no run, but that could not be recorded: a later try will report that a run may "
                "have been started."
            )

    def _started(self, run: Run) -> StartedRun:
        """Record and return a run that was started."""
        if run.run_id is None:
            self._log.warning(
                "Started a run, but the response has no run_id. Find it in the workflow's list of runs: %s",
                one_line(run.run_link or "there is no run_link either"),
            )
        else:
            self._log.info(
                "Started run %s: %s", one_line(run.run_id), one_line(run.run_link or "no run_link")
            )
        response = run.response if run.run_id is None else None
        started = started_run(run.run_id, run.run_link, run.flow_id, response)
        try:
            self._record_started(started)
        except Exception:
            # The run is there, and what this try returns is recorded as well: failing now would lose it.
            self._log.exception(
                "Run %s could not be recorded: a later try would report that a run may have been started.",
                one_line(run.run_id or "without a run_id"),
            )
        return started

    def _record_started(self, run: StartedRun) -> None:
        try:
            self._record.started(run)
        except BaseException as error:
            # Even if the task ends: a later try must know the run, and the endpoint that a green task wants it.
            self._record.started(run)
            if not isinstance(error, Exception):
                raise
