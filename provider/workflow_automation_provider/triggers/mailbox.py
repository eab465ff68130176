"""
The trigger of a task that waits for the end of its run in a mailbox.

It only looks, and says nothing of what it saw: the task reads the object itself, and records it. So
the trigger may be started over at any time, or run twice.
"""

from __future__ import annotations

import abc
import asyncio
import functools
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from workflow_automation_provider.exceptions import NotSentError
from workflow_automation_provider.hooks.mailbox import Mailbox

INTERVAL = 30.0
"""
Seconds before each look.

The first is no sooner: Airflow 3.3 takes a task that is queued again before its scheduler has seen
it leave its worker for one that was lost.
"""

_NEWS_INTERVAL = 600.0
"""Seconds after which a task is told of new ends of a batch, though not of all."""

_AT_ONCE = 2
"""How many look at a time by one connection: a store that hangs holds up no other."""


@functools.cache
def _threads(_conn_id: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="workflow-automation-mailbox")


class _StoreTrigger(BaseTrigger):
    """
    Look into a store until what is awaited is there, or the time is up.

    :param url: of an object or a folder, without credentials
    :param until: when to end at the latest, in ISO 8601
    :param interval: seconds before each look
    """

    def __init__(self, url: str, until: str, interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._url = url
        self.until = until
        self.interval = interval

    @abc.abstractmethod
    def _is_due(self) -> bool:
        """
        Return whether the task has something to do.

        :raises NotSentError: if the store cannot be asked
        """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """End once the task has something to do, or the time is up."""
        conn_id = urlsplit(self._url).netloc.rpartition("@")[0]
        is_due = sync_to_async(self._is_due, thread_sensitive=False, executor=_threads(conn_id))
        problem = ""
        pause = self.interval
        while pause > 0:
            await asyncio.sleep(pause)
            pause = min(self.interval, self._left())
            try:
                # Which ends waiting for a turn as well.
                async with asyncio.timeout(self._left()):
                    if await is_due():
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


class MailboxTrigger(_StoreTrigger):
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
        super().__init__(mailbox, until, interval)
        self.mailbox = mailbox

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what Airflow stores of the trigger."""
        kwargs = {"mailbox": self.mailbox, "until": self.until, "interval": self.interval}
        return "workflow_automation_provider.triggers.mailbox.MailboxTrigger", kwargs

    def _is_due(self) -> bool:
        return Mailbox(self.mailbox).exists()


class MailboxFolderTrigger(_StoreTrigger):
    """
    Look for the ends of a batch's runs, by listing their folder.

    :param folder: the URL of the folder, without credentials
    :param until: when to end at the latest, in ISO 8601
    :param interval: seconds before each look
    :param seen: how many objects the task has seen there
    :param awaited: how many there are once all runs have ended
    :param unknown: what another version has stored
    """

    def __init__(
        self,
        folder: str,
        until: str,
        interval: float = INTERVAL,
        *,
        seen: int = 0,
        awaited: int = 0,
        **unknown: Any,
    ) -> None:
        super().__init__(folder, until, interval)
        self.folder = folder
        self.seen = seen
        self.awaited = awaited
        self._began = time.monotonic()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what Airflow stores of the trigger."""
        kwargs = {
            "folder": self.folder,
            "until": self.until,
            "interval": self.interval,
            "seen": self.seen,
            "awaited": self.awaited,
        }
        return "workflow_automation_provider.triggers.mailbox.MailboxFolderTrigger", kwargs

    def _is_due(self) -> bool:
        number = len(Mailbox(self.folder).indexes())
        is_news_due = time.monotonic() - self._began >= _NEWS_INTERVAL
        return number >= self.awaited or (is_news_due and number > self.seen)
