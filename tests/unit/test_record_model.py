"""
The record of a start holds in all states of its model, ``tests/model``.

And each of its rules is needed.
"""

import pytest

from explore import checks, explore, story
from words import LEAVE_OUT, MAY_HAPPEN, Size

SMALL = checks("test")


@pytest.mark.parametrize(("expected", "size"), SMALL, ids=[size for _, size in SMALL])
def test_small_sizes(expected, size):
    found = explore(Size.read(size))
    assert bool(found.breach) == (expected != "holds"), f"{found.breach}\n{story(found.path)}"


def test_each_event_and_each_rule_is_tried():
    broken = {
        word for expected, size in SMALL if expected == "breaks" for word in Size.read(size).words
    }
    held = {
        word
        for expected, size in [*SMALL, *checks("model")]
        if expected != "breaks"
        for word in Size.read(size).words
    }
    assert broken >= LEAVE_OUT.keys()
    assert held == MAY_HAPPEN.keys()
