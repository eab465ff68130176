"""
Encode Python values as JSON before anything is sent, and check what Airflow can store of JSON.

A value that JSON cannot represent exactly is rejected with its path (``inputs.rows[3].when``), so
that a DAG author finds the one invalid value among thousands.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.wording import kind_of, member

# How deeply a value may be nested that Airflow stores: its own JSON fails on much deeper ones.
_MAX_STORED_DEPTH = 50

# The integers that MessagePack can hold, in which Airflow hands values to a task: any other would
# make the task's reads fail.
_STORED_INTEGERS = range(-(2**63), 2**64)

# Characters that a database rejects.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

# Names of fields that Airflow takes for objects of Python: an XCom fails, or becomes another value.
_RESERVED = {"__classname__", "__id__", "__type", "__var"}


def encode(name: str, value: object) -> bytes:
    """
    Encode a value as JSON.

    ``datetime``, ``date`` and ``time`` (also pendulum's) become ISO 8601 text, ``Decimal`` its
    exact digits as text, ``UUID``, ``Path`` and ``ObjectStoragePath`` text; mappings become
    objects, and other sequences arrays. The numbers of other libraries, such as numpy's, become
    Python's.

    :param name: what the value is called in errors, such as ``inputs``
    :param value: any JSON value, which may contain the Python types above
    :return: ASCII bytes, without whitespace
    :raises InvalidRequestError: if it contains NaN, an infinity, a key that is not a string, a lone
        surrogate, itself or a value of any other type, naming its path
    """
    try:
        text = json.dumps(_plain(value, name), allow_nan=False, separators=(",", ":"))
        return text.encode("ascii")
    except InvalidRequestError:
        raise
    except (RecursionError, ValueError):
        raise _rejection(
            name,
            "is nested too deeply, contains itself, or has a number of thousands of digits",
            "use a flatter value, or text",
        ) from None


def _plain(value: object, path: str) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            return _text(value, path)
        case int() | float() | Decimal():
            return _number(value, path)
        case datetime() | date() | time():
            return _iso_text(value, path)
        case UUID():
            return str(value)
        case Mapping():
            return {_key(key, path): _plain(item, member(path, key)) for key, item in value.items()}
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            items = itertools.islice(value, len(value))  # it need not raise an IndexError
            return [_plain(item, f"{path}[{number}]") for number, item in enumerate(items)]

    if _is_path(value):
        return _text(str(value), path)

    number = _python_number(value)
    if number is not None:
        return _plain(number, path)

    raise _rejection(
        path,
        f"is {kind_of(value)}, which JSON cannot represent",
        "use text, a number, a list or a dict",
    )


def _number(value: float | Decimal, path: str) -> int | float | str:
    """Return a number as JSON has it: a decimal as text, which keeps its exact digits."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)

    raise _rejection(path, f"is {value}, which JSON cannot represent", "use a number, or None")


def _is_path(value: object) -> bool:
    # ObjectStoragePath is no PurePath. Its class is asked, because an undefined template raises an
    # error for any attribute.
    return isinstance(value, PurePath) or {"as_uri", "protocol"} <= {*dir(type(value))}


def _iso_text(value: date | time, path: str) -> str:
    """Return a date or time as text that can be read back, which pandas' ``NaT`` cannot."""
    text = value.isoformat()
    kind = time if isinstance(value, time) else datetime
    try:
        kind.fromisoformat(text)
    except (TypeError, ValueError):
        raise _rejection(
            path,
            f"is {kind_of(value)} ({text!a:.40}), which is not a date or time",
            "use a date, or None",
        ) from None

    return text


def _python_number(value: Any) -> int | float | None:
    """
    Return a scalar of numpy as Python's own, None if it is none.

    The library is not imported: a scalar has an ``item`` and no dimensions. That of a time may be a
    count of nanoseconds, which is no number to send.
    """
    kind = type(value)
    is_array = hasattr(kind, "shape") and hasattr(kind, "item")
    if not is_array or value.shape != () or getattr(value.dtype, "kind", "") in ("m", "M"):
        return None

    number = value.item()
    return number if isinstance(number, int | float) else None


def _text(value: str, path: str) -> str:
    try:
        return value.encode().decode()  # str() of a str enum member returns its name
    except UnicodeEncodeError as error:
        raise _rejection(
            path, f"is not valid Unicode text (at character {error.start})", "fix its decoding"
        ) from None


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise _rejection(
            path, f"has a key that is {kind_of(key)} ({key!r})", "JSON keys are text: use a str"
        )

    if key.startswith("\ufeff"):
        raise _rejection(
            path,
            f"has the name {key!a:.60}, which begins with a byte order mark",
            'open the file that it is from with encoding="utf-8-sig"',
        )

    return _text(key, f"{path} (its key {key!a})")


def _rejection(path: str, what: str, fix: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} {what}: {fix}.")


# What Airflow can store --------------------------------------------------------------------------


def why_not_storable(value: Any, depth: int = 0) -> str:
    """
    Return why Airflow cannot store a JSON value as it is, empty if it can.

    The database, the task's connection to Airflow, or Airflow's serializer would fail on it later.

    :param depth: how deeply the value is nested in what is stored
    """
    if depth > _MAX_STORED_DEPTH:
        return f"more than {_MAX_STORED_DEPTH} levels"

    inner: list[Any] = []
    match value:
        case str() if _UNSTORABLE.search(value):
            return "a NUL character or half of a surrogate pair"
        case float() if not math.isfinite(value):
            return "a number that is none, or too large"
        case int() if value not in _STORED_INTEGERS:
            return "an integer of more than 64 bits; send it as text"
        case dict():
            reserved = value.keys() & _RESERVED
            if reserved:
                return f"a field {min(reserved)!r}, a name that Airflow reserves"

            inner = [*value, *value.values()]
        case list():
            inner = value

    for item in inner:
        if fault := why_not_storable(item, depth + 1):
            return fault

    return ""


def storable_text(text: str) -> str:
    """Return a text without the characters that a database rejects: NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
