"""What a run says of itself, as the text of an error."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workflow_automation_provider.execution.errors import quoted

from ..starts import waits

TRACEBACK = """\x1b[1;31mTraceback\x1b[0m (most recent call last):\r
\tFile "load.py", line 3\r
\r
\x1b[4mKeyError\x1b[0m: \u202e'rows'\x07
"""

READABLE = """The flow said that the run failed:
    Traceback (most recent call last):
        File "load.py", line 3

    KeyError: \\u202e'rows'\\u0007"""


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (TRACEBACK, READABLE),
        ("\n\x1b[31mNo rows\x1b[0m\n", "The flow said that the run failed: No rows"),
        ("\x1b[31m \x1b[0m", "The flow said that the run failed."),
    ],
)
def test_the_message_of_a_failed_run_is_quoted(world, message, text):
    task = world(waits())
    task.try_()
    assert task.flow.reports("failed", message=message) == 200
    error = task.try_().error
    assert error.message == text
    assert str(error).startswith(f"[run-failed] {text}\nRun 1001 was started.\n")


@given(st.text(st.characters() | st.sampled_from("\x1b[]m0\x07\n\r\t\x9b"), max_size=60))
@example("a\x1b[31\nm")
@example("\x1b")
def test_a_quote_can_all_be_seen(text):
    words = quoted(text)
    first, *others = words.split("\n")
    assert first == "" if others else first in ("", f" {first.strip()}")
    for line in (first, *others):
        assert line.isprintable()
        assert line == line.rstrip()
    assert all(line.startswith("    ") for line in others if line)


@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1))
def test_a_quote_is_not_changed(text):
    assert quoted(text) == f" {text}"
    assert quoted(f"{text}\n{text}") == f"\n    {text}\n    {text}"
