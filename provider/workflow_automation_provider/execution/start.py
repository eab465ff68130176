"""
Start a run at most once: the driver of a :class:`~.ledger.Ledger` of one item, for operators and TaskFlow.

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
import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    Code,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.earlier_start import REVOKED, as_earlier_try, earlier_run
from workflow_automation_provider.execution.ledger import State
from workflow_automation_provider.execution.start_record import run_result

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.execution.callback_url import CallbackUrl
    from workflow_automation_provider.execution.claim import Claim, StartClaims
    from workflow_automation_provider.execution.errors import EarlierTry
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.start_record import RunResult, StartEntry, StartRecord
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

OnUnknownStart = Literal["fail", "start_again"]
"""What to do if it is unknown whether a run was started; operators can also have the run ``"claim"`` it."""

_UNSETTLED = "Whether a run has claimed this start could not be settled."

# What a request ended in, as the ledger has it.
_STATES: dict[type[WorkflowAutomationError], State] = {
    UnidentifiedError: State.UNIDENTIFIED,
    RejectedError: State.REJECTED,
    BusyError: State.REJECTED,
    NotSentError: State.IDLE,
    OutcomeUnknownError: State.UNKNOWN,
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
        on_unknown_start: OnUnknownStart | Literal["claim"],
        claims: StartClaims | None = None,
        url: CallbackUrl | None = None,
    ) -> None:
        self._record = record
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
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
        self.earlier: EarlierTry | None = None
        """What an earlier try did, once it is read: an error that says nothing was started must mention it."""
        self._handed_over = False
        """Whether the last byte of a request was sent whose outcome is not known: a run may have been started."""

    def start(
        self,
        prepare: Callable[[], Request],
        *,
        on_supplied: Callable[[str | None], None] | None = None,
        invalid: InvalidRequestError | None = None,
    ) -> RunResult:
        """
        Start the run, or return the one that an earlier try started, or that a person entered.

        :param prepare: builds the request; called only if a run is to be started
        :param on_supplied: called before a run that a person entered is recorded, with the hash of its token, None if it
            has none
        :param invalid: an error in the arguments, raised once it is known what an earlier try did
        :raises WorkflowAutomationError: if no run was started, or it is unknown whether one was
        """
        if (run := self._earlier_run(on_supplied, invalid)) is not None:
            return run
        try:
            with self._hook:
                self._request = prepare()
                return self._retrier.send(self._send)
        finally:
            self._close_unsent()

    def _earlier_run(
        self, on_supplied: Callable[[str | None], None] | None, invalid: InvalidRequestError | None
    ) -> RunResult | None:
        """Return the run that an earlier try started, or that a person entered; None if the ledger allows another."""
        entry = self._record.read()
        if entry:
            self.earlier = as_earlier_try(entry)
        may_be_supplied = entry or self._record.is_later_try
        # Also where the task was cleared: who enters a run wants to continue with it, not to start another.
        if may_be_supplied and not invalid and (supplied := self._record.supplied_run()):
            self._keep_token(entry, supplied)
            if on_supplied:
                on_supplied(self._record.token)
            return self._adopt_supplied(supplied)
        if entry and not self._ledger.read(entry.for_ledger()):
            self.earlier = None
        if invalid:
            raise invalid
        if entry and entry.token and self._claims:
            self._record.token = entry.token
            if (claim := self._settle_earlier(entry, self._claims)) is not None:
                return self._adopt_claim(claim)
        if entry is None:
            return None
        return earlier_run(entry, self._record, self._ledger, self._log, self._on_unknown)

    def _claimed_by_another(self, run: RunResult) -> RunResult | None:
        """Return the run that has claimed the start, if a proxy has sent it twice and returned the other one."""
        claim = self._claims.record.said(self.token) if self._claims and self.token else None
        is_another = claim is not None and claim.run_id not in (None, run.get("run_id"))
        return self._adopt_claim(claim) if claim and is_another else None

    @property
    def token(self) -> str | None:
        """The hash of the token of the run that is known, None if it was given none."""
        return self._record.token

    def _keep_token(self, entry: StartEntry | None, run: RunResult) -> None:
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

    def _adopt_claim(self, claim: Claim) -> RunResult:
        """Record and return the run that claimed its start."""
        assert self._claims  # noqa: S101
        run = self._claims.run_of(claim)
        self._ledger.claimed(0, claim.token)
        self._record.token = self._ledger.token(0)
        try:
            self._record_started(run)
        except Exception:
            self._log.exception("The run that claimed this start could not be recorded.")
        return run

    def _adopt_supplied(self, run: RunResult) -> RunResult:
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

    def _send(self) -> RunResult:
        """Send the request; the record is always written before it."""
        if self._request is None:
            assert self._url  # noqa: S101
            self._request = self._url.next()
        request = self._request
        self._record.target = {
            "conn_id": self._hook.workflow_automation_conn_id,
            "flow_id": self._hook.flow_of(request),
        }
        if self._retrier.is_ended():
            raise NotSentError(f"{request.title} was not sent: the task was ended.")
        self._announce(request)
        # Opened before the write: whatever interrupts it, the ledger knows what to write then.
        is_repeated = self._ledger.token(0) is not None
        self._record.token = token = self._url.digest if self._url else None
        self._ledger.open(0, self._record.digest, token)
        try:
            if token and self._claims and not is_repeated:
                self._claims.record.open(token)
            self._record.starting()
            run = self._hook.send_trigger(request, before_last_byte=self._hand_over)
        except tuple(_STATES) as error:
            return self._without_run(error)
        # It is unknown what went wrong, and whether this process may still write the record.
        except Exception:
            raise
        except BaseException:  # such as the task's execution_timeout
            if self._handed_over:
                self._log.warning("Interrupted while waiting for the response. A run may have been started.")
            else:
                self._record_no_run(self._ledger.settle(0, State.IDLE))
            raise
        self._handed_over = True
        self._ledger.settle(0, State.STARTED)
        started = self._started(run)
        return self._claimed_by_another(started) or started

    def _announce(self, request: Request) -> None:
        # Logged before the record is written, which waits for a response from Airflow: by then these lines
        # are in the log, even if the task is killed in its last try, after which no other try reports it.
        self._log.info(
            "Triggering %s via connection %s.",
            f"flow {flow}" if (flow := self._hook.flow_of(request)) else "the flow of the API key",
            self._hook.workflow_automation_conn_id,
        )
        self._log.info("If no later line gives its outcome, a run may have been started.")

    def _hand_over(self) -> None:
        from workflow_automation_provider.client.transport import StoppedError

        self._handed_over = True
        if self._retrier.is_ended():
            raise StoppedError

    def _without_run(self, error: WorkflowAutomationError) -> RunResult:
        """
        Record a request that started no run that is known; return the run if one has claimed the start.

        :raises WorkflowAutomationError: otherwise
        """
        self._handed_over = error.accepted is not Accepted.NO
        state = self._ledger.settle(0, _STATES[type(error)])
        if self._handed_over:
            if isinstance(error, UnidentifiedError):
                self._record_unidentified(error)
            return self._settle_doubt(error)
        if self._url and isinstance(error, RejectedError | BusyError):
            # Unless its run has claimed, it has none.
            if (claim := self._claim_of_rejected(error, self._url.digest)) is not None:
                self._log.warning("The request was rejected, but its run has begun: %s", error.reason)
                return self._adopt_claim(claim)
            self._request = None
        self._record_no_run(state)
        raise error

    def _record_unidentified(self, error: UnidentifiedError) -> None:
        try:
            self._record.unidentified(error.reason)
        except Exception:
            self._log.exception("A run was started, but its record could not be completed.")

    def _settle_doubt(self, error: WorkflowAutomationError) -> RunResult:
        if not self._url or not self._claims:
            raise error
        try:
            claim = self._claims.settle_doubt(self._ledger)
        except Exception:
            self._log.exception(_UNSETTLED)
            raise error from None
        if claim is not None:
            return self._adopt_claim(claim)
        is_revoked = self._ledger.token(0) is None
        if self._on_unknown == "claim":
            until = "" if is_revoked else " One can still claim it until the next try."
            raise OutcomeUnknownError(
                error.message,
                code=Code.START_REVOKED if is_revoked else Code.START_UNKNOWN,
                next_step=f"No run claimed this start within claim_timeout ({self._claims.timeout}).{until}",
                status=error.status,
                quote=error.quote,
            )
        raise error.with_facts(next_step=f"{error.next_step}\n{REVOKED}".strip()) if is_revoked else error

    def _claim_of_rejected(self, error: WorkflowAutomationError, token: str) -> Claim | None:
        assert self._claims  # noqa: S101
        try:
            return self._claims.revoke(token, self._ledger)
        except Exception:
            self._log.exception(_UNSETTLED)
            raise OutcomeUnknownError(error.message, status=error.status, quote=error.quote) from None

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
        try:
            self._record_started(started)
        except Exception:
            # The run is there, and what this try returns is recorded as well: failing now would lose it.
            self._log.exception(
                "Run %s could not be recorded: a later try would report that a run may have been started.",
                one_line(run.run_id or "without a run_id"),
            )
        return started

    def _record_started(self, run: RunResult) -> None:
        try:
            self._record.started(run)
        except BaseException as error:
            # Even if the task ends: a later try must know the run, and the endpoint that a green task wants it.
            self._record.started(run)
            if not isinstance(error, Exception):
                raise
