"""
The items of a batch.

The same from a list as from a file. The output file is whole or what it was before.
"""

from __future__ import annotations

import bz2
import gc
import gzip
import json
import lzma
import os
import re
import tempfile
import tracemalloc
from collections import UserList, deque
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from store_proxy import Fault, StoreProxy
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.execution.batch.source import (
    MAX_LINE,
    BatchSource,
    check_output,
    write_output,
)

from ...starts import TaskTimeout

if TYPE_CHECKING:
    from workflow_automation_provider.execution.batch.record import BatchItem

TEXT_VALUES = st.text(st.characters(codec="utf-8"))
NAMES = TEXT_VALUES.filter(lambda name: not name.startswith("\ufeff"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT_VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner),
    max_leaves=8,
)
BATCHES = st.lists(st.dictionaries(NAMES, JSON, max_size=3), max_size=9)


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
    """As Airflow's XCom with a ``map()``: what a slice of it gives is no slice."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if not isinstance(index, int):
            return {"n": -1}
        return [{"n": n} for n in range(3)][index]


@pytest.mark.parametrize(
    "make", [deque, tuple, UserList, lambda _: OneByOne()], ids=["deque", "tuple", "user", "own"]
)
def test_any_sequence_is_a_batch(make):
    batch = make([{"n": 0}, {"n": 1}, {"n": 2}])
    assert [item.inputs for item in read(batch)] == [b'{"n":0}', b'{"n":1}', b'{"n":2}']


LINES = '{"name": "Zoë"}\n{"name": "Ada"}\n'


@pytest.mark.parametrize(
    ("content", "looks_like"),
    [
        (LINES.encode("utf-16"), "UTF-16"),
        (LINES.encode("utf-16-le"), "UTF-16"),
        (LINES.encode("utf-16-be"), "UTF-16"),
        (LINES.encode("utf-32"), "UTF-32"),
        (LINES.encode("latin-1"), "Latin-1"),
        (gzip.compress(LINES.encode(), mtime=0), "gzip"),
        (bz2.compress(LINES.encode()), "bzip2"),
        (lzma.compress(LINES.encode()), "xz"),
    ],
)
def test_a_file_that_is_not_utf8_is_named_as_such(tmp_path, content, looks_like):
    path = tmp_path / "batch.jsonl"
    path.write_bytes(content)
    with pytest.raises(
        InvalidRequestError, match=f"not UTF-8: it looks like {looks_like}"
    ) as error:
        read(str(path))
    if looks_like == "Latin-1":
        assert "batch[0] (line 1, column 13 of" in error.value.message


@pytest.mark.parametrize(
    ("name", "content", "looks_like"),
    [
        ("batch.jsonl", "customer,amount\nAda,1\n", "CSV"),
        ("batch.jsonl", '\ufeff"customer";"amount"\n"Ada";1\n', "CSV"),
        ("batch.jsonl", "customer\tamount\nAda\t1\n", "CSV"),
        ("batch.CSV", "customer\nAda\n", "CSV"),
        ("batch.jsonl", '\n[\n  {"a": 1},\n  {"a": 2}\n]\n', "one JSON value"),
    ],
)
def test_a_file_of_another_format_is_named_as_such(tmp_path, name, content, looks_like):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InvalidRequestError, match=f"looks like {looks_like}.*not JSON Lines"):
        read(str(path))
    path.write_text('{"a": "b,c"}\n')
    assert [item.inputs for item in read(str(path))] == [b'{"a": "b,c"}']


@pytest.mark.parametrize("is_file", [False, True])
def test_the_byte_order_mark_of_a_csv_is_refused_by_name(tmp_path, is_file):
    """As ``csv.DictReader`` has it of a file that Excel wrote."""
    batch = [{"amount": "1", "\ufeffcustomer": "Ada"}]
    path = tmp_path / "batch.jsonl"
    path.write_text(json.dumps(batch[0]))
    with pytest.raises(InvalidRequestError, match=r"\\ufeffcustomer.*byte order mark.*utf-8-sig"):
        read(str(path) if is_file else batch)


def test_the_first_bad_lines_are_named_at_once(tmp_path):
    path = tmp_path / "batch.jsonl"
    bad = [b'{"a": x}', b'{"a": "\xe9"}', b" 7", b'{"a": 1, "a": 2}', b'{"a": NaN}']
    lines = [b'{"a": 0}', *bad, b"", *([b'{"a"'] * 30)]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(InvalidRequestError) as caught:
        read(str(path))
    assert f"batch[1] (line 2, column 7 of '{path}') is not JSON" in caught.value.message
    found = re.findall(r"batch\[(\d+)\] \((line [^)]*) of ", str(caught.value))
    assert found[:6] == [
        ("1", "line 2, column 7"),
        ("2", "line 3, column 8"),
        ("3", "line 4, column 2"),
        ("4", "line 5"),
        ("5", "line 6"),
        ("6", "line 8, column 5"),
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
    with pytest.raises(InvalidRequestError, match=r"batch\[1\] has .*'customer', which is the key"):
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


# The output

WHOLE: list[BatchItem] = [{"index": n, "status": "started", "run_id": f"{n}"} for n in range(3)]
TEXT = b"".join(json.dumps(item).encode() + b"\n" for item in WHOLE)


def breaking_off(number=2, size=1):
    """Yield some items, and are interrupted like a task at its ``execution_timeout``."""
    for n in range(number):
        yield {"index": n, "status": "started", "run_id": "x" * size}
    raise TaskTimeout


def test_an_interruption_leaves_a_local_file_as_it_was(tmp_path):
    path = tmp_path / "output.jsonl"
    with pytest.raises(FileUnavailableError, match="Is a directory"):
        check_output(str(tmp_path), BatchSource([], None))
    check_output(str(path), BatchSource([], None))
    assert [*tmp_path.iterdir()] == []
    write_output(str(path), WHOLE)
    assert path.read_bytes() == TEXT
    with pytest.raises(TaskTimeout):
        write_output(str(path), breaking_off())
    assert path.read_bytes() == TEXT
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_stays_and_a_file_keeps_its_mode(tmp_path):
    path, link = tmp_path / "output.jsonl", tmp_path / "link.jsonl"
    path.touch(0o600)
    link.symlink_to(path)
    write_output(str(link), WHOLE)
    assert link.is_symlink()
    assert path.read_bytes() == TEXT
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [2, 60], ids=["at once", "in parts"])
def test_an_interruption_aborts_an_upload(bucket, number):
    output = bucket.url("output.jsonl")
    check_output(output, BatchSource([], None))
    write_output(output, WHOLE)
    with pytest.raises(TaskTimeout):
        write_output(output, breaking_off(number, 1024**2))
    gc.collect()
    assert bucket.read("output.jsonl") == TEXT
    assert bucket.unfinished() == []


def test_a_bucket_that_is_not_there_is_found_before_anything_is_started(bucket):
    with pytest.raises(FileUnavailableError, match="nowhere"):
        check_output(f"s3://{bucket.conn_id}@nowhere/output.jsonl", BatchSource([], None))


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_bucket_alone_is_no_output(service, batch, bucket, slash):
    with pytest.raises(InvalidRequestError, match=r"output_path is .*, a (bucket|folder)"):
        batch([{}], output_path=bucket.url().rstrip("/") + slash)
    assert service.runs == []


def test_a_bucket_without_the_right_to_write_is_found_before_anything_is_started(
    service, batch, bucket, s3_port, monkeypatch
):
    denied = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    with StoreProxy(s3_port).running() as proxy:
        connection = json.dumps(bucket.connection(proxy.port))
        monkeypatch.setenv(f"AIRFLOW_CONN_{bucket.conn_id.upper()}", connection)
        proxy.faults.append(Fault(lambda seen: seen.method == "PUT", 403, denied, times=None))
        with pytest.raises(FileUnavailableError, match="Access Denied"):
            batch([{}], output_path=bucket.url("output.jsonl"))
    assert service.runs == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_file_of_another_user_in_a_sticky_folder_is_found_before_anything_is_started():
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        folder.chmod(0o1777)
        path = folder / "output.jsonl"
        path.touch()
        try:
            os.seteuid(65534)
            with pytest.raises(FileUnavailableError, match="another user's"):
                check_output(str(path), BatchSource([], None))
            check_output(str(folder / "other.jsonl"), BatchSource([], None))
        finally:
            os.seteuid(0)
        check_output(str(path), BatchSource([], None))


def test_who_may_write_need_not_be_allowed_to_look(bucket, monkeypatch):
    path = ObjectStoragePath(bucket.url("output.jsonl"))
    monkeypatch.setattr(type(path.fs), "exists", lambda *_: False)
    check_output(str(path), BatchSource([], None))
    assert bucket.keys() == []


def test_an_object_of_a_batch_is_recognized(bucket, tmp_path):
    url = bucket.url("batch.jsonl")
    source = BatchSource(url, None)
    with pytest.raises(InvalidRequestError, match="the file of the batch"):
        check_output(url, source)
    for other in (bucket.url("other.jsonl"), f"{tmp_path}/batch.jsonl"):
        check_output(other, source)


def test_the_same_path_on_two_sftp_hosts_is_two_files(sftp, tmp_path, monkeypatch):
    from sftp_server import SFTPServer

    other = SFTPServer(tmp_path / "other")
    other.folder.mkdir()
    with other.running():
        connection = {"conn_type": "sftp", "host": "127.0.0.1", "port": other.port, "login": "a"}
        monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(connection))
        source = BatchSource(sftp.url("a.jsonl"), None)
        with pytest.raises(InvalidRequestError, match="the file of the batch"):
            check_output(sftp.url("./a.jsonl"), source)
        check_output(sftp.url("a.jsonl").replace(sftp.conn_id, "other"), source)


def test_a_file_of_sftp_is_replaced_at_once(sftp):
    path, url = sftp.folder / "output.jsonl", sftp.url("output.jsonl")
    check_output(url, BatchSource([], None))
    write_output(url, [])
    write_output(url, WHOLE)
    assert path.read_bytes() == TEXT
    sftp.room = 100_000  # some of it is written
    with pytest.raises(FileUnavailableError, match="No space"):
        write_output(url, [{"index": n, "run_id": "x" * 1000} for n in range(1000)])
    assert sftp.room < 0
    assert path.read_bytes() == TEXT
    assert [*sftp.folder.iterdir()] == [path]
