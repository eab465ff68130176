"""
The trigger of a task that waits for the end of its run in a mailbox.

It only looks, and says nothing of what it saw: the task reads the object itself, and records it. So
the trigger may be started over at any time, or run twice.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from workflow_automation_provider.exceptions import NotSentError
from workflow_automation_provider.hooks.mailbox import open_mailbox

INTERVAL = 30.0
"""
Seconds before each look.

The first is no sooner: Airflow 3.3 takes a task that is queued again before its scheduler has seen
it leave its worker for one that was lost.
"""

_AT_ONCE = 2
"""How many look at a time by one connection: a store that hangs holds up no other."""


@functools.cache
def _threads(_conn_id: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="workflow-automation-mailbox")


class MailboxTrigger(BaseTrigger):
    """
    Look for the end of a run in its mailbox.

    :param mailbox: the URL of the object, without credentials
    :param until: when to end at the latest, in ISO 8601
    :param interval: seconds before each look
    :param unknown: what another version has stored
    """

    def __init__(
        self, mailbox: str, until: str, interval: float = INTERVAL, **unknown: Any
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mailbox = mailbox
        self.until = until
        self.interval = interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what Airflow stores of the trigger."""
        kwargs = {"mailbox": self.mailbox, "until": self.until, "interval": self.interval}
        return "workflow_automation_provider.triggers.mailbox.MailboxTrigger", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """End once the object is there, or the time is up."""
        conn_id = urlsplit(self.mailbox).netloc.rpartition("@")[0]
        exists = sync_to_async(
            open_mailbox(self.mailbox).exists, thread_sensitive=False, executor=_threads(conn_id)
        )
        problem = ""
        pause = self.interval
        while pause > 0:
            await asyncio.sleep(pause)
            pause = min(self.interval, self._left())
            try:
                # Which ends waiting for a turn as well.
                async with asyncio.timeout(self._left()):
                    if await exists():
                        break
            except TimeoutError:
                break
            except NotSentError as error:
                # It may pass. If not, the task fails with it, which looks at the end.
                if error.message != problem:
                    self.log.warning(error.message)

                problem = error.message

        yield TriggerEvent({})  # type: ignore[no-untyped-call]

    def _left(self) -> float:
        """Return the seconds that are left."""
        return (datetime.fromisoformat(self.until) - datetime.now(UTC)).total_seconds()
