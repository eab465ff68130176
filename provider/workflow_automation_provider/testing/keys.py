"""API keys of the local service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from workflow_automation_provider.testing.scripted import Text, check_types

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
    :raises ValueError: if a field is invalid
    """

    value: Text = field(repr=False)
    flow_id: Text
    name: Text = "key"
    max_runs: Annotated[int, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        check_types(Key, vars(self), secret={"value"})


DEMO_KEY = Key("demo-key", DEMO_FLOW_ID, name="demo")
"""The default key of a service."""
