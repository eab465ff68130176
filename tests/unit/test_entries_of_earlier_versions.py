"""
A task goes on with what an earlier version has recorded.

The entries are data, in a file for each version that changed them. ``GOLDEN=1`` writes those of
this version anew: only before it is released.
"""

from __future__ import annotations

import json
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator

from .starts import claims, struck, trigger, waits

pytestmark = pytest.mark.since_3_3

FOLDER = Path(__file__).parent / "entries"
RESULT = {"rows": 3}


def batch():
    return TriggerFlowBatchOperator(task_id="trigger", batch=[{"n": 0}, {"n": 1}], retries=2)


def with_files():
    return trigger(files=[{"name": "a"}])


def reports(task, **body):
    assert task.ask(task.flow.runs[0].url, body=body) == 200


def started(world):
    return struck(world, trigger(), "delay")


def busy(world):
    return struck(world, trigger(), "busy")


def in_doubt(world):
    return struck(world, trigger())


def claimed(world):
    """Its task was killed before it knew of the run."""
    task = world(claims())
    task.try_(lambda call: "kill after" if call.name == "/api/trigger" else None)
    reports(task, status="started", run_id=task.flow.runs[0].run_id)
    return task


def revoked(world):
    return struck(world, claims())


def ended(world):
    task = world(waits())
    task.try_()
    reports(task, status="running", message="Half of it", progress=0.5)
    reports(task, status="success", result=RESULT)
    return task


def uploaded(world):
    return struck(world, with_files(), "delay")


def batch_started(world):
    return struck(world, batch(), "delay")


# How the entries come about, what executes the task later, and how many requests that sends.
CASES = {
    "started": (started, trigger, 0),
    "busy": (busy, trigger, 1),
    "in doubt": (in_doubt, trigger, 0),
    "claimed": (claimed, claims, 0),
    "revoked": (revoked, claims, 1),
    "ended": (ended, waits, 0),
    "uploaded": (uploaded, with_files, 0),
    "batch": (batch_started, batch, 0),
}


def parsed(entries):
    return {key: json.loads(value) for key, value in sorted(entries.items())}


@pytest.fixture(scope="module")
def written():
    """Write the entries of this version, if that was asked for."""
    found: dict[str, dict[str, Any]] = {}
    yield found
    if os.environ.get("GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        text = json.dumps(found, indent=1, ensure_ascii=False)
        text = re.sub(r"http://127\.0\.0\.1:\d+", "https://service.example", text)
        name = f"{version('airflow-provider-workflow-automation')}.json"
        (FOLDER / name).write_text(f"{text}\n")


VERSIONS = sorted(FOLDER.glob("*.json"))


def kinds(entries):
    """Return their keys without hashes, and without the numbers of a batch's chunks."""
    return {re.sub(r"[0-9a-f]{64}|\d{6}", "N", key) for key in entries}


@pytest.mark.parametrize("name", CASES)
def test_what_this_version_writes(world, written, name):
    """Entries of the same keys as in its file, but for hashes and numbers."""
    make, _, _ = CASES[name]
    written[name] = parsed(make(world).rows.entries)
    if not os.environ.get("GOLDEN"):
        assert kinds(written[name]) == kinds(json.loads(VERSIONS[-1].read_text())[name])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_a_task_goes_on_with_the_entries_of(world, path, name):
    _, make, requests = CASES[name]
    entries = json.loads(path.read_text())[name]
    task = world(make())
    for key, value in entries.items():
        task.rows.store(None, "set", key, json.dumps(value))
    last = task.try_()
    assert len(task.requests) == requests
    if name == "in doubt":
        assert "[start-unknown]" in str(last.error)
        return
    assert task.state == "success", last.error
    if requests:
        return
    recorded = json.dumps(entries)
    results = last.result if isinstance(last.result, list) else [last.result]
    assert results
    assert all(f'"{one["run_id"]}"' in recorded for one in results)
    if name == "ended":
        assert last.result["result"] == RESULT
