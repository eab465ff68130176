"""
Settle a start in doubt whose run was given a URL.

Wait for what its run reports. If it has not begun by then, revoke its token: no run can claim it
from then on.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from workflow_automation_provider.exceptions import ConnectionUnusableError

if TYPE_CHECKING:
    from workflow_automation_provider.execution.record.start_decision import KnownStart
    from workflow_automation_provider.execution.run.tools import RunTools

POLL_INTERVAL = 0.5
"""Seconds between two looks of a task, in its worker, at what a run has reported."""


def settle(tools: RunTools, known: KnownStart) -> KnownStart:
    """
    Wait for what a run reports, and revoke its token if it has not begun.

    A response that said that nothing was started may be wrong, but is not worth a wait.

    :raises Exception: if it is not certain that the token is revoked
    """
    if not known.is_denied:
        known = wait_for_claim(tools, known)
    if known.reports.has_begun:
        return known
    return revoke(tools, known)


def wait_for_claim(tools: RunTools, known: KnownStart) -> KnownStart:
    """
    Wait for a run to claim or to end, or for the task's end.

    :raises ConnectionUnusableError: if its mailbox cannot be read at the last look
    """
    # Another worker's clock may be ahead.
    until = min(known.start.at, datetime.now(UTC)) + tools.options.claim_timeout
    is_logged = False

    while True:
        known, problem = _looked(tools, known)
        left = (until - datetime.now(UTC)).total_seconds()
        is_known = known.reports.has_begun or known.reports.stopped
        if is_known or tools.retrier.is_ended() or left <= 0:
            if problem:
                raise problem
            return known

        if not is_logged:
            # If this is the last try, and is killed while it waits, its log ends here.
            tools.log.info(
                "A run may have been started. Waiting up to %.0f s for what it reports.",
                left,
            )
            is_logged = True

        time.sleep(min(POLL_INTERVAL, left))


def _looked(
    tools: RunTools, known: KnownStart
) -> tuple[KnownStart, ConnectionUnusableError | None]:
    """Return what is known, and why the mailbox cannot be read, which may pass."""
    try:
        return tools.record.look(known), None
    except ConnectionUnusableError as problem:
        return known, problem


def revoke(tools: RunTools, known: KnownStart) -> KnownStart:
    """
    Revoke the token of a start, and return what is known of it by then.

    :raises Exception: if it is not certain that the token is revoked
    """
    revoked = tools.record.revoke(known)
    if known.start.can_call and not revoked.reports.has_begun:
        tools.log.info(
            "No run has claimed this start: one that does so from now on is told to stop."
        )

    return revoked
