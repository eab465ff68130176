"""Tests that docs/if-it-fails.md quotes every message of the package, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

import workflow_automation_provider
from tests.support.messages import Message, find_messages, find_quotes, is_said

_PACKAGE = Path(workflow_automation_provider.__file__).parent
_PAGE = (Path(__file__).parents[2] / "docs/if-it-fails.md").read_text(encoding="utf-8")

# Their texts are for who tests DAGs, and labels of the connection form.
_ELSEWHERE = ("testing/", "get_provider_info.py")

# Strings of two words that are no messages, or that nobody gets to see.
_NOT_MESSAGES = {
    "BEGIN IMMEDIATE": "SQL",
}

_MESSAGES = find_messages(_PACKAGE)
_QUOTES = find_quotes(_PAGE)
