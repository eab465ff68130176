"""What the loggers of HTTP clients, ours and Airflow's, write at DEBUG."""

from __future__ import annotations

import logging
import re

import pytest

from workflow_automation_provider.testing import DEMO_KEY

# Airflow's SDK has httpx up to 3.3, and httpx2 from 3.4 on.
CLIENTS = ["httpx", "httpx2", "httpcore", "httpcore2"]
PARTS = ["connection", "http11", "proxy", "socks"]


@pytest.fixture
def wire():
    """Return all lines that they write."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append(self.format(record))

    handler = Lines(logging.DEBUG)
    loggers = [logging.getLogger(name) for name in CLIENTS]
    parts = [logging.getLogger(f"{name}.{part}") for name in CLIENTS for part in PARTS]
    levels = {logger: logger.level for logger in (*loggers, *parts)}
    for logger in levels:
        logger.setLevel(logging.DEBUG)
    for logger in loggers:
        logger.addHandler(handler)
    yield lines
    for logger, level in levels.items():
        logger.setLevel(level)
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.mark.since_3_3
def test_no_line_shows_the_key_or_the_token(
    run_dag, service, workflow_automation_callback_base_url, wire
):
    service.callbacks.add(result={"rows": 3}, started=0, running=[{"progress": 0.5}])
    service.faults.add("echo_key", status=201)
    echo = {"X-Echo": DEMO_KEY.value}
    service.faults.add("status_after", operation="upload", status=200, headers=echo)
    run_dag("""
        with DAG("wire_logs", schedule=None):
            TriggerFlowOperator(
                task_id="trigger",
                inputs={},
                files=[{"name": "a"}],
                wait_for_completion=True,
                on_unknown_start="claim",
                retries=1,
            )
    """)
    text = "\n".join(wire)
    assert re.search(r"POST \S+/trigger ", text), "the clients' lines are seen"
    assert DEMO_KEY.value not in text
    assert "token=" not in text
