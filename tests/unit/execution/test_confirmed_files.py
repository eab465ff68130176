"""What is kept of the files of a request: it is bounded, and tells which of the files there are now were sent."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_automation_provider.execution.confirmed_files import IDENTITY_SIZE, indexes_of, kept


def identity(name):
    return hashlib.sha256(str(name).encode()).digest()[:IDENTITY_SIZE]


def identities(names):
    return [identity(name) for name in names]


def size_of(value):
    return len(json.dumps(value))


def found(requests, listed):
    """Find the names that were confirmed, and the number of requests of which that is unknown."""
    indexes, unknown = indexes_of(
        [(len(names), kept(identities(names))) for names in requests], identities(listed)
    )
    return [name for index, name in enumerate(listed) if index in indexes], unknown


names = st.lists(st.integers(0, 60), max_size=40)


@given(st.lists(names, max_size=4), names)
def test_of_few_files_each_counts_as_often_as_it_was_sent(requests, listed):
    confirmed, unknown = found(requests, listed)
    assert unknown == 0
    sent = Counter(name for request in requests for name in request)
    assert Counter(confirmed) == sent & Counter(listed)


@st.composite
def changes(draw):
    """Draw a listing, the sizes of the requests that it was sent in, and what it has become."""
    before = [*range(draw(st.integers(1001, 4000)))]
    sizes = draw(st.lists(st.integers(1, 2500), min_size=1, max_size=3))
    seed = draw(st.integers())
    shuffled = random.Random(seed)
    after = [*before]
    for name in shuffled.sample(before, min(len(before), draw(st.integers(0, 60)))):
        after[after.index(name)] = f"{name} rewritten"
    for name in shuffled.sample(after, min(len(after), draw(st.integers(0, 40)))):
        after.remove(name)
    for number in range(draw(st.integers(0, 40))):
        after.insert(shuffled.randint(0, len(after)), f"new {number}")
    # A file that is listed twice
    for name in shuffled.sample(before, draw(st.integers(0, 3))):
        before.insert(0, name)
        after.insert(0, name)
    return before, sizes, after


@given(changes())
@settings(max_examples=60, deadline=None)
def test_of_many_files_what_changed_is_told_from_what_did_not(drawn):
    before, sizes, after = drawn
    requests, start = [], 0
    for size in sizes:
        if start < len(before):
            requests.append(before[start : start + size])
            start += size
    confirmed, unknown = found(requests, after)
    sent = Counter(name for request in requests for name in request)
    assert unknown == 0
    assert Counter(confirmed) == sent & Counter(after)


@given(st.integers(0, 3000), st.integers())
@settings(max_examples=40, deadline=None)
def test_nothing_that_was_not_sent_is_taken_for_it(changed, seed):
    """However much has changed: then it is unknown, and all is sent again."""
    before = [*range(3000)]
    after = [*before]
    for name in random.Random(seed).sample(before, changed):
        after[name] = f"{name} rewritten"
    confirmed, unknown = found([before], after)
    assert {*confirmed} <= {*before}
    assert len(confirmed) == (0 if unknown else 3000 - changed)
    assert not unknown or changed > 250


@pytest.mark.parametrize("change", ["rewritten", "removed", "added"])
def test_a_request_that_changed_too_much_does_not_hide_the_next_ones(change):
    before = [*range(8000)]
    requests = [before[start : start + 2000] for start in range(0, 8000, 2000)]
    new = [f"new {number}" for number in range(900)]
    after = {"rewritten": new + before[900:], "removed": before[900:], "added": new + before}[change]
    confirmed, unknown = found(requests, after)
    if change == "added":
        assert (confirmed, unknown) == (before, 0)
    else:
        assert (confirmed, unknown) == (before[2000:], 1)


def test_what_is_added_in_one_try_after_the_other_is_no_growing_difference():
    requests, listed, shuffled = [[*range(3000)]], [*range(3000)], random.Random(1)
    for number in range(5):
        for one in range(200):
            listed.insert(shuffled.randrange(len(listed)), f"{number} {one}")
        confirmed, unknown = found(requests, listed)
        assert unknown == 0
        requests.append([name for name in listed if name not in {*confirmed}])
        assert len(requests[-1]) == 200


def test_another_order_is_no_change_of_one_request():
    before = [*range(2000)]
    assert found([before], before[::-1]) == (before[::-1], 0)


def test_what_is_kept_is_bounded():
    few, many, very_many = (kept(identities(range(count))) for count in (1000, 1001, 100_000))
    assert size_of(few) <= 16_100
    assert size_of(many) == size_of(very_many) <= 24_200


def test_nothing_kept_is_nothing_found():
    assert indexes_of([(3, {})], identities("abc")) == (set(), 0)
