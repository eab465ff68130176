"""Python values as JSON, and the path to each one that cannot be."""

from __future__ import annotations

import enum
import json
from collections import UserDict, UserList
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PureWindowsPath
from types import MappingProxyType, SimpleNamespace
from uuid import UUID

import pendulum
import pytest
from airflow.sdk import ObjectStoragePath
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import StrictUndefined

from workflow_automation_provider.client.json_values import encode
from workflow_automation_provider.exceptions import InvalidRequestError

valid_text = st.text(st.characters(exclude_categories=["Cs"]))
# One that begins with a byte order mark is a mistake.
names = valid_text.filter(lambda name: not name.startswith("\ufeff"))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | valid_text,
    lambda inner: st.lists(inner) | st.dictionaries(names, inner),
    max_leaves=20,
)


@settings(max_examples=50)
@given(st.dictionaries(names, json_values))
def test_any_json_object_comes_back(value):
    assert json.loads(encode("inputs", value)) == value


class Shade(str, enum.Enum):  # noqa: UP042 - its str() is not its value, which is what must be sent
    DARK = "dark"


class Count(enum.IntEnum):
    TWO = 2


class Lazy(UserList[object]):
    """As the XComs of a mapped task come: a sequence, but no list."""


class Scalar:
    """A number as numpy has it."""

    def __init__(self, item, kind="i", shape=()):
        self._item, self._shape = item, shape
        self.dtype = SimpleNamespace(kind=kind)

    @property
    def shape(self):
        return self._shape

    def item(self):
        return self if self._item is None else self._item


class NoTime(datetime):
    """As pandas' ``NaT``: a time that is none."""

    def isoformat(self, *_):
        return "NaT"


class FineTime(datetime):
    """As pandas' ``Timestamp``: of nanoseconds."""

    def isoformat(self, *_):
        return "2026-01-02T00:00:00.000000007"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Scalar(True, "b"), True),
        (Scalar(2**63, "u"), 2**63),
        (Scalar(0.5, "f"), 0.5),
        (FineTime(2026, 1, 2), "2026-01-02T00:00:00.000000007"),
        (datetime(2026, 1, 2, 3, 4, 5, 6), "2026-01-02T03:04:05.000006"),  # noqa: DTZ001 - naive stays naive
        (pendulum.datetime(2026, 1, 2, tz="Europe/Berlin"), "2026-01-02T00:00:00+01:00"),
        (time(3, 4, tzinfo=UTC), "03:04:00+00:00"),
        (Decimal("0.10"), "0.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("a/b.csv"), "a/b.csv"),
        (PureWindowsPath("a", "b"), "a\\b"),
        (ObjectStoragePath("file://my_conn@/a.csv"), "file://my_conn@/a.csv"),
        (Shade.DARK, "dark"),
        (Count.TWO, 2),
        (2**70, 2**70),
        ((1, (2,)), [1, [2]]),
        (Lazy([1, date(2026, 1, 2)]), [1, "2026-01-02"]),
        (MappingProxyType({"a": UserDict(b=1)}), {"a": {"b": 1}}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_python_values(value, expected):
    assert json.loads(encode("inputs", {"x": value})) == {"x": expected}


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_keep_their_digits(value):
    assert Decimal(json.loads(encode("inputs", value))).as_tuple() == value.as_tuple()


class Plain(enum.Enum):
    ONE = 1


DEEP: list[object] = []
for _ in range(10_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("inf"), "inf"),
        (Decimal("-Infinity"), "-Infinity"),
        (Decimal("sNaN"), "sNaN"),
        (b"x", "a bytes.*use text"),
        (timedelta(1), "a datetime.timedelta.*number"),
        (NoTime(2026, 1, 2), "NoTime .'NaT'.*use a date, or None"),
        (Scalar(float("nan"), "f"), "is nan"),
        (Scalar(10**18, "M"), r"a \S+test_json_values\.Scalar, which JSON"),
        (Scalar(1, "i", shape=(1,)), "Scalar, which JSON"),
        (Scalar(None, "f"), "Scalar, which JSON"),
        (Scalar(1j, "c"), "Scalar, which JSON"),
        (memoryview(b"x"), "memoryview"),
        (Plain.ONE, "Plain"),
        (Path("\udcff"), "Unicode"),
        (StrictUndefined(name="x"), "StrictUndefined"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_names_the_path(value, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        encode("inputs", {"rows": ["a", {}, [], {"fine": 1, "when": value}]})
    assert caught.value.message.startswith("inputs.rows[3].when ")


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        ({"rows": {"\ud800": "x"}}, "inputs.rows", "'\\ud800'"),
        ({"a b": {"ü": b""}}, "inputs['a b'].ü", "a bytes"),
        ({"a": {"'x": b""}}, 'inputs.a["\'x"]', "a bytes"),
    ],
)
def test_containers_that_cannot_be_sent(value, path, words):
    with pytest.raises(InvalidRequestError) as caught:
        encode("inputs", value)
    assert caught.value.message.startswith((f"{path} ", f"{path}["))
    assert words in caught.value.message


@pytest.mark.parametrize("value", [DEEP, [10**5000]], ids=["deep", "digits"])
def test_what_is_too_large_for_python(value):
    with pytest.raises(InvalidRequestError, match="inputs is nested"):
        encode("inputs", {"a": value})
