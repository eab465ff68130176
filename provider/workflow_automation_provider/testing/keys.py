"""API keys of the local service."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Annotated

from pydantic import Field, InstanceOf

from workflow_automation_provider.testing.scripted import Text, check_types

__all__ = ["DEMO_FLOW_ID", "DEMO_KEY", "Key"]

DEMO_FLOW_ID = "demo-flow"
"""The flow of the demo key."""


@dataclass(frozen=True)
class Key:
    """
    An API key, created for one flow.

    :param value: what a client sends in ``X-API-Key``; appears neither in ``repr()`` nor in the journal
    :param flow_id: the flow that the key belongs to
    :param name: must differ among the keys of one flow, because the journal counts the runs of a key by flow
        and name
    :param max_runs: the number of runs that the key may start, ``None`` for any number
    :param expires_on: the last day (UTC) or the last moment on which the key is valid, ``None`` if it never
        expires
    :raises ValueError: if a field is invalid
    """

    value: Text = field(repr=False)
    flow_id: Text
    name: Text = "key"
    max_runs: Annotated[int, Field(ge=0)] | None = None
    expires_on: InstanceOf[date] | None = None

    def __post_init__(self) -> None:
        check_types(Key, vars(self), secret={"value"})

    def expired(self, now: datetime | None = None) -> bool:
        """
        Return whether the key has expired.

        :param now: the moment to compare with, with a time zone; by default the current time
        """
        if self.expires_on is None:
            return False
        now = now or datetime.now(UTC)
        # A datetime is also a date, so it has to be checked first.
        if isinstance(self.expires_on, datetime):
            last = self.expires_on if self.expires_on.tzinfo else self.expires_on.replace(tzinfo=UTC)
            return now > last
        return now.astimezone(UTC).date() > self.expires_on


DEMO_KEY = Key("demo-key", DEMO_FLOW_ID, name="demo")
"""The default key of a service."""
