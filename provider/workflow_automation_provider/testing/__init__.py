"""
A local service with the interface of the workflow automation service, to run and test DAGs against.

.. code-block:: python

    from workflow_automation_provider.testing import Key, LocalService

    with LocalService(keys=[Key("secret", "demo-flow")]) as service:
        service.faults.add("drop_after", operation="trigger_by_key")
        ...  # point a connection at service.base_url
        assert len(service.runs) == 1

It promises no more than the interface document. What that document does not specify (the status of
a rejected key, the response of a trigger by key, the body of an error), the local service chooses:
it says nothing about the real service.

Starting a :class:`LocalService` or a :class:`CallbackEndpoint` needs the ``testing`` extra.
"""

from __future__ import annotations

from workflow_automation_provider.testing.callbacks import Callback, Callbacks, ScriptedCallback
from workflow_automation_provider.testing.faults import Fault, Faults, ScriptedFault
from workflow_automation_provider.testing.journal import (
    Journal,
    JournalError,
    Request,
    Run,
    SentCallback,
    Upload,
    Work,
)
from workflow_automation_provider.testing.scripted import DEMO_FLOW_ID, DEMO_KEY, Key
from workflow_automation_provider.testing.service import CallbackEndpoint, LocalService

__all__ = [
    "DEMO_FLOW_ID",
    "DEMO_KEY",
    "Callback",
    "CallbackEndpoint",
    "Callbacks",
    "Fault",
    "Faults",
    "Journal",
    "JournalError",
    "Key",
    "LocalService",
    "Request",
    "Run",
    "ScriptedCallback",
    "ScriptedFault",
    "SentCallback",
    "Upload",
    "Work",
]
