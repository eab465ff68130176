"""
How text is put on one line.

``test_argument_errors.py`` has what is checked when a DAG is parsed.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.exceptions import RunFailedError
from workflow_automation_provider.wording import one_line


@given(st.text(st.characters()))
def test_one_line(text):
    line = one_line(text)
    assert line.splitlines() in ([], [line])
    line.encode()
    assert one_line(line) == line


def test_one_line_leaves_what_can_be_shown():
    assert one_line("Ada\u3000Łódź \N{WOMAN}\u200d`\\") == "Ada\u3000Łódź \N{WOMAN}\u200d`\\"
    assert one_line("a\nb\0\u2028\udc80") == r"a\nb\x00\u2028\udc80"


@given(st.text(st.characters(), min_size=1))
def test_an_id_adds_no_line_to_an_error(run_id):
    """It is what a service responds, a flow sends or a person enters."""
    error, usual = (RunFailedError("It failed.", run_id=one) for one in (run_id, "7"))
    assert len(str(error).splitlines()) == len(str(usual).splitlines())
    assert error.run_id == run_id
