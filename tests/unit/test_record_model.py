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
    tried = [*SMALL, *checks("model")]

    def words(*, breaks):
        sizes = [Size.read(size) for expected, size in tried if (expected == "breaks") is breaks]
        return {word for size in sizes for word in size.words}

    assert words(breaks=True) >= LEAVE_OUT.keys()
    assert words(breaks=False) == MAY_HAPPEN.keys()
