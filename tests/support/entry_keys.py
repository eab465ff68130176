"""
The keys of a task's entries in its task state store, as the code makes them.

The one module of the tests that imports them.
"""

from __future__ import annotations

from workflow_automation_provider.execution.batch import batch_record
from workflow_automation_provider.execution.record import entries as names
from workflow_automation_provider.execution.record import state_store

PREFIX = names.PREFIX
ADOPTED = names.ADOPTED
START = names.START
OUTCOME = names.OUTCOME
BATCH = batch_record.BATCH
PROBE = state_store._PROBE

FIRST_START, SECOND_START = f"{START}1/0", f"{START}2/0"
FIRST_OUTCOME, SECOND_OUTCOME = f"{OUTCOME}1/0", f"{OUTCOME}2/0"
"""Of the operator's own start in the first try, and in the second."""

report_key = names.report_key
message_key = names.message_key
revoked_key = names.revoked_key

RUN, MESSAGE, REVOKED = report_key(""), message_key(""), revoked_key("")
"""What the keys begin with that end with the hash of a token."""


def batch_key(number: int) -> str:
    """Return the key of an entry of a batch, by its number."""
    return f"{BATCH}_{number:06}"
