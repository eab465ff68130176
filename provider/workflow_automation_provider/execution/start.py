"""
Start a run at most once: the driver of a :class:`~.ledger.Ledger` of one item, for operators, TaskFlow and the notifier.

1. **Read** what an earlier try wrote; the ledger decides whether to return its run, to report it, or to send.
2. **Prepare** the whole request, so that errors in it are found before anything is recorded or sent.
3. **Open**: record *starting*. From here on, a later try knows that a run may exist.
4. **Send** the request, once, and **settle** what it ended in: record the run, or clear the record if no run can have been
   started; the request may then be retried.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.client.outcome import (
    Failure,
    NotSent,
    Outcome,
    Reason,
    Rejected,
    Started,
    Unidentified,
    Unknown,
)
from workflow_automation_provider.client.protocol import Operation, Run
from workflow_automation_provider.exceptions import (
    Accepted,
    InvalidRequestError,
    OutcomeUnknownError,
    ResponseUnusableError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.ledger import IN_DOUBT, Decision, State
from workflow_automation_provider.execution.telemetry import metric_of
from workflow_automation_provider.failures import PreviousTry, request_error, where_to_look

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.start_record import StartedRun, StartEntry, StartRecord
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

__all__ = ["OnUnknownStart", "RunStarter", "request_digest"]

OnUnknownStart = Literal["fail", "start_again"]
"""What to do if it is unknown whether a run was started; operators can also ``"ask"``."""

_LOOK = where_to_look(Operation.TRIGGER_BY_KEY)


# What a request ended in that identified no run, as the ledger has it; otherwise, nothing was started.
_STATES: dict[type[Outcome], State] = {Rejected: State.REJECTED, Unknown: State.UNKNOWN}


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
    """

    def __init__(
        self,
        record: StartRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        *,
        on_unknown_start: OnUnknownStart = "fail",
    ) -> None:
        self._record = record
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._telemetry = record.telemetry
        self._ledger = record.ledger(start_again=on_unknown_start == "start_again", resends_rejected=True)
        self.previous: PreviousTry | None = None
        """What an earlier try did, once it is read: an error that says nothing was started must mention it."""
        self._run: StartedRun = {}
        self.handed_over = False
        """Whether the last byte of a request was sent whose outcome is not known: a run may have been started."""

    def start(
        self,
        prepare: Callable[[], Request],
        *,
        on_supplied: Callable[[StartEntry | None, StartedRun], None] | None = None,
        invalid: InvalidRequestError | None = None,
    ) -> StartedRun:
        """
        Start the run, or return the one that an earlier try started, or that a person entered.

        :param prepare: builds the request; called only if a run is to be started
        :param on_supplied: called with what is known of an earlier try, and the run that a person entered, before it is
            recorded
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
            if on_supplied:
                on_supplied(entry, supplied)
            return self._adopt_supplied(supplied)
        if entry and not self._ledger.read(entry.for_ledger()):
            self.previous = None
        if invalid:
            raise invalid
        if entry and (run := self._earlier_run(entry)) is not None:
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
        with self._hook:
            request = prepare()
            outcome = self._retrier.send(
                lambda: self._send(request), on_retry=lambda: self._telemetry.count("runs.retried")
            )
        if isinstance(outcome, Failure):
            raise request_error(outcome)
        return self._run

    def is_in_doubt(self) -> bool:
        """Return whether an earlier try may have started a run that it could not identify."""
        entry = self._record.read()
        ledger = self._record.ledger()
        counts = entry is not None and ledger.read(entry.for_ledger())
        return counts and ledger.state(0) is not State.STARTED

    def adopt(self, run: StartedRun) -> StartedRun:
        """Record and return a run that a person found, in place of starting one."""
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

    def _earlier_run(self, entry: StartEntry) -> StartedRun | None:
        """Return the run that an earlier try started, None if the request is to be sent."""
        if self._ledger.was_cleared:
            self._log.warning("%s The task has been cleared since: starting another run.", _sentence(entry))
            return None
        decision = self._ledger.decide(0, self._record.digest)
        if decision is Decision.CHANGED:
            # For example, names by position in a list that changed: it is the run of another request.
            raise InvalidRequestError(
                f"{self._record.name!r} has other inputs or another flow_id than in try {entry.attempt.try_number}.",
                consequence="Nothing was sent for it in this try.",
                next_step="Inside a task, use a name for each start that means the same in every try.",
            )
        if entry.request and self._record.request and entry.request != self._record.request:
            self._log.warning(
                "The inputs or the flow_id differ from those of try %d, which its run has.",
                entry.attempt.try_number,
            )
        if decision is Decision.SEND:
            self._log.warning("%s Starting another run: on_unknown_start is 'start_again'.", _sentence(entry))
            return None
        hint = ""
        if self._ledger.is_ambiguous:
            hint = "If you cleared the task to start another run, clear it again, alone and without keeping its task state."
        if decision is Decision.RETURN:
            self._log.info(
                "%s", f"{_sentence(entry)} Returning that run, not starting another. {hint}".strip()
            )
            self._telemetry.count("runs.returned")
            return entry.run
        if self._ledger.state(0) in IN_DOUBT:
            raise OutcomeUnknownError(_sentence(entry), next_step=f"{_LOOK} {hint}".strip())
        raise ResponseUnusableError(
            entry.message, consequence=_sentence(entry), next_step=f"{_LOOK} {hint}".strip()
        )

    def _send(self, request: Request) -> Outcome:
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
                known["error"] = type(request_error(outcome)).__name__
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
        self._log.info("If no later line says what became of it, a run may have been started.")
        # Opened before the write: whatever interrupts it, the ledger knows what to write then.
        self._ledger.open(0, self._record.digest)
        try:
            self._record.starting()
            began = time.monotonic()
            outcome = self._hook.send_trigger(request, before_last_byte=self._hand_over)
            took = time.monotonic() - began
        except WorkflowAutomationError:  # not a request, such as a connection that has become invalid
            self._settle(State.IDLE)
            raise
        # It is unknown what went wrong, and whether this process may still write the record.
        except Exception:
            raise
        except BaseException:  # such as the task's execution_timeout
            if self.handed_over:
                self._log.warning("Interrupted while waiting for the response. A run may have been started.")
            else:
                self._settle(State.IDLE)
            raise
        self._record_outcome(outcome)
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

    def _record_outcome(self, outcome: Outcome) -> None:
        self.handed_over = outcome.accepted is not Accepted.NO
        if isinstance(outcome, Started):
            self._run = self._started(outcome.run)
        elif isinstance(outcome, Unidentified):
            self._settle(State.UNIDENTIFIED, request_error(outcome).message)
        else:
            self._settle(_STATES.get(type(outcome), State.IDLE))

    def _settle(self, outcome: State, message: str = "") -> None:
        """Settle what the request ended in, and record it."""
        was_doubted = self._ledger.is_doubted(0)
        state = self._ledger.settle(0, outcome)
        try:
            if state is State.UNIDENTIFIED:
                self._record.unidentified(message)
            elif state is not State.UNKNOWN:
                self._record.clear()
            elif was_doubted and outcome is not State.UNKNOWN:
                self._log.warning("This try started no run, but an earlier try may have started one.")
                self._record.restore()
        except Exception:
            self._log.exception(
                "A run was started, but its record could not be completed."
                if state is State.UNIDENTIFIED
                else "This try started no run, but that could not be recorded: a later try will report that a run may "
                "have been started."
            )

    def _started(self, run: Run) -> StartedRun:
        """Record and return a run that was started."""
        self._ledger.settle(0, State.STARTED)
        if run.run_id is None:
            self._log.warning(
                "Started a run, but the response has no run_id. Find it in the workflow's list of runs: %s",
                one_line(run.run_link or "there is no run_link either"),
            )
        else:
            self._log.info(
                "Started run %s: %s", one_line(run.run_id), one_line(run.run_link or "no run_link")
            )
        # Airflow 3.0 cannot store None as an XCom, and would fail a task whose run was started.
        started: StartedRun = {}
        if run.run_id is not None:
            started["run_id"] = run.run_id
        if run.run_link is not None:
            started["run_link"] = run.run_link
        if run.flow_id is not None:
            started["flow_id"] = run.flow_id
        if run.run_id is None and run.response is not None:
            started["response"] = run.response
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
        except Exception:
            raise
        except BaseException:  # the task ends, but a later try must know the run
            self._record.started(run)
            raise


def _sentence(entry: StartEntry) -> str:
    return f"T{entry.text[1:]}"
