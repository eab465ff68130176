"""
Start a run at most once: for operators and TaskFlow.

1. **Read** the last start; :mod:`~.ledger` decides whether to return its run, to report it, or to
   send. A read may find nothing where there is something, so most decisions are made twice, with a
   probe between.
2. **Close** a start in doubt whose run was given a URL, before anything else is decided.
3. **Prepare** the whole request, so that errors in it are found before anything is recorded or
   sent.
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
from typing import TYPE_CHECKING, Any, Literal

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
from workflow_automation_provider.execution.retry import LEFT_TO_AIRFLOW
from workflow_automation_provider.execution.starts.ledger import (
    Decision,
    Facts,
    Outcome,
    RunReports,
    RunResult,
    StartOptions,
    decide,
    is_certain,
    run_result,
    why_not,
)

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.client.redaction import Redactor
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.execution.starts.ledger import Start
    from workflow_automation_provider.execution.starts.record import StartRecord
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

POLL_INTERVAL = 0.5
"""Seconds between two looks of a task, in its worker, at what a run has said."""

OnUnknownStart = Literal["fail", "start_again"]
"""
What to do if it is unknown whether a run was started.

Operators can also have the run ``"claim"`` it.
"""

_LOOK = "Look in the workflow's list of runs."
_REVOKED = "A run of it that claims its start from now on is told to stop."


def request_digest(inputs: object, flow_id: object) -> str | None:
    """
    Return a hash of the request, None if its inputs cannot be encoded.

    Sending them then fails.
    """
    from workflow_automation_provider.client.json_values import encode

    with contextlib.suppress(InvalidRequestError):
        return hashlib.sha256(encode("", [flow_id, inputs])).hexdigest()
    return None


def redactor_for(hook: WorkflowAutomationHook, conn_id: str | None) -> Redactor:
    """
    Return what knows the secrets of the task's connection.

    It also knows those of the connection by which the run was started.

    :param conn_id: the connection that the start has recorded, None if it has none
    :raises Exception: if one of them cannot be used
    """
    redactor = hook.get_conn().redactor
    if conn_id in (None, hook.workflow_automation_conn_id):
        return redactor
    return redactor.joined(type(hook)(conn_id).get_conn().redactor)


def redactor_of(hook: WorkflowAutomationHook, conn_id: str | None = None) -> Redactor | None:
    """Return what :func:`redactor_for` does, None if a connection cannot be used."""
    try:
        return redactor_for(hook, conn_id)
    except Exception:
        return None


class RunStarter:
    """
    Start the run of one record, unless an earlier try did.

    :param record: what earlier tries recorded
    :param hook: sends the request
    :param retrier: how long to keep retrying while the service is busy or cannot be reached
    :param options: what the task asks for
    :param claim_timeout: how long to wait for what a run reports whose start is in doubt
    :param completion_timeout: how long the task waits for the end of the run, None if it does not
    :param heartbeat_timeout: how long the run may say nothing, None for as long as its end may take
    :param is_resumed: whether Airflow continues a task that waited: it sends nothing then
    """

    def __init__(
        self,
        record: StartRecord,
        hook: WorkflowAutomationHook,
        retrier: SendRetrier,
        options: StartOptions,
        *,
        claim_timeout: timedelta = timedelta(),
        completion_timeout: timedelta | None = None,
        heartbeat_timeout: timedelta | None = None,
        is_resumed: bool = False,
    ) -> None:
        self._record = record
        self._hook = hook
        self._retrier = retrier
        self._log = retrier.log
        self._options = options
        self._claims = options.on_unknown_start == "claim"
        self._claim_timeout = claim_timeout
        self._is_resumed = is_resumed
        self._wait_fields: dict[str, float | None] = {}
        if completion_timeout:
            self._wait_fields["completion_timeout"] = completion_timeout.total_seconds()
        if completion_timeout and heartbeat_timeout:
            self._wait_fields["heartbeat_timeout"] = heartbeat_timeout.total_seconds()
        self.earlier: WorkflowAutomationError | None = None
        """
        What an earlier try left, as an error.

        One of this try must mention it if nothing was started.
        """
        self.facts: Facts
        """What is known of the start whose run is returned."""
        self.has_sent = False
        """Whether this execution has started the run."""
        self._last: Facts | None = None
        self._adopted: RunResult | None = None
        self._start: Start
        self._request: Request
        # Whether the last byte of a request of unknown outcome was sent.
        self._may_exist = False

    def start(self, prepare: Callable[[], tuple[Request, dict[str, str]]]) -> RunResult:
        """
        Start the run, or return the one that an earlier try started, or that a person entered.

        :param prepare: returns the request, and the fields ``token`` and ``callback_url`` of its
            start, if its run is given a URL; called only if a run is to be started
        :raises WorkflowAutomationError: if no run was started, or it is unknown whether one was
        """
        try:
            decision = self._decide_certainly()
            if decision is Decision.REVOKE:
                self._last = self._settled_last()
                decision = decide(self._last, self._options)
        except WorkflowAutomationError:
            raise
        except Exception:
            # An error of the store, which does not tell of the run.
            if self.earlier:
                self._log.error(self.earlier.message)
            raise

        if decision is Decision.ADOPT:
            return self._adopt()
        if decision is Decision.RETURN:
            return self._return_last()
        if decision is not Decision.SEND:
            raise self._reported(decision)
        if self._is_resumed and not self._was_cleared():
            raise self._nothing_to_continue()

        self._log_earlier()
        self._request, fields = prepare()
        return self._send_once(fields)

    # Decide -------------------------------------------------------------------------------------

    def _decide_certainly(self) -> Decision:
        """
        Read the record, and decide.

        Unless one read is enough, it is repeated, after a probe, until two find the same.

        :raises RuntimeError: if the store does not return the probe
        """
        decision = self._decide()
        while not is_certain(
            decision,
            self._last,
            is_adopted=self._adopted is not None,
            is_first=not self._record.may_have_entries,
            is_own=self._is_resumed and self._is_of_this_try(),
        ):
            before = (decision, self._last, self._adopted)
            self._record.probe()
            decision = self._decide()
            if (decision, self._last, self._adopted) == before:
                break
        return decision

    def _decide(self) -> Decision:
        """Read the last start and what a person has entered, and decide."""
        last = self._last = self._record.last_start()
        if last and last.counts(self._options.max_tries):
            self.earlier = self._as_error(last)
        # A task that was resumed has its run already.
        reads_adopted = not self._is_resumed or self._was_cleared()
        self._adopted = self._record.adopted() if reads_adopted else None
        return decide(last, self._options, self._adopted["run_id"] if self._adopted else None)

    def _is_of_this_try(self) -> bool:
        """Return whether this try has made the last start."""
        return self._last is not None and self._last.start.try_number == self._record.try_number

    def _was_cleared(self) -> bool:
        """Return whether a person has cleared the task since its last start, for another run."""
        return self._last is not None and not self._last.counts(self._options.max_tries)

    # An earlier start ---------------------------------------------------------------------------

    def _settled_last(self) -> Facts:
        """
        Wait for what the run of the last start reports; if it has not begun, revoke its token.

        :return: what is known of the start by then
        :raises Exception: if it is not certain that the start is closed
        """
        last = self._last
        assert last  # noqa: S101
        text = last.text(self._redactor(last))
        if text:
            self._log.warning(_sentence(text))
        last = self._await_report(last)
        return last if last.reports.has_begun else self._revoke(last)

    def _revoke(self, facts: Facts) -> Facts:
        """
        Close a start, and return what is known of it by then.

        :raises Exception: if it is not certain that the start is closed
        """
        closed = self._record.revoke(facts)
        if not closed.reports.has_begun:
            self._log.info(
                "No run has claimed this start: one that does so from now on is told to stop."
            )
        return closed

    def _adopt(self) -> RunResult:
        """
        Continue with the run that a person entered, if it may be that of the last start.

        :raises InvalidRequestError: if it may not
        """
        run, last = self._adopted, self._last
        assert run  # noqa: S101
        reason: str | None = None
        if last and last.start.token:
            self._record.all_starts()
            self._record.probe()  # one of them may not have been seen
            reason = why_not(run["run_id"], last, self._record.all_starts()[1:])
        elif self._wait_fields:
            reason = "nobody can tell its end, since it was given no URL"
        if reason:
            raise not_continued(run["run_id"], reason)

        self._log.info(
            "Returning run %s, which was entered in the task's state store, not starting another.",
            one_line(run["run_id"]),
        )
        return self._return(self._record.adopt(run, last, **self._wait_fields))

    def _return_last(self) -> RunResult:
        """
        Return the run of the last start.

        What a person entered and is left names the same run.
        """
        assert self._last  # noqa: S101
        run = self._return(self._last)
        if self._adopted:
            self._record.forget_adopted()
        return run

    def _return(self, facts: Facts) -> RunResult:
        """
        Return the run of a start.

        :raises WorkflowAutomationError: if it was told to stop, or another one has the task
        """
        start, reports = facts.start, facts.reports
        if start.run:
            check_adopted(start.run["run_id"], reports)
        redactor = self._redactor(facts)
        run = facts.run(redactor)
        if reports.stopped:
            raise RunFailedError("The run was told to stop.", run_id=run.get("run_id"))

        self.facts = facts
        is_of_earlier_try = start.place[0] != self._record.try_number
        if self.earlier and is_of_earlier_try and not start.run and not self._is_resumed:
            self._log.info(
                "%s Returning that run, not starting another.", _sentence(facts.text(redactor))
            )
        if start.request and self._options.request and start.request != self._options.request:
            self._log.warning(
                "The inputs or the flow_id differ from those of try %d, which its run has.",
                start.try_number,
            )
        if reports.claim:
            self._log.info(
                "Run %s has claimed this start.", one_line(run.get("run_id", "(unknown id)"))
            )
        is_named = "run_id" in run or "response" in run
        if reports.has_begun and not is_named and not reports.run_id:
            self._log.warning(
                "The run_id is unknown: it was lost with the response, or with the try that "
                "started it, and the run did not say it."
            )
        return run

    def _reported(self, decision: Decision) -> WorkflowAutomationError:
        """Return the error for a start after which nothing may be sent."""
        last = self._last
        assert last  # noqa: S101
        if decision is Decision.CHANGED:
            # Such as names by position in a list that changed: the recorded run is that of another
            # request.
            return InvalidRequestError(
                f"{self._record.name!r} has other inputs or another flow_id than in try "
                f"{last.start.try_number}.",
                consequence="Nothing was sent for it in this try.",
                next_step=(
                    "Inside a task, use a name for each start that means the same in every try."
                ),
            )
        text = _sentence(last.text(self._redactor(last)))
        error: WorkflowAutomationError = OutcomeUnknownError(text, consequence=_LOOK)
        if last.outcome and decision is Decision.UNIDENTIFIED:
            error = UnidentifiedError(last.outcome.reason, consequence=f"{text} {_LOOK}")
        return error.with_facts(next_step=_REVOKED) if last.is_closed else error

    def _nothing_to_continue(self) -> WorkflowAutomationError:
        """Return the error for a task that waited, and has no run any more."""
        if self._last and self._last.reports.stopped:
            run = self._last.run(self._redactor(self._last))
            return RunFailedError("The run was told to stop.", run_id=run.get("run_id"))
        return UnidentifiedError(
            "What the task recorded of its run while it waited is gone from Airflow's task state "
            "store."
        )

    def _log_earlier(self) -> None:
        """Log why another run is started, where an earlier try may have started one."""
        last = self._last
        text = last.text(self._redactor(last)) if last else ""
        if last is None or not text:
            return
        why = f"on_unknown_start is {self._options.on_unknown_start!r}"
        if not last.counts(self._options.max_tries):
            why = "the task has been cleared since"
        elif last.reports.stopped:
            why = "its run was told to stop"
        elif last.reports.end:
            why = "its run failed"
        elif self._claims:
            why = "no run has claimed that start, and one that asks from now on is told to stop"
        self._log.warning("%s Starting another run: %s.", _sentence(text), why)

    def _await_report(self, facts: Facts) -> Facts:
        """Wait up to ``claim_timeout``, from its start on, for a run to claim or to end."""
        start = facts.start
        assert start.token  # noqa: S101
        # Another worker's clock may be ahead.
        until = min(start.at, datetime.now(UTC)) + self._claim_timeout
        is_logged = False
        while not (facts.reports.has_begun or facts.reports.stopped or self._retrier.is_ended()):
            left = (until - datetime.now(UTC)).total_seconds()
            if left <= 0:
                break
            if not is_logged:
                # If this try is killed while it waits, and is the last one, the log ends with this
                # line.
                self._log.info(
                    "A run may have been started. Waiting up to %.0f s for one to call Airflow.",
                    left,
                )
                is_logged = True
            time.sleep(min(POLL_INTERVAL, left))
            facts = facts._replace(reports=self._record.reports(start.token))
        return facts

    def _redactor(self, facts: Facts) -> Redactor | None:
        """Return what knows the secrets that a run may show, None if it cannot be known."""
        return redactor_of(self._hook, facts.start.conn_id)

    def _as_error(self, facts: Facts) -> WorkflowAutomationError | None:
        """Return what a start may have left, as an error; None if nothing."""
        redactor = self._redactor(facts)
        text = facts.text(redactor)
        if not text:
            return None
        run_id = facts.run(redactor).get("run_id")
        is_named = facts.outcome is not None and facts.outcome.kind == "run"
        if is_named or facts.reports.has_begun:
            return UnidentifiedError(text, run_id=run_id)
        is_started = facts.outcome is not None and facts.outcome.kind == "unidentified"
        kind = UnidentifiedError if is_started else OutcomeUnknownError
        return kind(f"{text} {_LOOK}")

    # Send ---------------------------------------------------------------------------------------

    def _send_once(self, fields: dict[str, str]) -> RunResult:
        """
        Record a start, send it, and record its outcome.

        :param fields: of the start, as ``prepare`` of :meth:`start` returns them
        """
        before = self._last
        request = self._request
        if self._retrier.is_ended():
            raise NotSentError(f"{request.title} was not sent: the task was ended.")
        earlier = ""
        if before and before.counts(self._options.max_tries):
            earlier = before.text(self._redactor(before))
        start = self._start = self._record.new_start(
            request=self._options.request,
            conn_id=self._hook.workflow_automation_conn_id,
            flow_id=request.flow_id,
            earlier=earlier,
            **self._wait_fields,
            **fields,
        )
        self._log_start()
        try:
            self._record.write_start(start)
            if not self._record.may_send(start, before):
                raise NotSentError(
                    f"{request.title} was not sent: Airflow no longer runs this try, or has lost "
                    "its record."
                )
            run = self._retrier.send(self._send)
        except WorkflowAutomationError as error:
            return self._settle(error)
        except BaseException as error:
            # Such as the task's execution_timeout, or an error of the store.
            if not self._may_exist:
                self._write_outcome("nothing")
            else:
                self._log.warning(
                    "Interrupted by %s while waiting for the response. A run may have been "
                    "started.",
                    type(error).__name__,
                )
            raise
        return self._started(run)

    def _log_start(self) -> None:
        """
        Log what is about to be sent.

        Before the record is written: if the task is killed in its last try, no other try reports
        the start, and these lines are in the log by then.
        """
        start = self._start
        flow = f"flow {start.flow_id}" if start.flow_id else "the flow of the API key"
        self._log.info("Triggering %s via connection %s.", flow, start.conn_id)
        if start.callback_url:
            self._log.info("Its run calls Airflow at %s.", start.callback_url)
        self._log.info(
            "If the log ends here, the task was killed, and a run may have been started."
        )

    def _send(self) -> Run:
        """Send the request, unless the task was ended, which has stopped its hook."""
        try:
            client = self._hook.get_conn()
            return client.trigger(self._request, before_last_byte=self._hand_over)
        except WorkflowAutomationError as error:
            self._may_exist = error.accepted is not Accepted.NO
            raise

    def _hand_over(self) -> None:
        self._may_exist = True

    def _started(self, run: Run) -> RunResult:
        """Record and return a run that was started."""
        self.has_sent = True
        if run.run_id is None:
            self._log.warning(
                "Started a run, but the response has no run_id. Find it in the workflow's list of "
                "runs: %s",
                one_line(run.run_link or json.dumps(run.response)),
            )
        else:
            self._log.info(
                "Started run %s: %s",
                one_line(run.run_id),
                one_line(run.run_link or "no run_link"),
            )
        response = run.response if run.run_id is None else None
        started = run_result(run.run_id, run.run_link, run.flow_id, response)
        outcome = self._write_outcome("run", run=started)
        if outcome is None and self._start.waits:
            # What continues a task that waits is its record.
            return self._settle(
                UnidentifiedError(
                    "The run could not be recorded, so nothing can wait for its end."
                ),
                run=started,
            )

        outcome = outcome or Outcome(kind="run", at=datetime.now(UTC), run=started)
        facts = Facts(start=self._start, outcome=outcome)
        if self._start.token:
            # A proxy may have sent the request twice, and returned the run that is told to stop.
            try:
                facts = facts._replace(reports=self._record.reports(self._start.token))
            except Exception:
                self._log.warning("Whether another run has claimed is unknown.", exc_info=True)
        return self._return(facts)

    def _settle(self, error: WorkflowAutomationError, run: RunResult | None = None) -> RunResult:
        """
        Record what the response said; return the run that has begun, if one has.

        The start is closed if no later try would do it: until then, also the run of a rejected
        request can claim.

        :param run: the run that was started, but could not be recorded
        :raises WorkflowAutomationError: if no run has begun
        """
        start = self._start
        if error.accepted is Accepted.NO:
            self._write_outcome("nothing")
        elif error.accepted is Accepted.YES and run is None:
            self._write_outcome("unidentified", reason=error.reason)
        if run and "run_id" in run:
            error = error.with_facts(
                run_id=run["run_id"], consequence=f"Run {one_line(run['run_id'])} was started."
            )
        if start.token is None:
            raise error

        facts = self._settled(error)
        if facts and facts.reports.has_begun:
            self.has_sent = True
            if run:
                outcome = Outcome(kind="run", at=start.at, run=run)
                facts = facts._replace(outcome=outcome)
            if error.accepted is Accepted.NO:
                self._log.warning("The run has begun anyway: %s", error.reason)
            return self._return(facts)
        if facts is None or error.accepted is Accepted.NO:
            raise error
        raise self._in_doubt(error, is_closed=facts.is_closed)

    def _settled(self, error: WorkflowAutomationError) -> Facts | None:
        """
        Return what is known of a start without a usable response.

        Closed if no later try would close it.
        """
        start = self._start
        assert start.token  # noqa: S101
        is_unknown = error.accepted is Accepted.MAYBE
        is_retried = is_unknown and self._options.on_unknown_start != "fail"
        is_retried |= isinstance(error, LEFT_TO_AIRFLOW)
        try:
            facts = Facts(start=start, reports=self._record.reports(start.token))
            if error.accepted is not Accepted.NO:
                facts = self._await_report(facts)
            is_left = is_retried and not self._record.is_last_try
            if facts.reports.has_begun or is_left or self._retrier.is_ended():
                return facts

            return self._revoke(facts)
        except Exception:
            self._log.exception("Whether a run has claimed this start could not be settled.")
            return None

    def _in_doubt(
        self, error: WorkflowAutomationError, *, is_closed: bool
    ) -> WorkflowAutomationError:
        """Return the error for a start of which no run has reported itself."""
        if error.accepted is not Accepted.MAYBE or not self._claims:
            if not is_closed:
                return error
            return error.with_facts(next_step=f"{error.next_step}\n{_REVOKED}".strip())

        waited = f"No run claimed this start within claim_timeout ({self._claim_timeout})."
        if not is_closed:
            return error.with_facts(next_step=f"{waited} One still can: wait for the next try.")
        return error.with_facts(code=Code.START_REVOKED, consequence="", next_step=waited)

    def _write_outcome(
        self, kind: Literal["run", "nothing", "unidentified"], **fields: Any
    ) -> Outcome | None:
        """
        Record the outcome of the request; return it, None if it could not be recorded.

        A failure is only logged: the request has had its effect.
        """
        outcome = Outcome(kind=kind, at=datetime.now(UTC), **fields)
        try:
            self._record.write_outcome(self._start, outcome)
        except BaseException as error:
            try:
                # Even if the task was ended: a later try must know.
                self._record.write_outcome(self._start, outcome)
            except Exception:
                self._log.exception(
                    "What the request ended in could not be recorded: a later try reports that a "
                    "run "
                    "may have been started."
                )
                if isinstance(error, Exception):
                    return None
            if not isinstance(error, Exception):
                raise
        return outcome


def check_adopted(run_id: str, reports: RunReports) -> None:
    """
    Check that the run that a person entered still has the task.

    :raises InvalidRequestError: if it was told to stop, or another one has claimed or ended
    """
    if reports.stopped or run_id in reports.refused:
        raise not_continued(run_id, "it was told to stop")
    if reports.run_ids - {run_id}:
        raise not_continued(run_id, "another run has the task")


def not_continued(run_id: str, why: str) -> InvalidRequestError:
    """Return the error for a run that a person entered, and with which the task cannot continue."""
    return InvalidRequestError(
        f"The task cannot continue with run {one_line(run_id)}, which a person entered: {why}.",
        next_step=(
            "If that run did the work, mark the task as success.\n"
            "To start another run, delete the entry under Storage, and clear the task."
        ),
    )


def _sentence(text: str) -> str:
    """Return the text of :class:`~.ledger.Facts` as a sentence: it begins with a small "try"."""
    return f"{text[:1].upper()}{text[1:]}"
