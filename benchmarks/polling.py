"""
An operator as other providers' are.

Its task is deferred to a trigger that asks an HTTP URL again and again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

POLL = 60  # seconds between two polls: a usual default


class PollingTrigger(BaseTrigger):
    """Ends once the URL responds that the run has succeeded."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the trigger is made of."""
        return "polling.PollingTrigger", {"url": self.url}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll."""
        # As if the tasks had been deferred at different times.
        await asyncio.sleep(random.uniform(0, POLL))
        while True:
            async with aiohttp.ClientSession() as session, session.get(self.url) as response:
                if (await response.json())["state"] != "running":
                    break
            await asyncio.sleep(POLL)
        yield TriggerEvent("success")


class PollingOperator(BaseOperator):
    """Waits for a run."""

    def __init__(self, *, url: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = url

    def execute(self, context: Any) -> None:
        """Defer the task."""
        self.defer(trigger=PollingTrigger(self.url), method_name="execute_complete")

    def execute_complete(self, context: Any, event: Any) -> Any:
        """Return what the trigger found."""
        return event
