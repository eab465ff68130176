"""The example DAGs, triggered through the REST API, with the provider from its wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import workflow_automation_provider

if TYPE_CHECKING:
    from services import Service
    from stack import Stack

EXAMPLES = {
    "workflow_automation_batch": 4,
    "workflow_automation_trigger": 1,
    "workflow_automation_trigger_upload": 1,
    "workflow_automation_trigger_mapped": 3,
    "workflow_automation_trigger_upload_mapped": 3,
    "workflow_automation_taskflow": 3,
    "workflow_automation_decorator": 4,
    "workflow_automation_nightly": 3,
    "workflow_automation_next_dag_start": 1,
}
UPLOADING = ("workflow_automation_trigger_upload", "workflow_automation_trigger_upload_mapped")


def test_provider_comes_from_its_wheel() -> None:
    assert "site-packages" in (workflow_automation_provider.__file__ or "")


@pytest.fixture(scope="module")
def ended(stack: Stack, service: Service) -> dict[str, str]:
    """All the examples at once, and how each ended."""
    pool = {"name": "workflow_automation", "slots": 2, "description": "Requests to the service at a time"}
    stack.api.ask("POST", "/pools", pool)
    for dag_id in EXAMPLES:
        stack.api.unpause(dag_id)
        stack.api.trigger(dag_id, f"rest_{dag_id}")
    return {dag_id: stack.api.finished(dag_id, f"rest_{dag_id}") for dag_id in EXAMPLES}


@pytest.mark.parametrize("dag_id", EXAMPLES)
def test_example(stack: Stack, ended: dict[str, str], dag_id: str) -> None:
    assert ended[dag_id] == "success"
    assert not stack.api.ask("GET", "/importErrors")["import_errors"]


def test_every_task_started_one_run(stack: Stack, service: Service, ended: dict[str, str]) -> None:
    # One of the examples has a schedule: it may have had a run of its own since it is no longer paused.
    ended_runs = {
        dag_id: [stack.api.finished(dag_id, run["dag_run_id"]) for run in stack.api.dag_runs(dag_id)]
        for dag_id in EXAMPLES
    }
    assert len(service.journal.runs()) == sum(
        len(ended_runs[dag_id]) * EXAMPLES[dag_id] for dag_id in EXAMPLES
    )
    assert len(service.journal.uploads()) == sum(
        len(ended_runs[dag_id]) * EXAMPLES[dag_id] for dag_id in UPLOADING
    )
