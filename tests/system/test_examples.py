"""Example DAGs, triggered through the REST API, with the provider from its wheel; the tests of its sources run them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import workflow_automation_provider

if TYPE_CHECKING:
    from services import Service
    from stack import Stack

# How many runs each starts.
EXAMPLES = {
    "workflow_automation_batch": 4,
    "workflow_automation_decorator": 4,
    "workflow_automation_trigger_upload_mapped": 3,
}


def test_examples(stack: Stack, service: Service) -> None:
    assert "site-packages" in (workflow_automation_provider.__file__ or "")
    for dag_id in EXAMPLES:
        stack.api.unpause(dag_id)
        stack.api.trigger(dag_id, "rest")
    assert {stack.api.finished(dag_id, "rest") for dag_id in EXAMPLES} == {"success"}
    assert not stack.api.ask("GET", "/importErrors")["import_errors"]
    assert len(service.journal.runs()) == sum(EXAMPLES.values())
    assert len(service.journal.uploads()) == EXAMPLES["workflow_automation_trigger_upload_mapped"]
