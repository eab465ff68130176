"""
The items of a batch.

The same from a list as from a file.
"""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from collections import UserList, deque
from collections.abc import Sequence
from datetime import date
from decimal import Decimal

import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.batch.json_lines import MAX_LINE
from workflow_automation_provider.execution.batch.source import BatchSource

TEXT_VALUES = st.text(st.characters(codec="utf-8"))
NAMES = TEXT_VALUES.filter(lambda name: not name.startswith("\ufeff"))
# Airflow does not render templates in them.
INPUT_NAMES = NAMES.filter(lambda name: "{{" not in name and "{%" not in name)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT_VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner),
    max_leaves=8,
)
BATCHES = st.lists(st.dictionaries(INPUT_NAMES, JSON, max_size=3), max_size=9)


def read(batch, flow_id=None):
    return list(BatchSource(batch, flow_id))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=BATCHES,
    ascii_only=st.booleans(),
    ends=st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"]),
    bom=st.booleans(),
)
@example(batch=[{"\x7f": None}], ascii_only=False, ends="\n", bom=False)
def test_a_file_has_the_same_items_as_a_list(tmp_path, batch, ascii_only, ends, bom):
    path = tmp_path / "batch.jsonl"
    lines = [json.dumps(inputs, ensure_ascii=ascii_only) for inputs in batch]
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + ends.join(lines).encode())
    for items in (read(batch), read(str(path))):
        assert [json.loads(item.inputs) for item in items] == batch
        assert [item.index for item in items] == [*range(len(batch))]
    assert [item.inputs for item in items] == [line.encode() for line in lines]
    digests = {item.digest: item.inputs for item in items}
    assert len(digests) == len({*lines})
    assert digests.keys() & {item.digest for item in read(batch, "another-flow")} == set()


def test_the_xcoms_of_a_mapped_task_are_read_in_slices():
    """Airflow is asked for each slice or element."""

    class Slices(LazyXComSequence[dict[str, int]]):
        def __init__(self, elements):
            self.elements = elements
            self.read = 0

        def __getitem__(self, key):
            assert isinstance(key, slice)
            self.read += 1
            return self.elements[key]

        def __iter__(self):
            raise AssertionError("One by one takes too long")

    slices = Slices([{"n": n} for n in range(1200)])
    items = read(slices)
    assert [json.loads(item.inputs)["n"] for item in items] == [*range(1200)]
    assert slices.read == 4


class OneByOne(Sequence[dict[str, int]]):
    """
    As Airflow's XCom with a ``map()``: what a slice of it gives is no slice.

    It has something at each index, also beyond its length.
    """

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if not isinstance(index, int):
            return {"n": -1}
        return {"n": index}


@pytest.mark.parametrize(
    "make", [deque, tuple, UserList, lambda _: OneByOne()], ids=["deque", "tuple", "user", "own"]
)
def test_any_sequence_is_a_batch(make):
    batch = make([{"n": 0}, {"n": 1}, {"n": 2}])
    assert [item.inputs for item in read(batch)] == [b'{"n":0}', b'{"n":1}', b'{"n":2}']


LINES = '{"name": "Zoë"}\n{"name": "Ada"}\n'


@pytest.mark.parametrize(
    ("content", "beginning"),
    [
        (LINES.encode("utf-16"), "'\\\\xff\\\\xfe{"),
        (LINES.encode("latin-1"), "byte 13"),
        (gzip.compress(LINES.encode(), mtime=0), r"'\\x1f\\x8b"),
        (b"PK\x03\x04\x14\0\0\0", "'PK"),
        (b"customer,amount\nAda,1\n", "'cust'"),
        ('\ufeff"customer";"amount"\n'.encode(), "'\"cus'"),
        (b'\n[\n  {"a": 1},\n  {"a": 2}\n]\n', r"'\['"),
        (b' [{"a": 1}, {"a": 2}]\n', r"'\["),
    ],
)
def test_a_file_of_another_format_is_refused_with_its_beginning(tmp_path, content, beginning):
    path = tmp_path / "batch.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=rf"\(line [12].*{beginning}") as error:
        read(str(path))
    assert "inputs object in each line" in str(error.value) or "expected an object" in str(
        error.value
    )


@pytest.mark.parametrize("is_file", [False, True])
def test_the_byte_order_mark_of_a_csv_is_refused_by_name(tmp_path, is_file):
    """As ``csv.DictReader`` has it of a file that Excel wrote."""
    batch = [{"amount": "1", "\ufeffcustomer": "Ada"}]
    path = tmp_path / "batch.jsonl"
    path.write_text(json.dumps(batch[0]))
    with pytest.raises(InvalidRequestError, match=r"\\ufeffcustomer.*utf-8-sig"):
        read(str(path) if is_file else batch)


def test_the_first_bad_lines_are_named_at_once(tmp_path):
    path = tmp_path / "batch.jsonl"
    bad = [b'{"a": x}', b'{"a": "\xe9"}', b" 7", b'{"a": NaN}']
    lines = [b'{"a": 0}', *bad, b"", *([b'{"a"'] * 30)]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(InvalidRequestError) as caught:
        read(str(path))
    assert f"batch[1] (line 2 of '{path}')" in caught.value.message
    pattern = r"batch\[(\d+)\] \(line (\d+) of [^)]*\)(?:.* (?:column|byte) (\d+))?"
    found = re.findall(pattern, str(caught.value))
    assert found[:5] == [
        ("1", "2", "7"),
        ("2", "3", "8"),
        ("3", "4", ""),
        ("4", "5", ""),
        ("5", "7", "5"),
    ]
    assert len(found) == 20
    # What was good before the first of them is not counted.
    path.write_bytes(b"\n".join(lines[:3]))
    with pytest.raises(InvalidRequestError) as caught:
        read(str(path))
    assert len(re.findall(r"batch\[", str(caught.value))) == 2


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("C-17", "C-17"),
        (17, "17"),
        (Decimal("1.50"), "1.50"),
        (date(2026, 1, 2), "2026-01-02"),
        ("a\nb", "a\\nb"),
    ],
)
def test_a_key_is_text_on_one_line(tmp_path, value, key):
    (item,) = BatchSource([{"customer": value}], None, "customer")
    assert item.key == key
    path = tmp_path / "batch.jsonl"
    path.write_text(json.dumps({"customer": value}, default=str))
    (item,) = BatchSource(str(path), None, "customer")
    assert item.key == key


@pytest.mark.parametrize(
    "inputs", [{}, *({"customer": v} for v in ("", None, True, ["a"], "x" * 101))]
)
def test_a_key_that_names_no_item_is_refused(inputs):
    with pytest.raises(InvalidRequestError, match=r"batch\[1\] .*'customer'"):
        list(BatchSource([{"customer": "Ada"}, inputs], None, "customer"))


@pytest.mark.parametrize(
    "make", [str, lambda path: path, lambda path: ObjectStoragePath(f"file://{path}")]
)
def test_a_path_is_read_each_time(tmp_path, make):
    path = tmp_path / "batch.jsonl"
    path.write_text('{"n": 1}')
    source = BatchSource(make(path), None)
    assert [item.inputs for item in source] == [item.inputs for item in source] == [b'{"n": 1}']
    path.write_text('{"n": 2}\n')
    assert [item.inputs for item in source] == [b'{"n": 2}']


def test_a_line_is_bounded_before_it_is_parsed(tmp_path):
    path = tmp_path / "batch.jsonl"
    longest = '{"a": "' + "x" * (MAX_LINE - 10) + '"}'
    path.write_text(f"{longest}\n")
    (item,) = read(str(path))
    assert len(item.inputs) == MAX_LINE - 1
    path.write_text(f'{{}}\n{{"a": [{"[]," * MAX_LINE}')
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError, match=r"batch\[1\] \(line 2 .*4 MiB"):
            read(str(path))
        assert tracemalloc.get_traced_memory()[1] < 6 * MAX_LINE
    finally:
        tracemalloc.stop()


def test_a_pattern_is_no_batch_but_a_file_with_a_star_in_its_name_is(tmp_path, bucket):
    (tmp_path / "*.jsonl").write_text("{}\n")
    assert [item.inputs for item in read(str(tmp_path / "*.jsonl"))] == [b"{}"]
    for pattern in (f"{tmp_path}/a*.jsonl", bucket.url("in/*.jsonl")):
        with pytest.raises(InvalidRequestError):
            read(pattern)
