"""
Python values as JSON, checked before anything is sent.

What cannot be written faithfully is rejected with the path to it (``inputs.rows[3].when``), so that the
author of a DAG finds the one value that is wrong among thousands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

from workflow_automation_provider.client.checks import kind_of
from workflow_automation_provider.exceptions import InvalidRequestError

__all__ = ["encode"]

_MICROSECOND = timedelta(microseconds=1)

# Deeper than any real document, and well short of where Python's own recursion ends.
_MAX_DEPTH = 200

_FIXES = {
    "bytes": "decode it to text, or base64-encode it",
    "bytearray": "decode it to text, or base64-encode it",
    "set": "give a list, whose order is known",
    "frozenset": "give a list, whose order is known",
    "XComArg": "give it where the operator's templates reach it",
}


def encode(name: str, value: object) -> bytes:
    """
    Write ``value`` as JSON.

    ``datetime``, ``date`` and ``time`` (pendulum's too) become ISO 8601 text, ``timedelta`` an ISO 8601
    duration, ``Decimal`` its exact digits as text, ``UUID``, ``Path`` and ``ObjectStoragePath`` text; mappings become objects,
    other sequences arrays.

    :param name: what the value is called in errors, such as ``inputs``
    :param value: any JSON value, with the Python values named above in it
    :return: ASCII bytes, without white space
    :raises InvalidRequestError: for NaN, infinities, keys that are not strings, lone surrogates, a value that
        contains itself and any other type, naming the path to it
    """
    plain = _plain(value, name, ())
    return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode("ascii")


def _plain(value: object, path: str, inside: tuple[int, ...]) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            return _text(value, path)
        case int():
            return _whole_number(value, path)
        case float():
            if not math.isfinite(value):
                raise _rejection(path, f"is {value}, which JSON cannot hold", "give a number, or None")
            return float(value)
        case Decimal():
            if not value.is_finite():
                raise _rejection(path, f"is Decimal('{value}'), which is no number", "give a number, or None")
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return _duration(value)
        case UUID():
            return str(value)
        # By what it can do: ObjectStoragePath is Airflow's, and no PurePath.
        case PurePath() | object(as_uri=_, protocol=_):
            return _text(str(value), path)
        case Mapping():
            inside = _enter(value, path, inside)
            return {_key(key, path): _plain(item, _member(path, key), inside) for key, item in value.items()}
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            inside = _enter(value, path, inside)
            return [_plain(item, f"{path}[{number}]", inside) for number, item in enumerate(value)]
    kind = type(value).__name__
    raise _rejection(
        path,
        f"is {kind_of(value)}, which JSON cannot hold",
        _FIXES.get(kind, "give text, a number, a list or a dict"),
    )


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _rejection(
            path, f"is not valid Unicode text (at character {error.start})", "repair its decoding"
        ) from None
    return str.__str__(value)  # str() of a str that is an Enum is its name


def _duration(value: timedelta) -> str:
    # In days and seconds only: how long a year or a month is, nobody knows. By timedelta's own division,
    # which is exact, where pendulum's is of another meaning.
    microseconds = timedelta.__floordiv__(value, _MICROSECOND)
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    clock = f"T{seconds}{f'.{fraction:06}'.rstrip('0') if fraction else ''}S" if seconds or fraction else ""
    return f"{'-' if microseconds < 0 else ''}P{f'{days}D' if days else ''}{clock or ('' if days else 'T0S')}"


def _whole_number(value: int, path: str) -> int:
    try:
        int.__repr__(value)
    except ValueError:
        raise _rejection(path, "is an int of more digits than Python writes", "give it as text") from None
    return int(value)


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise _rejection(
            path,
            f"has a key that is {kind_of(key)} ({key!r})",
            "JSON keys are text: write it as a str",
        )
    return _text(key, f"{path} (its key {key!a})")


def _member(path: str, key: object) -> str:
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!a}]"


def _enter(value: object, path: str, inside: tuple[int, ...]) -> tuple[int, ...]:
    if id(value) in inside:
        raise _rejection(path, f"is {kind_of(value)} that contains itself", "give a copy without the loop")
    if len(inside) >= _MAX_DEPTH:
        raise _rejection(path, f"is nested more than {_MAX_DEPTH} levels deep", "give a flatter value")
    return (*inside, id(value))


def _rejection(path: str, what: str, mend: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} {what}: {mend}.")
