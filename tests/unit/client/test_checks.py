"""What is checked when a DAG is parsed."""

from __future__ import annotations

import pytest

from workflow_automation_provider.client.checks import LONGEST_TIMEOUT, is_seconds, kind_of


@pytest.mark.parametrize("value", [0, 0.5, 60, LONGEST_TIMEOUT])
def test_seconds(value):
    assert is_seconds(value)


@pytest.mark.parametrize(
    "value", [-1, -0.1, LONGEST_TIMEOUT + 1, float("nan"), float("inf"), True, False, "5", None, 1j]
)
def test_what_is_no_number_of_seconds(value):
    assert not is_seconds(value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "None"),
        (1, "an int"),
        ({1}, "a set"),
        ("x", "a str"),
        (object(), "an object"),
        (KeyError(), "a KeyError"),
        (IndexError(), "an IndexError"),
    ],
)
def test_kind_of_a_value(value, kind):
    assert kind_of(value) == kind
