"""
Start a run at most once: the only place that does, for operators and for TaskFlow code.

1. **Prepare** the whole request, so that errors in it are found before anything is recorded or sent.
2. **Record** *starting*. From here on, a later try knows that a run may exist.
3. **Send** the request, once. If no run can have been started, take back the record; the request may then be
   retried.
4. **Record** *started*, and return the run.

:mod:`~workflow_automation_provider.execution.task_state` describes how a later try reads the record.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.providers.common.compat.sdk import get_current_context

from workflow_automation_provider.client.checks import LONGEST_TIMEOUT, is_seconds, one_line
from workflow_automation_provider.client.protocol import NO_INPUTS, Operation, Run
from workflow_automation_provider.exceptions import (
    Accepted,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    ResponseUnusableError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.retry import Patience, start_advice, task_error
from workflow_automation_provider.execution.task_state import Start, StartedRun, StartRecord
from workflow_automation_provider.execution.telemetry import metric_of
from workflow_automation_provider.failures import consequence_of, run_of, where_to_look

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

__all__ = ["OnUnknownStart", "RunStarter", "mentions_earlier_try", "request_digest", "trigger_flow_once"]

OnUnknownStart = Literal["fail", "start_again"]
"""What to do if it is unknown whether a run was started; operators can also ``"ask"``."""

_LOOK = where_to_look(Operation.TRIGGER_BY_KEY)
_CLEAR = "A Clear starts every run of the task again."

# A key of the task state store may have at most 512 characters.
_LONGEST_NAME = 250


def trigger_flow_once(
    name: str,
    *,
    inputs: Mapping[str, Any] = NO_INPUTS,
    flow_id: str | None = None,
    workflow_automation_conn_id: str = "workflow_automation_default",
    on_unknown_start: OnUnknownStart = "fail",
    request_timeout: float | None = None,
    send_retry_timeout: float = 60.0,
    context: Context | None = None,
) -> StartedRun:
    """
    Start a run from within a task, such as a function decorated with ``@task``, at most once.

    A later try that calls this with the same ``name`` gets the run that was started instead of starting
    another, as with :class:`~workflow_automation_provider.operators.flows.TriggerFlowOperator` (Airflow
    3.3+).

    .. code-block:: python

        @task(retries=3)
        def reports(customers: list[str]) -> list[str]:
            return [trigger_flow_once(customer, inputs={"customer": customer})["run_id"] for customer in customers]

    Follows sections 4.1 (with a ``flow_id``) and 4.2 (without) of the interface.

    :param name: identifies this start within the task: unique for each run, and the same in every try
    :param inputs: input names, as the flow defines them, and JSON values
    :param flow_id: the flow to start; None for the one that the connection's API key identifies
    :param workflow_automation_conn_id: connection with the base URL and the API key
    :param on_unknown_start: what to do if it is unknown whether a run was started: ``"fail"`` without a
        retry, or ``"start_again"`` in the next try
    :param request_timeout: seconds that connecting, each send, and the whole response may take, instead of
        the connection's ``timeout``
    :param send_retry_timeout: seconds to keep retrying while the service is busy or cannot be reached; 0
        sends once
    :param context: the task's context, by default that of the task that is being executed
    :return: ``run_id``, ``run_link`` and ``flow_id``, as far as known
    :raises RuntimeError: if no task is being executed and no ``context`` is passed; on Airflow 2 an
        ``AirflowException``
    :raises WorkflowAutomationError: if no run was started, or it is unknown whether one was; also an
        ``AirflowFailException`` if Airflow must not retry the task
    """
    from workflow_automation_provider.hooks.lineage import collect_run
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

    context = get_current_context() if context is None else context
    hook = WorkflowAutomationHook(workflow_automation_conn_id, request_timeout=request_timeout)
    try:
        _check_name(name)
        record = StartRecord(context, name, nested=True)
        with mentions_earlier_try(record):
            _check(on_unknown_start, send_retry_timeout)
            record.request = request_digest(inputs, flow_id)
        # The same request may be sent again if it started nothing, but not another one of the same name.
        with record.in_use(sys.intern(record.request)):
            starter = RunStarter(
                record, hook, Patience(send_retry_timeout, hook.log), on_unknown_start=on_unknown_start
            )
            run = starter.start(lambda: hook.prepare_trigger(inputs, flow_id))
    except WorkflowAutomationError as error:
        hook.locate(error, flow_id)
        failed = task_error(
            error, context, start_advice(context, name), but_for=_retried_after(on_unknown_start)
        )
        raise failed from failed.__cause__
    collect_run(hook, lambda: hook.connection, run.get("flow_id"), run.get("run_id"))
    return run


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or one_line(name) != name:
        raise InvalidRequestError(
            f"name is {name!r}: expected a unique name for each start within a task, of at most {_LONGEST_NAME} "
            "characters, without line breaks and other control characters."
        )


def _check(on_unknown_start: object, send_retry_timeout: object) -> None:
    if on_unknown_start not in get_args(OnUnknownStart):
        raise InvalidRequestError(
            f"on_unknown_start {on_unknown_start!r} is not supported; expected 'fail' or 'start_again'."
        )
    if not is_seconds(send_retry_timeout):
        raise InvalidRequestError(
            f"send_retry_timeout is {send_retry_timeout!r}: expected seconds, 0 or more and at most {LONGEST_TIMEOUT} (a week)."
        )


def _retried_after(on_unknown_start: OnUnknownStart) -> tuple[type[WorkflowAutomationError], ...]:
    """Return the errors of a start that are left to Airflow's retry because the user accepts a second run."""
    return (OutcomeUnknownError,) if on_unknown_start == "start_again" else ()


def request_digest(inputs: object, flow_id: object) -> str:
    """
    Return a hash that identifies the request.

    :raises InvalidRequestError: if ``inputs`` cannot be encoded as JSON
    """
    from workflow_automation_provider.client.json_values import encode

    return hashlib.sha256(
        f"{flow_id} ".encode(errors="surrogatepass") + encode("inputs", inputs)
    ).hexdigest()[:32]


@contextmanager
def mentions_earlier_try(record: StartRecord) -> Iterator[None]:
    """Have an error that is found before the record is read say what an earlier try did."""
    try:
        yield
    except InvalidRequestError as error:
        earlier = record.read()
        if earlier and not earlier.cleared:
            _mention(earlier, error)
            error.next_step = "\n".join(filter(None, (error.next_step, _CLEAR)))
        raise


def _mention(earlier: Start, error: InvalidRequestError) -> None:
    error.accepted = Accepted.MAYBE if earlier.state == "starting" else Accepted.YES
    error.consequence += _but(earlier)


def _but(earlier: Start) -> str:
    return f"\nBut try {earlier.try_number} ({earlier.at}) {earlier.words}."


class RunStarter:
    """
    Start the run of one record, unless an earlier try did.

    :param record: what the task instance knows about the run
    :param hook: sends the request; closed afterwards
    :param patience: how long to keep retrying while the service is busy or cannot be reached
    """

    def __init__(
        self,
        record: StartRecord,
        hook: WorkflowAutomationHook,
        patience: Patience,
        *,
        on_unknown_start: OnUnknownStart = "fail",
    ) -> None:
        self._record = record
        self._hook = hook
        self._patience = patience
        self._log = patience.log
        self._telemetry = record.telemetry
        self._on_unknown_start = on_unknown_start
        self._in_doubt = False
        """Whether an earlier try may have started a run, and the user accepts another one."""

    def start(
        self,
        prepare: Callable[[], Request],
        *,
        on_given: Callable[[Start | None, StartedRun], None] | None = None,
    ) -> StartedRun:
        """
        Start the run, or return the one that an earlier try started, or that a person entered.

        :param prepare: builds the request; called only if a run is to be started
        :param on_given: called with what is known of an earlier try, and the run that a person entered, before it is
            recorded
        :raises WorkflowAutomationError: if no run was started, or it is unknown whether one was
        """
        earlier = self._record.read()
        may_be_given = self._record.outlives_try and (earlier or self._record.is_later_try)
        if may_be_given and (given := self._given(earlier)):
            if on_given:
                on_given(earlier, given)
            return self._adopt_given(given)
        if earlier:
            # Empty where the service said nothing of the run.
            if (run := self._earlier_run(earlier)) is not None:
                return run
            self._in_doubt = not earlier.cleared
        if not self._record.outlives_try:
            self._log.warning(
                "Task state does not persist across tries before Airflow 3.3: if this try fails after it triggered "
                "the flow, the next may start a second run."
            )
        try:
            with self._hook:
                request = prepare()
                return self._patience.call(
                    lambda: self._send(request), on_retry=lambda: self._telemetry.count("runs.retried")
                )
        except WorkflowAutomationError as error:
            if earlier and self._in_doubt and error.accepted is Accepted.NO:
                # Of this try that is all; of the task it is not.
                error.accepted = Accepted.MAYBE
                error.consequence += _but(earlier)
                error.next_step = "\n".join(filter(None, (error.next_step, _LOOK)))
            raise

    def adopt(self, run: StartedRun) -> StartedRun:
        """Record and return a run that a person found, in place of starting one."""
        try:
            self._record_started(run)
        except Exception:
            self._log.exception("Run %s could not be recorded.", run["run_id"])
        return run

    def _given(self, earlier: Start | None) -> StartedRun | None:
        try:
            return self._record.given()
        except InvalidRequestError as error:
            # Also from before a Clear: who enters a run wants to continue with one, not to start another.
            if earlier:
                _mention(earlier, error)
            raise

    def _adopt_given(self, run: StartedRun) -> StartedRun:
        self._log.info(
            "Returning run %s, which was entered in the task's state store, not starting another.",
            run["run_id"],
        )
        self._record_started(run)
        self._record.take_given()  # only once the run is recorded: a kill must not lose it
        return run

    def _earlier_run(self, earlier: Start) -> StartedRun | None:
        """Return the run that an earlier try started, None if a run is to be started."""
        found = f"Try {earlier.try_number} ({earlier.at}) {earlier.words}."
        if earlier.cleared:
            self._log.warning("%s The task has been cleared since: starting another run.", found)
            return None
        has_changed = self._record.request and earlier.request != self._record.request
        if has_changed and self._record.nested:
            # For example, names by position in a list that changed: it is the run of another request.
            changed = InvalidRequestError(
                f"{self._record.name!r} has other inputs or another flow_id than in try {earlier.try_number}.",
                consequence="Nothing was sent for it in this try.",
                next_step=f"Inside a task, use a name for each start that means the same in every try.\n{_CLEAR}",
            )
            _mention(earlier, changed)
            raise changed
        if has_changed and earlier.request:
            self._log.warning(
                "The inputs or the flow_id differ from those of try %d, which its run has.",
                earlier.try_number,
            )
        hint = ""
        if earlier.ambiguous:
            hint = "If you cleared the task to start another run, clear it again, alone and without keeping its task state."
        match earlier.state:
            case "started":
                self._log.info("%s", f"{found} Returning that run, not starting another. {hint}".strip())
                self._telemetry.count("runs.returned")
                return earlier.run
            case "unidentified":
                raise ResponseUnusableError(
                    earlier.message, consequence=found, next_step=f"{_LOOK} {hint}".strip()
                )
            case "starting" if self._on_unknown_start == "start_again":
                self._log.warning("%s Starting another run: on_unknown_start is 'start_again'.", found)
                return None
        raise OutcomeUnknownError(found, next_step=f"{_LOOK} {hint}".strip())

    def _send(self, request: Request) -> StartedRun:
        attributes = {
            "conn_id": self._hook.workflow_automation_conn_id,
            "flow_id": self._hook.flow_of(request),
        }
        with self._telemetry.span("trigger", attributes) as told:
            run = self._send_once(request)
            told["run_id"] = run.get("run_id")
        return run

    def _send_once(self, request: Request) -> StartedRun:
        """Send the request; the record is always written before it."""
        if self._patience.is_ended():
            raise NotSentError(
                "The trigger request was not sent: the task was ended.",
                consequence=consequence_of(request.operation, Accepted.NO),
            )
        # Logged before the record is written, which waits for a response from Airflow: by then these lines
        # are in the log, even if the task is killed in its last try, after which no other try reports it.
        self._log.info(
            "Triggering %s via connection %s.",
            f"flow {flow}" if (flow := self._hook.flow_of(request)) else "the flow of the API key",
            self._hook.workflow_automation_conn_id,
        )
        self._log.info("If no later line says what became of it, a run may have been started.")
        handed_over = False
        began = 0.0

        def before_last_byte() -> None:
            nonlocal handed_over
            handed_over = True

        try:
            self._record.starting()
            began = time.monotonic()
            run = run_of(self._hook.send_trigger(request, before_last_byte=before_last_byte))
            took = time.monotonic() - began
        except WorkflowAutomationError as error:
            took = time.monotonic() - began
            if error.accepted is Accepted.YES:
                self._record_unidentified(error.message)
            elif error.accepted is Accepted.NO:
                self._take_back()
            if metric := metric_of(error):
                self._telemetry.count(metric)
            if error.status is not None:
                self._telemetry.time("runs.response_time", took)
            raise
        # It is unknown what went wrong, and whether this process may still write the record.
        except Exception:
            raise
        except BaseException:  # such as the task's execution_timeout
            if handed_over:
                self._log.warning("Interrupted while waiting for the response. A run may have been started.")
            else:
                self._take_back()
            raise
        started = self._keep(run)
        self._telemetry.count("runs.started")
        self._telemetry.time("runs.response_time", took)
        return started

    def _keep(self, run: Run) -> StartedRun:
        """Record and return a run that was started."""
        if run.run_id is None:
            self._log.warning(
                "Started a run, but the response has no run_id. Find it in the workflow's list of runs: %s",
                run.run_link or "there is no run_link either",
            )
        else:
            self._log.info("Started run %s: %s", run.run_id, run.run_link)
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
                run.run_id,
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

    def _record_unidentified(self, message: str) -> None:
        try:
            self._record.unidentified(message)
        except Exception:  # the record says "starting", which a later try handles in the same way
            self._log.exception("A run was started, but its record could not be completed.")

    def _take_back(self) -> None:
        if self._in_doubt:
            self._log.warning("This try started no run, but an earlier try may have started one.")
        try:
            if self._in_doubt:
                self._record.put_back()
            else:
                self._record.take_back()
        except Exception:
            self._log.exception(
                "This try started no run, but that could not be recorded: a later try will report that a run may "
                "have been started."
            )
