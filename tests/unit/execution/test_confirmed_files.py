"""Identities of confirmed files: which of the files that there are now were sent."""

from __future__ import annotations

import base64
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.execution import confirmed_files
from workflow_automation_provider.execution.confirmed_files import MAX_PER_ENTRY, identities_of, without

names = st.lists(st.integers(0, 60), max_size=40)


def rows(names):
    return [{"row": name} for name in names]


@given(st.lists(names, max_size=4), names, st.integers(1, 50))
def test_each_file_counts_as_often_as_it_was_sent(requests, listed, per_entry):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confirmed_files, "MAX_PER_ENTRY", per_entry)
        texts = [text for request in requests for text in identities_of(rows(request), "flow run")]
    missing = [row["row"] for row in without(rows(listed), "flow run", texts) if isinstance(row, dict)]
    sent = Counter(name for request in requests for name in request)
    assert Counter(missing) == Counter(listed) - sent


def test_what_was_sent_for_another_run_was_not_sent():
    assert without(rows([1]), "flow 2", identities_of(rows([1]), "flow 1")) == rows([1])


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [1]), (1000, [1000]), (1001, [1000, 1]), (2500, [1000, 1000, 500])]
)
def test_a_text_has_at_most_1000(count, sizes):
    texts = identities_of(rows(range(count)), "flow run")
    assert [len(base64.b64decode(text)) // 12 for text in texts] == sizes
    assert max(map(len, texts)) <= 16 * MAX_PER_ENTRY


def test_of_too_many_files_there_are_none(monkeypatch):
    monkeypatch.setattr(confirmed_files, "MAX_FILES", 3)
    assert len(identities_of(rows(range(3)), "flow run")) == 1
    assert identities_of(rows(range(4)), "flow run") == []
