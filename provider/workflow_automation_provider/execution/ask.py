"""
Ask a person whether a run was started, where nobody else can know: ``on_unknown_start="ask"``.

The task parks (Airflow 3.3+; before, it defers) until somebody has looked in the workflow's list of runs and
answered under **Required Actions**. Whatever the answer, this never starts a run that the person did not ask
for: it returns the run that they found, or lets the start begin again, or fails the task.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from workflow_automation_provider.client.protocol import Operation
from workflow_automation_provider.exceptions import (
    Accepted,
    InvalidRequestError,
    OutcomeUnknownError,
    ResponseUnusableError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution import parking
from workflow_automation_provider.execution.ledger import State
from workflow_automation_provider.execution.parking import Question, Reply
from workflow_automation_provider.execution.start_record import started_run
from workflow_automation_provider.execution.wait import ANSWER_FIELDS, FAILED, SUCCEEDED
from workflow_automation_provider.failures import consequence_of, where_to_look

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from airflow.sdk.types import Logger

    from workflow_automation_provider.execution.start_record import StartedRun, StartRecord
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


class PendingStart(TypedDict, total=False):
    """A start that a person is asked about, as Airflow keeps it while the task is parked."""

    message: str
    """Why it is unknown."""
    accepted: str
    """What is known of a run: the value of an :class:`~workflow_automation_provider.exceptions.Accepted`."""
    flow_id: str | None
    since: str | None
    """When the request was about to be sent, as ISO 8601 text in UTC, as all times here."""
    seen: str
    """When it was known that it is unknown."""
    then_waits: bool
    """Whether the task then waits for the end of the run."""
    until: str
    """When the task fails."""


STARTED, NOT_STARTED, FAIL = "A run was started", "No run was started", "Fail the task"


class UnknownStartPrompt:
    """
    The question whether one start of a task started a run.

    :param record: what the task instance knows about the run
    :param timeout: how long to wait for an answer
    :param notifiers: called with the context when the question is first asked
    :param then_waits: whether the task then waits for the end of the run. Airflow keeps the options that a
        try has asked with first, so that they must answer the later question as well
    """

    def __init__(
        self,
        record: StartRecord,
        hook: WorkflowAutomationHook,
        context: Context,
        log: Logger,
        *,
        timeout: timedelta,
        notifiers: Iterable[Any] = (),
        then_waits: bool = False,
    ) -> None:
        self._record = record
        self._hook = hook
        self._context = context
        self._log = log
        self._timeout = timeout
        self._notifiers = notifiers
        self._then_waits = then_waits

    def check(self) -> None:
        """
        Check that Airflow can ask, before anything else is done.

        :raises InvalidRequestError: if it cannot
        """
        if not parking.can_ask():
            raise InvalidRequestError(
                "on_unknown_start='ask' needs Airflow 3.1 or newer, which can ask a person.",
                next_step="Upgrade Airflow, or use on_unknown_start='fail'.",
            )
        if not parking.has_supervisor():
            raise InvalidRequestError(
                "on_unknown_start='ask' needs a supervisor, through which Airflow asks a person.",
                next_step="Execute the task by dag.test() or a scheduler, or use on_unknown_start='fail'.",
            )

    def ask(self, error: WorkflowAutomationError, flow_id: str | None, since: str | None) -> NoReturn:
        """
        List the question under **Required Actions**, and park the task.

        :param error: why it is unknown
        :param since: when the request was about to be sent, as ISO 8601 text
        :raises WorkflowAutomationError: ``error``, if Airflow could not store the question
        :raises BaseException: Airflow's signal to park the task
        """
        pending: PendingStart = {
            "message": error.message,
            "accepted": error.accepted.value,
            "flow_id": flow_id,
            "since": since,
            # A second later: this one has not ended.
            "seen": (datetime.now(UTC) + timedelta(seconds=1)).isoformat(timespec="seconds"),
            "then_waits": self._then_waits,
            "until": (datetime.now(UTC) + self._timeout).isoformat(),
        }
        try:
            parking.ask(self._context, self._question(pending))
        except Exception:
            self._log.exception("Nobody could be asked whether a run was started.")
            raise error from None
        self._log.warning(
            "%s", f"{error.message}\n{error.consequence}\nAsking under Required Actions.".strip()
        )
        for notify in self._notifiers:
            try:
                notify(self._context)
            except Exception:
                # The question is there: failing now would leave the doubt, and nobody to resolve it.
                self._log.exception("A notifier failed.")
        self._park(pending)

    def says_none_started(self, reply: Reply, pending: PendingStart) -> bool:
        """Return whether a person answered that no run was started, where that may be."""
        return reply.option == NOT_STARTED and not _is_certain(pending)

    def resolve(self, reply: Reply, pending: PendingStart) -> StartedRun | None:
        """
        Return the run that a person found, None if a run is to be started.

        :param reply: why the task continues
        :param pending: what :meth:`ask` parked with
        :raises WorkflowAutomationError: if the task is to fail, or nobody answered in time
        :raises BaseException: Airflow's signal to park the task, if the answer lacks the ``run_id``
        """
        if self.says_none_started(reply, pending):
            self._log.info("%s answered that no run was started.", reply.by)
            # The answer is only about the start that was asked about: the task may have been executed since.
            earlier = self._record.read()
            if earlier and earlier.state is not State.STARTED and earlier.at == pending["since"]:
                self._record.clear()
            return None
        if reply.option == FAIL:
            raise self._failure(pending, f"{reply.by} answered: {FAIL}.")
        if reply.option and reply.fields.get("run_id"):
            self._log.info("%s answered that run %s was started.", reply.by, reply.fields["run_id"])
            link = reply.fields.get("run_link") or None
            return started_run(reply.fields["run_id"], link, pending["flow_id"] or None)
        if _left(pending) <= timedelta(seconds=1):
            raise self._failure(pending, f"Nobody answered within the ask_timeout ({self._timeout}).")
        if reply.option == NOT_STARTED:  # offered by an earlier question of this try
            self._log.warning("%s answered: %s, but one was. Asking again.", reply.by, reply.option)
        elif reply.option:
            self._log.warning("%s answered: %s, but entered no run_id. Asking again.", reply.by, reply.option)
        try:
            parking.ask(self._context, self._question(pending))
        except Exception:
            self._log.exception("Nobody could be asked again whether a run was started.")
            raise self._failure(pending, "") from None
        return self._park(pending)

    def _park(self, pending: PendingStart) -> NoReturn:
        left = max(_left(pending), timedelta(seconds=1))
        parking.park(self._context, self._question(pending), left, {"pending": pending})

    def _failure(self, pending: PendingStart, why: str) -> WorkflowAutomationError:
        accepted = Accepted(pending["accepted"])
        kind = ResponseUnusableError if accepted is Accepted.YES else OutcomeUnknownError
        operation = Operation.TRIGGER_BY_KEY
        return kind(
            "\n".join(filter(None, (pending["message"], why))),
            consequence=consequence_of(operation, accepted),
            next_step=where_to_look(operation),
        )

    def _question(self, pending: PendingStart) -> Question:
        is_certain = _is_certain(pending)
        subject = "Which run was started?" if is_certain else "Was a run started?"
        options = [STARTED, *([] if is_certain else [NOT_STARTED])]
        options += [*([SUCCEEDED, FAILED] if self._then_waits else []), FAIL]
        flow = f"flow {parking.code(pending['flow_id'])}" if pending["flow_id"] else "the flow of the API key"
        since = pending["since"] or pending["seen"]
        body = [
            f"Look in the list of runs of {flow} for a run that was started between {since} and {pending['seen']}.",
            "If you have answered this before, no run_id was entered, or a later start is in doubt: the log says which.",
            "",
            f"- Connection: {parking.code(self._hook.workflow_automation_conn_id)}",
            "- What happened:",
            "",
            *(f"      {line}" for line in pending["message"].splitlines()),
            "",
            f"- *{STARTED}*: enter its run_id. The task continues with that run.",
        ]
        if NOT_STARTED in options:
            body.append(f"- *{NOT_STARTED}*: the task starts one.")
        if self._then_waits:
            body.append(
                f"- *{SUCCEEDED}* or *{FAILED}*: it has ended as well; enter its run_id. "
                "Answer this also if the task waits for a run that does not call back."
            )
        return Question(
            subject,
            "\n".join(body),
            options,
            {
                "run_id": "The run_id, as the application shows it",
                "run_link": "URL of the run in the application",
                **(ANSWER_FIELDS if self._then_waits else {}),
            },
        )


def _is_certain(pending: PendingStart) -> bool:
    """Return whether a run was started for certain, and only its id is unknown."""
    return Accepted(pending["accepted"]) is Accepted.YES


def _left(pending: PendingStart) -> timedelta:
    return datetime.fromisoformat(pending["until"]) - datetime.now(UTC)
