"""
Wait for a run to finish.

The service has no status API, so the flow's last step reports the result. Among its inputs, the
flow gets a URL of Airflow with a token for this run alone. The task waits in Airflow's state
``awaiting_input`` (Airflow 3.3+) until the flow has called it:

1. **Look** whether the run has ended: after the start, and whenever the task continues.
2. **Push** what is newly known of the run as XComs, before the task is suspended: a person who
   knows the end of the run may mark the task.
3. **Suspend** the task until the endpoint wakes it, or the next look is due.

A suspended task uses no worker, no triggerer and no pool slot. The scheduler's sweep of timeouts
continues it in the operator's ``execute_complete``; the endpoint wakes it by lowering its timeout.
A look does what a retry does: it reads the record. The task is suspended with a hash of what it has
pushed, so that each fact is pushed once.

Where the flow cannot reach Airflow, its last step writes to a mailbox (:mod:`~.mailbox`). The task
is then deferred to a trigger, which looks for the object.
"""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

from workflow_automation_provider.exceptions import (
    Code,
    ConnectionUnusableError,
    RunFailedError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.errors import quoted
from workflow_automation_provider.execution.record.callback import MIN_SLEEP
from workflow_automation_provider.execution.record.entries import LastMessage
from workflow_automation_provider.execution.run.claim_wait import POLL_INTERVAL
from workflow_automation_provider.execution.run.tools import redactor_for
from workflow_automation_provider.wording import one_line, run_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk.types import Logger

    from workflow_automation_provider.client.redaction import Redactor
    from workflow_automation_provider.execution.record.entries import End, RunResult, Start
    from workflow_automation_provider.execution.record.start_decision import KnownStart
    from workflow_automation_provider.execution.record.state_store import TaskRecord
    from workflow_automation_provider.execution.run.tools import RunTools
    from workflow_automation_provider.execution.run.xcoms import RunXComs

# How long a task is suspended if nobody wakes it: three times as long as it has waited. The first
# time is short, because an end that comes after the last look, but before that, wakes nobody.
_SLEEP_FACTOR = 3
_MAX_SLEEP = timedelta(hours=1)

TRIGGERER_MARGIN = timedelta(minutes=10)


class CompletionWait:
    """
    The wait of one task for the end of its run.

    :param xcoms: pushes the run before the task is suspended
    """

    def __init__(self, tools: RunTools, xcoms: RunXComs) -> None:
        self._tools = tools
        self._xcoms = xcoms

    def wait(self, known: KnownStart) -> RunResult:
        """
        Return the run with the flow's result once it succeeded; suspend the task until then.

        :param known: what is known of its start
        :raises RunFailedError: if the run failed, or was told to stop
        :raises RunTimeoutError: if no result was reported in time
        :raises InvalidRequestError: if the task has adopted the run, and another one has the task
        :raises ConnectionUnusableError: if the run has ended, but the connection cannot be used; if
            the trigger has failed; or if the mailbox cannot be read, where there is no trigger
        :raises BaseException: Airflow's signal to suspend the task
        """
        while not known.reports.end:
            left = self._left(known)
            if left <= timedelta():
                # What was not seen may be there.
                known = self._look(known, certainly=True)
                left = self._left(known)
                if left <= timedelta() and not known.reports.end:
                    raise self._timed_out(known)

                continue

            failure = self._tools.options.trigger_failure
            if failure:
                raise trigger_failed(failure).with_facts(**self._tools.ids_of(known))
            if is_supervised():
                self._suspend(known, left)
            # Outside a scheduler, nobody would wake the task.
            if self._tools.retrier.is_ended():
                raise RunTimeoutError(
                    "The task was ended before anybody said how the run ended.",
                    **self._tools.ids_of(known),
                )

            time.sleep(POLL_INTERVAL)
            known = self._look(known)

        return self._ended(known, known.reports.end)

    def _look(self, known: KnownStart, *, certainly: bool = False) -> KnownStart:
        """
        Return what is known, with what the run has reported by now.

        :raises RunFailedError: if it was told to stop, or has written no valid end
        :raises ConnectionUnusableError: if its mailbox cannot be read
        :raises InvalidRequestError: if the task has adopted the run, and another one has the task
        """
        known = self._tools.record.look(known, certainly=certainly)
        self._tools.check_goes_on(known)
        return known

    # Time ---------------------------------------------------------------------------------------

    def _left(self, known: KnownStart) -> timedelta:
        """Return how long the task may still wait for the next report of the run."""
        now = datetime.now(UTC)
        left = known.until - now
        if known.start.heartbeat_timeout is None:
            return left
        silent_until = self._last_report_at(known) + timedelta(
            seconds=known.start.heartbeat_timeout
        )
        return min(left, silent_until - now)

    def _last_report_at(self, known: KnownStart) -> datetime:
        """Return when the run last reported something, or the wait began."""
        return known.last_report_at(self._tools.record.last_message(known.start))

    def _timed_out(self, known: KnownStart) -> RunTimeoutError:
        """Return the error for a run that is overdue, or silent."""
        silence = known.start.heartbeat_timeout
        if silence is None or known.until <= datetime.now(UTC):
            return self._overdue(known)

        last = self._last_report_at(known).isoformat(timespec="seconds")
        timeout = timedelta(seconds=silence)
        return RunTimeoutError(
            f"The run has said nothing since {last}, for longer than heartbeat_timeout "
            f"({timeout}).",
            code=Code.RUN_SILENT,
            **self._tools.ids_of(known),
        )

    def _overdue(self, known: KnownStart) -> RunTimeoutError:
        where = self._tools.run_of(known).get("run_link", "the run")
        timeout = known.until - known.since

        overdue = RunTimeoutError(
            f"No result was reported within completion_timeout ({timeout}). "
            f"{self._reports_text(known)}",
            next_step=f"Look at {where}.\n{_last_step_text(known.start)}",
            **self._tools.ids_of(known),
        )
        if known.start.can_call:
            return overdue

        run_is = f"{run_text(overdue.run_id)} was started, and may still be running."
        return overdue.with_facts(consequence=run_is)

    # Suspend ------------------------------------------------------------------------------------

    def _suspend(self, known: KnownStart, left: timedelta) -> NoReturn:
        if not self._tools.options.is_resumed:
            warn_without_retries(self._tools.record, self._tools.log)

        redactor = self._tools.redactor_of(known.start.conn_id)
        run = known.run(redactor)
        self._tools.log.info(
            "%s has not ended. Waiting until %s at the latest.",
            run_text(run.get("run_id")),
            known.until.isoformat(timespec="seconds"),
        )
        if redactor or not known.reports.run_id:
            self._xcoms.push(run, known.response)
        if known.start.mailbox:
            self._defer(known, left)

        sleep = MIN_SLEEP
        if self._tools.options.is_resumed:
            waited = datetime.now(UTC) - known.since
            sleep = min(left, _SLEEP_FACTOR * waited, _MAX_SLEEP)

        from airflow.sdk.exceptions import TaskAwaitingInput

        raise TaskAwaitingInput(
            method_name="execute_complete",
            kwargs={"pushed": self._xcoms.pushed},
            timeout=max(MIN_SLEEP, sleep),
        )

    def _defer(self, known: KnownStart, left: timedelta) -> NoReturn:
        """Suspend the task until its run has written to its mailbox, or the wait is over."""
        from airflow.sdk.exceptions import TaskDeferred

        from workflow_automation_provider.triggers import mailbox

        raise TaskDeferred(
            trigger=mailbox.MailboxTrigger(
                known.start.mailbox, known.until.isoformat(), mailbox.INTERVAL
            ),
            method_name="execute_complete",
            kwargs={"pushed": self._xcoms.pushed},
            # The trigger ends before that, unless there is no triggerer.
            timeout=left + TRIGGERER_MARGIN,
        )

    # The end ------------------------------------------------------------------------------------

    def _ended(self, known: KnownStart, end: End) -> RunResult:
        """
        Return the run and the flow's result.

        :raises RunFailedError: if the run failed
        :raises ConnectionUnusableError: if the connection cannot be used
        """
        redactor = self._redactor(known, end)
        run = known.run(redactor)
        self._tools.log.info(self._reports_text(known))
        named = known.response.get("run_id")
        is_another = known.reports.run_id not in (None, named)
        if named and is_another:
            self._tools.log.warning(
                "%s has the task, and not run %s, which the response named. Any files that were "
                "uploaded before the run reported are with the latter.",
                run_text(run.get("run_id")),
                one_line(named),
            )
        if known.response and is_another:
            self._xcoms.push(run, known.response)

        expects_claim = self._tools.options.on_unknown_start == "claim"
        if expects_claim and known.start.can_call and not known.reports.claim:
            self._tools.log.warning(
                "The run has not claimed its start: the flow has no first step that does. As with "
                "on_unknown_start='start_again', another run is started wherever the outcome of a "
                "start is unknown."
            )

        message = redactor.text(end.message or "")
        result = redactor.value(end.result)
        if result is not end.result:
            self._tools.log.warning("The result is %s", result)

        if end.status == "failed":
            raise RunFailedError(
                _failure_text(message),
                result=result,
                run_id=run.get("run_id"),
                flow_id=run.get("flow_id"),
            )

        succeeded = f"The flow said that the run succeeded. {one_line(message)}".strip()
        self._tools.log.info(succeeded)
        return run if result is None else {**run, "result": result}

    def _redactor(self, known: KnownStart, end: End) -> Redactor:
        """
        Return what knows the connection's secrets.

        :raises ConnectionUnusableError: if the connection cannot be used
        """
        ended = "succeeded" if end.status == "success" else "failed"
        with usable_connection(f"The flow said that the run {ended}, which is stored"):
            return redactor_for(self._tools.hook, known.start.conn_id)

    def _reports_text(self, known: KnownStart) -> str:
        """Return when the run reported what, in order, and the last call that was refused."""
        message = LastMessage()
        with contextlib.suppress(Exception):  # it decides nothing
            message = self._tools.record.last_message(known.start)

        reports: list[tuple[datetime, str]] = []
        if known.reports.claim:
            reports.append((known.reports.claim.at, "started"))
        if known.reports.end:
            reports.append((known.reports.end.at, known.reports.end.status))
        if message.at:
            reports.append((message.at, "running (its last)"))

        text = "The run has said nothing."
        if reports:
            steps = ", ".join(f"{what} at {at:%H:%M:%S}" for at, what in sorted(reports))
            text = f"The run said: {steps}."

        if message.refused_at:
            # The endpoint names no value of the call.
            text += f" A call at {message.refused_at:%H:%M:%S} was refused: {message.refusal}"

        return text


def _failure_text(message: str) -> str:
    failed = "The flow said that the run failed"
    words = quoted(message)
    if words:
        return f"{failed}:{words}"
    return f"{failed}."


def _last_step_text(start: Start) -> str:
    """Return where to look where the run has ended, but nothing was reported."""
    if start.mailbox:
        return f"If it has ended, look whether its last step wrote {start.mailbox}, or its error."

    return (
        "If its last step failed to call back, look at its error, and whether the service reaches "
        f"{start.callback_url}."
    )


def warn_without_retries(record: TaskRecord, log: Logger) -> None:
    """Log a warning if a task that begins to wait has no retries."""
    if record.max_tries == 0:
        log.warning(
            "The task waits without retries: if anything fails while it looks at its run, it "
            "fails for good, whatever becomes of the run. Set retries=1 or more."
        )


def trigger_failed(why: str) -> WorkflowAutomationError:
    """Return the error for a task whose trigger has failed."""
    return ConnectionUnusableError(
        f"The trigger that looks for the end of the run has failed: {one_line(why)}",
        next_step="Look at the log of Airflow's triggerer.",
    )


def is_supervised() -> bool:
    """
    Return whether Airflow runs this task in a process of its own.

    Rather than ``dag.test()`` or a test.
    """
    from airflow.sdk.execution_time import task_runner

    comms = getattr(task_runner, "SUPERVISOR_COMMS", None)
    return comms is not None and not type(comms).__name__.startswith("InProcess")


@contextlib.contextmanager
def usable_connection(what: str) -> Iterator[None]:
    """
    Have an error of the connection retried: the run is known, and so nothing is sent twice.

    :param what: what is true of the run, whatever the connection is
    :raises ConnectionUnusableError: in place of any other error
    """
    try:
        yield
    except Exception as error:
        why = error.message if isinstance(error, WorkflowAutomationError) else error
        raise ConnectionUnusableError(
            f"{what}, but the connection cannot be used: {why}"
        ) from error
