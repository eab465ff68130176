"""
The end of a run in its mailbox, for a flow that cannot reach Airflow.

What the run writes is what it would otherwise send to Airflow, and is checked by the same code. It
is read by the task alone: :class:`~workflow_automation_provider.triggers.mailbox.MailboxTrigger`
only looks whether it is there.
"""

from __future__ import annotations

from workflow_automation_provider.exceptions import RunTimeoutError
from workflow_automation_provider.execution.record.callback import (
    MAX_BODY,
    Ended,
    parse,
    without_mailbox,
)
from workflow_automation_provider.execution.record.entries import End


def mailbox_of(folder: str, token: str) -> str:
    """
    Return the URL of a start's mailbox.

    :param token: the hash of its token
    """
    return f"{folder}/{token}.json"


def read_end(url: str, token: str) -> End | None:
    """
    Return how a run ended, None if it has not written that.

    :param url: that of its mailbox
    :param token: the hash of its token
    :raises RunTimeoutError: if what it has written is not valid: no end can come any more
    :raises NotSentError: if the store cannot be asked
    """
    # Not at the top: most tasks have none.
    from workflow_automation_provider.hooks.mailbox import Mailbox

    written = Mailbox(url).read(MAX_BODY)
    if written is None:
        return None

    try:
        if len(written.body) > MAX_BODY:
            raise ValueError(f"It has more than {MAX_BODY} bytes.")

        report = parse(written.body)
        if not isinstance(report, Ended):
            raise ValueError("status is not 'success' or 'failed': a mailbox is for the end alone.")

        ended = without_mailbox(report, token)
    except Exception as error:
        why = str(error).removesuffix(".")
        raise RunTimeoutError(
            f"What the run wrote is not valid: {why}. It is in its mailbox, {url}.",
            next_step=(
                "Correct the last step of the flow.\n"
                "Delete the object before you continue with this run."
            ),
        ) from None

    return End(written.at, ended.status, ended.run_id, ended.result, ended.message)
