"""The options of the answers are those that tasks offer. What they do is tested in tests/integration/test_answers.py."""

from __future__ import annotations

from workflow_automation_provider.execution.ask import FAIL, NOT_STARTED, STARTED
from workflow_automation_provider.execution.wait import FAILED, SUCCEEDED
from workflow_automation_provider.testing import answers


def test_the_options_are_those_of_the_questions():
    assert answers._OPTIONS == (STARTED, NOT_STARTED, FAIL, SUCCEEDED, FAILED)
    assert all(f'``"{option}"``' in (answers.__doc__ or "") for option in answers._OPTIONS)
