"""What is checked when a DAG is parsed."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.client.checks import MAX_TIMEOUT, check_seconds, one_line


@given(st.text(st.characters()))
def test_one_line(text):
    line = one_line(text)
    assert line.splitlines() in ([], [line])
    line.encode()
    assert one_line(line) == line


def test_one_line_leaves_what_can_be_shown():
    assert one_line("Ada\u3000Łódź \N{WOMAN}\u200d`\\") == "Ada\u3000Łódź \N{WOMAN}\u200d`\\"
    assert one_line("a\nb\0\u2028\udc80") == r"a\nb\x00\u2028\udc80"


@pytest.mark.parametrize("value", [0, 0.5, MAX_TIMEOUT])
def test_seconds(value):
    check_seconds("wait", value, zero=True)
    with pytest.raises(ValueError, match="more than 0") if value == 0 else nullcontext():
        check_seconds("wait", value)


@pytest.mark.parametrize("value", [-0.1, MAX_TIMEOUT + 1, float("nan"), False, "5", None])
def test_what_is_no_number_of_seconds(value):
    with pytest.raises(ZeroDivisionError, match=re.escape(f"wait is {value!r}:")):
        check_seconds("wait", value, ZeroDivisionError, zero=True)
