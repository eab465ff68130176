"""What is done about the start of an earlier try: return its run, report it, or send the request (again)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflow_automation_provider.exceptions import (
    Code,
    InvalidRequestError,
    OutcomeUnknownError,
    UnidentifiedError,
)
from workflow_automation_provider.execution.errors import EarlierTry
from workflow_automation_provider.execution.ledger import IN_DOUBT, Decision, State

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from workflow_automation_provider.execution.ledger import Ledger
    from workflow_automation_provider.execution.start_record import RunResult, StartEntry, StartRecord

_LOOK = "Look in the workflow's list of runs."

REVOKED = "A run of it that claims its start from now on is told to stop."
"""What an error adds where the token of a start was revoked."""


def as_earlier_try(entry: StartEntry) -> EarlierTry:
    """Return what an error says of an entry, which an earlier try wrote."""
    if entry.state is State.STARTED:
        return EarlierTry(Code.UNIDENTIFIED, entry.text, entry.run.get("run_id"))
    code = Code.START_UNKNOWN if entry.state in IN_DOUBT else Code.UNIDENTIFIED
    return EarlierTry(code, f"{entry.text} {_LOOK}")


def earlier_run(
    entry: StartEntry, record: StartRecord, ledger: Ledger, log: Logger, on_unknown_start: str
) -> RunResult | None:
    """
    Return the run that an earlier try started, None if the request is to be sent.

    :param entry: what that try wrote, and the ledger has read
    :param on_unknown_start: the argument, to say why
    :raises InvalidRequestError: if it sent another request under the same name
    :raises WorkflowAutomationError: if it may have started a run, and nothing is to be sent
    """
    if ledger.was_cleared:
        log.warning("%s The task has been cleared since: starting another run.", _sentence(entry))
        return None
    decision = ledger.decide(0, record.digest)
    if decision is Decision.CHANGED:
        # For example, names by position in a list that changed: it is the run of another request.
        raise InvalidRequestError(
            f"{record.name!r} has other inputs or another flow_id than in try {entry.attempt.try_number}.",
            consequence="Nothing was sent for it in this try.",
            next_step="Inside a task, use a name for each start that means the same in every try.",
        )
    if entry.request and record.request and entry.request != record.request:
        log.warning(
            "The inputs or the flow_id differ from those of try %d, which its run has.",
            entry.attempt.try_number,
        )
    if decision is Decision.SEND:
        why = f"on_unknown_start is {on_unknown_start!r}"
        if entry.state is State.STARTED:
            why = "that run was told to stop"
        elif on_unknown_start == "claim":
            why = "a run that has not claimed its start in time, or was told to stop, can no longer go on"
        log.warning("%s Starting another run: %s.", _sentence(entry), why)
        return None
    hint = ""
    if ledger.is_ambiguous:
        hint = "If you cleared the task to start another run, clear it again, alone and without keeping its task state."
    if decision is Decision.RETURN:
        log.info("%s", f"{_sentence(entry)} Returning that run, not starting another. {hint}".strip())
        return entry.run
    next_step = f"{hint}\n{REVOKED if ledger.state(0) is State.REVOKED else ''}".strip()
    if entry.state in IN_DOUBT:
        raise OutcomeUnknownError(_sentence(entry), consequence=_LOOK, next_step=next_step)
    raise UnidentifiedError(entry.message, consequence=f"{_sentence(entry)} {_LOOK}", next_step=next_step)


def _sentence(entry: StartEntry) -> str:
    return f"T{entry.text[1:]}"
