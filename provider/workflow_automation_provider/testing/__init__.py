"""
A local service with the interface of the workflow automation service, to run and test DAGs against.

.. code-block:: python

    from workflow_automation_provider.testing import Key, LocalService

    with LocalService(keys=[Key("secret", "demo-flow")]) as service:
        service.faults.add("drop_after", operation="trigger_by_key")
        ...  # point a connection at service.base_url
        assert len(service.runs) == 1

It promises no more than the interface document. What that document does not specify (the status of a
rejected key, the response of a trigger by key, the body of an error), the local service chooses: it says
nothing about the real service.

:class:`LocalService` and :class:`CallbackEndpoint` need the ``testing`` extra; :class:`Journal`, :class:`Key`,
the faults and the callbacks do not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
from workflow_automation_provider.testing.keys import DEMO_FLOW_ID, DEMO_KEY, Key

if TYPE_CHECKING:
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

_INSTALL = (
    "The local service needs the testing extra: pip install 'airflow-provider-workflow-automation[testing]'"
)


def __getattr__(name: str) -> Any:
    """Import the servers only on first use, so that a missing extra raises a helpful error."""
    if name not in {"CallbackEndpoint", "LocalService"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.service"), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in {"starlette", "uvicorn"}:
            raise ModuleNotFoundError(_INSTALL, name=error.name) from error
        raise
