"""What the package exports."""

from __future__ import annotations

import pytest


def test_unknown_names_of_the_package():
    from workflow_automation_provider import testing

    with pytest.raises(AttributeError):
        testing.nonsense  # noqa: B018
