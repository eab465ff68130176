"""What the hook's tests share: connections as Airflow reads them, and what was found and sent."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections.abc import Iterable
from datetime import timedelta

import pytest
from hypothesis import strategies as st

from workflow_automation_provider.client.files import File
from workflow_automation_provider.hooks.files.sources import FileSource, resolve
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


@pytest.fixture
def connect(monkeypatch):
    """
    Define a connection by the environment, as a URI or as the fields of its JSON.

    And return a hook on it.
    """

    def define(uri=None, /, conn_id="wa_test", **fields):
        value = uri or json.dumps(
            {"conn_type": "workflow_automation", "host": "service.example", **fields}
        )
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)
        return WorkflowAutomationHook(conn_id)

    return define


@pytest.fixture
def hook(service):
    return WorkflowAutomationHook()


@pytest.fixture
def log_all(caplog, monkeypatch):
    """
    Do all that a mailbox can, with each logger at DEBUG.

    And return the URL that it signs, and what was logged, to which ``other``, one of the loggers
    that it keeps quiet, adds a line afterwards.
    """

    def use(mailbox, service_url, other):
        hour = timedelta(hours=1)
        # Google's libraries log nothing unless the user has asked for it.
        monkeypatch.setattr(logging.getLogger("google"), "propagate", True)
        with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "google"):
            mailbox.check(hour, service_url)
            mailbox.exists()
            mailbox.read(9)
            mailbox.indexes()
            url = mailbox.sign(hour)
            logging.getLogger(other).debug("of others")
        return url, "".join(str(vars(record)) for record in caplog.records)

    return use


@pytest.fixture
def run_id(hook):
    """Start a run, for uploads."""
    return hook.trigger_flow({}, "demo-flow").run_id


def resolved(source: FileSource | Iterable[FileSource]) -> list[File]:
    """Resolve sources that name files, and no mapping."""
    elements = resolve(source)
    files = [element for element in elements if isinstance(element, File)]
    assert files == elements
    return files


# What is made up of files and globs.
_parts = st.sampled_from(["a", "b", "*", "**", "?", "*.csv", "[ab]", "[!b]*", "[[]a]", ".*"])
globs = st.lists(_parts, min_size=1, max_size=4).filter(
    lambda found: re.search(r"[*?[]", "".join(found))
)
paths = st.lists(st.sampled_from(["a", "b", "a.csv", ".h", "[a]"]), min_size=1, max_size=4).map(
    "/".join
)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def sent(service):
    """
    Return name and hash of each file of the one upload.

    Of a long file, the service keeps no more.
    """

    def digest(content):
        if isinstance(content, dict):
            return content["long_string"]["decoded"]["sha256"]
        return sha256(base64.b64decode(content))

    (upload,) = service.uploads
    return [(file["name"], digest(file["content"])) for file in upload.files]
