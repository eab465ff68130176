"""How files are written: which formats there are, and what an error says of all others."""

from __future__ import annotations

import pytest

from workflow_automation_provider.client import files
from workflow_automation_provider.client.files import DEFAULT_FILE_FORMAT
from workflow_automation_provider.exceptions import InvalidRequestError

WORDS = ["name", "base64", "data_url", "content_type", "size"]


@pytest.mark.parametrize(
    "value", ["hush", "", [], {}, None, 5, {"a": "hush"}, {"a": None}, {1: "name"}, {"a": ["name"]}]
)
def test_format_that_is_none(value):
    with pytest.raises(InvalidRequestError, match=r"file_format.*expected") as caught:
        files.check_file_format(value)
    assert ", ".join(WORDS) in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("value", [*WORDS, {"a": "name"}, DEFAULT_FILE_FORMAT])
def test_format_that_is_one(value):
    assert files.check_file_format(value) == value
