"""The form of a connection: its fields, and what it says of each."""

from __future__ import annotations

import json

import pytest

from workflow_automation_provider.client.settings import CONNECTION_FIELDS, FIELD_BEHAVIOUR, Settings
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


@pytest.mark.parametrize("name", CONNECTION_FIELDS)
def test_every_field_is_explained_and_may_be_left_empty(name):
    field = CONNECTION_FIELDS[name]
    assert field["label"]
    assert field["description"].endswith(".")
    assert "null" in field["schema"]["type"]
    default = getattr(Settings(), name)
    assert field["schema"].get("default", default) == default


@pytest.mark.parametrize("name", CONNECTION_FIELDS)
def test_placeholders_are_values_that_work(name):
    written = FIELD_BEHAVIOUR["placeholders"].get(name)
    extra = Settings.read(json.dumps({name: written}))
    assert written is None or getattr(extra, name) is not None


def test_older_forms_are_told_the_same():
    behaviour = WorkflowAutomationHook.get_ui_field_behaviour()
    assert behaviour == {
        "hidden_fields": FIELD_BEHAVIOUR["hidden-fields"],
        "relabeling": FIELD_BEHAVIOUR["relabeling"],
        "placeholders": FIELD_BEHAVIOUR["placeholders"],
    }
