"""
Wait for a run to finish.

The service has no status API, so the flow's last step reports the result. Among its inputs, the flow gets a URL of
Airflow with a token for this run alone, and the task parks until the flow has called it:

1. **Look** whether the run has ended: after the start, and whenever the task continues.
2. **Push** what is known of the run, before the first park: a person who knows its end may mark the task.
3. **Park**, without a worker, until the endpoint wakes the task, or the next look is due.

A parked task (Airflow 3.3+, ``awaiting_input``) uses no worker, no triggerer and no pool slot. The scheduler's sweep of
timeouts continues it in the operator's ``execute_complete``; the endpoint wakes it by lowering its timeout. A wait has no
entry of its own: it began with the outcome of the start, and its end is in what the run has said.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.exceptions import (
    Code,
    InvalidRequestError,
    RunFailedError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.errors import quoted
from workflow_automation_provider.execution.ledger import run_result

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from workflow_automation_provider.execution.ledger import End, Facts, RunResult, Spoken
    from workflow_automation_provider.execution.record import StartRecord
    from workflow_automation_provider.execution.retry import SendRetrier
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

POLL_INTERVAL = 0.5
"""Seconds between two looks of a task, in its worker, at what a run has said."""

# How long a parked task sleeps if nobody wakes it. The first sleep is short, because an end that comes between the
# task's last look and its park wakes nobody. None may end before the scheduler knows that the task has left
# its worker: Airflow 3.3 would take that for a failure.
_SLEEPS = [timedelta(seconds=seconds) for seconds in (15, 60, 240, 960, 3600)]
_MIN_SLEEP = timedelta(seconds=5)


class ResultUnreadableError(InvalidRequestError):
    """The run has ended, but its result cannot be redacted: the connection is broken. A later try returns the result."""


class Waiting(NamedTuple):
    """
    What a task waits for, and is parked with.

    :param run: the run, as far as known
    :param token: the hash of its token
    :param since: when the wait began
    :param until: when it ends at the latest
    :param entered: the run that a person entered, None if there is none
    :param sleeps: how often the task has parked
    :param silence: seconds that the run may say nothing, for the page **Flow runs**
    """

    run: RunResult
    token: str
    since: datetime
    until: datetime
    entered: str | None = None
    sleeps: int = 0
    silence: float | None = None

    @classmethod
    def of(cls, facts: Facts, run: RunResult, timeout: timedelta) -> Waiting:
        """Return the wait for the run of a start."""
        start = facts.start
        assert start.token  # noqa: S101
        # With a run that a person entered, the wait begins anew.
        known = None if start.run else facts.outcome or facts.spoken.claim
        since = known.at if known else start.at
        entered = start.run["run_id"] if start.run else None
        return cls(run=run, token=start.token, since=since, until=since + timeout, entered=entered)

    @classmethod
    def read(cls, parked: Mapping[str, Any]) -> Waiting:
        """Return what a task was parked with."""
        times = {name: datetime.fromisoformat(parked[name]) for name in ("since", "until")}
        return cls(**{**parked, **times})


@dataclass(eq=False, repr=False)
class CompletionWait:
    """
    The wait of one task for the end of its run.

    :param record: has what the run says
    :param retrier: its logger, and whether Airflow ended the task
    :param heartbeat_timeout: how long to wait for a word of the run, None for as long as for its end
    :param expects_claim: whether a flow that never claims its start is worth a warning
    """

    record: StartRecord
    hook: WorkflowAutomationHook
    retrier: SendRetrier
    context: Context
    heartbeat_timeout: timedelta | None = None
    expects_claim: bool = False

    def wait(self, waiting: Waiting) -> RunResult:
        """
        Return the run with the flow's result once it succeeded; park the task until then.

        :raises RunFailedError: if the run failed, or was told to stop
        :raises RunTimeoutError: if no result was reported in time
        :raises InvalidRequestError: if a person entered the run, and another one has the task
        :raises BaseException: Airflow's signal to park the task
        """
        while True:
            spoken = self.record.spoken(waiting.token, twice=True)
            if waiting.entered:
                check_entered(waiting.entered, spoken)
            run, end = waiting.run, spoken.end
            if spoken.stopped and not end:
                raise RunFailedError("The run was told to stop.", **_facts_of(run))
            try:
                # Two runs may hold one token: the one that spoke need not be the response's.
                if spoken.run_id or (spoken.claim and spoken.claim.run_link):
                    run = with_said(run, spoken, self.hook)
                if end:
                    return self._ended(waiting, run, spoken, end)
            except Exception as error:
                if end is None or isinstance(error, RunFailedError):
                    raise
                raise _unreadable(end, error) from error
            left = waiting.until - datetime.now(UTC)
            if left <= timedelta():
                raise self._overdue(run, waiting, spoken)
            silence = self._silence_left(run, waiting, spoken)
            if is_supervised():
                self._park(run, waiting, min(left, silence))
            # Outside a scheduler, nobody would wake a parked task.
            if self.retrier.is_ended():
                raise RunTimeoutError(
                    "The task was ended before anybody said how the run ended.", **_facts_of(run)
                )
            time.sleep(POLL_INTERVAL)

    def _park(self, run: RunResult, waiting: Waiting, left: timedelta) -> NoReturn:
        sleep = max(_MIN_SLEEP, min(left, _SLEEPS[min(waiting.sleeps, len(_SLEEPS) - 1)]))
        self.retrier.log.info(
            "Waiting for the end of run %s, until %s at the latest.",
            one_line(run.get("run_id", "(unknown id)")),
            waiting.until.isoformat(timespec="seconds"),
        )
        if waiting.sleeps == 0 or run != waiting.run:
            self._push(run)
        silence = self.heartbeat_timeout.total_seconds() if self.heartbeat_timeout else None
        then = waiting._replace(run=run, sleeps=waiting.sleeps + 1, silence=silence)._asdict()
        then |= {"since": waiting.since.isoformat(), "until": waiting.until.isoformat()}
        from airflow.sdk.exceptions import TaskAwaitingInput

        kwargs = {"waiting": then, "ti_id": str(self.context["ti"].id)}
        raise TaskAwaitingInput(method_name="execute_complete", kwargs=kwargs, timeout=sleep)

    def _push(self, run: RunResult) -> None:
        """
        Push the run as Airflow does once a task has succeeded.

        A task that a person marks as success passes the run on: a park and a mark keep the XComs.
        """
        ti, task = self.context["ti"], cast("BaseOperator", self.context["task"])
        if not task.do_xcom_push:
            return
        pushed = {**(run if task.multiple_outputs else {}), "return_value": {**run}}
        try:
            for key, value in pushed.items():
                ti.xcom_push(key=key, value=value)
        except Exception:
            self.retrier.log.warning(
                "The run could not be pushed as an XCom: if the task is marked as success while it waits, the next one "
                "does not get it.",
                exc_info=True,
            )

    def _ended(self, waiting: Waiting, run: RunResult, spoken: Spoken, end: End) -> RunResult:
        """
        Return the run and the flow's result.

        :raises RunFailedError: if the run failed
        """
        self.retrier.log.info(self._said(waiting, spoken))
        result, message = self._redacted(end.result), self._redacted(end.message) or ""
        if self.expects_claim and not spoken.claim:
            self.retrier.log.warning(
                "The run has not claimed its start: the flow has no first step that does. Wherever the outcome of a "
                "start is unknown, another run is started, as with on_unknown_start='start_again'."
            )
        if end.status == "failed":
            failed, words = "The flow said that the run failed", quoted(message)
            raise RunFailedError(
                f"{failed}:{words}" if words else f"{failed}.",
                result=result,
                **_facts_of(run),
            )
        succeeded = f"The flow said that the run succeeded. {one_line(message)}".strip()
        self.retrier.log.info(succeeded)
        return run if result is None else {**run, "result": result}

    def _said(self, waiting: Waiting, spoken: Spoken) -> str:
        """Return when the run said what, in order."""
        said = [(spoken.claim.at, "started")] if spoken.claim else []
        said += [(spoken.end.at, spoken.end.status)] if spoken.end else []
        if spoken.claim:  # only then a run may say how far it is
            with contextlib.suppress(Exception):  # it decides nothing
                if at := self.record.last_word(waiting.token):
                    said.append((at, "running (its last)"))
        steps = ", ".join(f"{what} at {at:%H:%M:%S}" for at, what in sorted(said))
        return f"The run said: {steps}." if steps else "The run has said nothing."

    def _silence_left(self, run: RunResult, waiting: Waiting, spoken: Spoken) -> timedelta:
        """
        Return how long the run may still say nothing.

        :raises RunTimeoutError: if it has said nothing for too long
        """
        if self.heartbeat_timeout is None:
            return timedelta.max
        words = (
            waiting.since,
            spoken.claim and spoken.claim.at,
            self.record.last_word(waiting.token),
        )
        last = max(filter(None, words))
        left = last + self.heartbeat_timeout - datetime.now(UTC)
        if left <= timedelta():
            raise RunTimeoutError(
                f"The run has said nothing since {last.isoformat(timespec='seconds')}, for longer than "
                f"heartbeat_timeout ({self.heartbeat_timeout}).",
                code=Code.RUN_SILENT,
                **_facts_of(run),
            )
        return left

    def _overdue(self, run: RunResult, waiting: Waiting, spoken: Spoken) -> RunTimeoutError:
        by_id = f"run {run['run_id']}" if "run_id" in run else "the workflow's list of runs"
        where = run.get("run_link") or by_id
        return RunTimeoutError(
            f"No result was reported within completion_timeout ({waiting.until - waiting.since}). "
            f"{self._said(waiting, spoken)}",
            next_step=(
                f"Look at {where}.\nIf its last step failed to call back, look at its error, and whether the service reaches "
                "callback_base_url."
            ),
            **_facts_of(run),
        )

    def _redacted(self, value: Any) -> Any:
        """Return a value from the flow, or a note if it reveals a secret."""
        text = value if isinstance(value, str) else json.dumps(value)
        shown = self.hook.get_conn().redact(text)
        return value if shown == text else shown


def is_supervised() -> bool:
    """Return whether Airflow runs this task in a process of its own, rather than ``dag.test()`` or a test."""
    from airflow.sdk.execution_time import task_runner

    comms = getattr(task_runner, "SUPERVISOR_COMMS", None)
    return comms is not None and not type(comms).__name__.startswith("InProcess")


def _facts_of(run: RunResult) -> dict[str, Any]:
    return {"run_id": run.get("run_id"), "flow_id": run.get("flow_id")}


def _unreadable(end: End, error: Exception) -> ResultUnreadableError:
    ended = "succeeded" if end.status == "success" else "failed"
    why = error.message if isinstance(error, WorkflowAutomationError) else error
    return ResultUnreadableError(
        f"The flow said that the run {ended}, but the connection cannot be used: {why}",
        next_step="What was said is stored. Once the connection works, the next try returns it.",
    )


def check_entered(run_id: str, spoken: Spoken) -> None:
    """
    Check that the run that a person entered still has the task.

    :raises InvalidRequestError: if it was told to stop, or another one has claimed or ended
    """
    if spoken.stopped or run_id in spoken.refused:
        raise not_continued(run_id, "it was told to stop")
    if spoken.run_ids - {run_id}:
        raise not_continued(run_id, "another run has the task")


def with_said(run: RunResult, spoken: Spoken, hook: WorkflowAutomationHook) -> RunResult:
    """Return a run with the id and the link that it said, unless they reveal a secret of the connection."""
    link = spoken.claim and spoken.claim.run_link
    redact = hook.get_conn().redact
    said = run_result(
        *(text if text and redact(text) == text else None for text in (spoken.run_id, link))
    )
    if spoken.run_id not in (None, run.get("run_id")):
        # The response named another run: nothing of that is kept.
        run = run_result(None, flow_id=run.get("flow_id"))
    return {**run, **said}


def not_continued(run_id: str, why: str) -> InvalidRequestError:
    """Return the error for a run that a person entered, and with which the task cannot continue."""
    return InvalidRequestError(
        f"The task cannot continue with run {one_line(run_id)}, which a person entered: {why}.",
        next_step=(
            "If that run did the work, mark the task as success. To start another run, delete the entry under Storage and "
            "clear the task."
        ),
    )
