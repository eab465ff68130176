"""The JSON that a flow may send to its callback URL: what neither the database nor a task could read is rejected."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

MAX_VALUES = 10_000
"""How many values a result may contain, nested ones included: each costs time and memory wherever it is read."""

_MAX_DEPTH = 50
"""How deeply a result may be nested: Airflow's own JSON would fail on much deeper ones."""

_INTEGERS = range(-(2**63), 2**64)
"""What Airflow can hand to a task: others would make each of its reads fail."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

_RESERVED = {"__classname__", "__id__", "__type", "__var"}
"""Names of fields that Airflow takes for objects of Python: as an XCom they fail, or become something else."""


def document(body: bytes) -> dict[str, Any]:
    """
    Parse a JSON object.

    :raises ValueError: if it is not one, or has a field twice, NaN or an infinity
    """
    try:
        value = json.loads(body, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_fields)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"The body is not JSON: {why}.") from None
    if not isinstance(value, dict):
        raise ValueError(f"The body is {kind(value)}; expected an object with a status.")
    return value


def kind(value: object) -> str:
    """Return what kind of JSON value it is, in words; text is quoted."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return f"{value!r:.60}"
        case list():
            return "an array"
    return "an object"


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is not a JSON value")


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it has the field {name!r:.60} twice")
        fields[name] = value
    return fields


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text:.40} is too large")
    return value


def check(field: str, value: object) -> None:
    """
    Reject what neither the database nor the task could read as JSON, and would only then fail the task.

    :raises ValueError: naming the field
    """
    level, depth, count = [value], 0, 1
    while level:
        if depth > _MAX_DEPTH:
            raise ValueError(f"{field} is nested too deeply; expected at most {_MAX_DEPTH} levels.")
        if count > MAX_VALUES:
            raise ValueError(
                f"{field} contains more than {MAX_VALUES} values; return a reference to them instead."
            )
        level = [inner for item in level for inner in _contents(field, item)]
        depth, count = depth + 1, count + len(level)


def _contents(field: str, value: object) -> Iterable[object]:
    match value:
        case str():
            _check_text(field, value)
        case int() if value not in _INTEGERS:
            raise ValueError(f"{field} contains an integer of more than 64 bits; send it as text.")
        case list():
            return value
        case dict():
            if reserved := value.keys() & _RESERVED:
                raise ValueError(f"{field} contains a field {min(reserved)!r}, a name that Airflow reserves.")
            for name in value:
                _check_text(field, name)
            return value.values()
    return ()


def _check_text(field: str, text: str) -> None:
    if _UNSTORABLE.search(text):
        raise ValueError(f"{field} contains a NUL character or half of a surrogate pair.")
