"""API keys of the local service."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime

__all__ = ["DEMO_FLOW_ID", "DEMO_KEY", "Key"]

DEMO_FLOW_ID = "demo-flow"
"""The flow of the demo key."""


@dataclass(frozen=True)
class Key:
    """
    An API key, created for one flow.

    :param value: what a client sends in ``X-API-Key``; never shown nor journalled.
    :param flow_id: the flow the key belongs to.
    :param name: the key's name; the keys of one flow must have different names, because the journal counts
        the runs of a key by flow and name.
    :param max_runs: how many runs the key may start; ``None`` for any number.
    :param expires_on: the last day (UTC) or the last moment the key is good for; ``None`` for ever.
    """

    value: str = field(repr=False)
    flow_id: str
    name: str = "key"
    max_runs: int | None = None
    expires_on: date | None = None

    def __post_init__(self) -> None:
        if not self.value or not self.flow_id:
            raise ValueError("A key needs a value and a flow_id")

    def expired(self, now: datetime | None = None) -> bool:
        """
        Tell whether the key's expiry date has passed.

        :param now: the moment to judge by, with a time zone; the present by default.
        """
        if self.expires_on is None:
            return False
        now = now or datetime.now(UTC)
        # A datetime is a date too, so the narrower type has to be asked for first.
        if isinstance(self.expires_on, datetime):
            last = self.expires_on if self.expires_on.tzinfo else self.expires_on.replace(tzinfo=UTC)
            return now > last
        return now.astimezone(UTC).date() > self.expires_on


DEMO_KEY = Key("demo-key", DEMO_FLOW_ID, name="demo")
"""The key that a service knows unless it is given others."""
