"""
Encode Python values as JSON, and validate them before anything is sent; and make what a service returned storable.

A value that JSON cannot represent exactly is rejected with its path (``inputs.rows[3].when``), so that a DAG
author finds the one invalid value among thousands.
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

_MICROSECOND = timedelta(microseconds=1)

# How deep a JSON value may be nested that is stored as such.
_MAX_DEPTH = 100

_FIXES = {
    **dict.fromkeys(("bytes", "bytearray"), "decode it to text, or base64-encode it"),
    **dict.fromkeys(("set", "frozenset"), "use a list, which has an order"),
    "XComArg": "use it only in a templated argument of the operator",
}


def encode(name: str, value: object) -> bytes:
    """
    Encode a value as JSON.

    ``datetime``, ``date`` and ``time`` (also pendulum's) become ISO 8601 text, ``timedelta`` an ISO 8601
    duration, ``Decimal`` its exact digits as text, ``UUID``, ``Path`` and ``ObjectStoragePath`` text;
    mappings become objects, and other sequences arrays.

    :param name: what the value is called in errors, such as ``inputs``
    :param value: any JSON value, which may contain the Python types above
    :return: ASCII bytes, without whitespace
    :raises InvalidRequestError: if it contains NaN, an infinity, a key that is not a string, a lone
        surrogate, itself or a value of any other type, naming its path
    """
    try:
        return json.dumps(_plain(value, name), allow_nan=False, separators=(",", ":")).encode("ascii")
    except InvalidRequestError:
        raise
    except (RecursionError, ValueError):
        raise _rejection(name, "is nested too deeply, or contains itself", "use a flatter value") from None


def _plain(value: object, path: str) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            return _text(value, path)
        case int():
            try:
                int.__repr__(value)
            except ValueError:
                raise _rejection(path, "has more digits than Python converts to text", "use text") from None
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
        case Decimal() if value.is_finite():
            return str(value)
        case float() | Decimal():
            raise _rejection(path, f"is {value}, which JSON cannot represent", "use a number, or None")
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return _duration(value)
        case UUID():
            return str(value)
        # Matched by attributes: ObjectStoragePath is Airflow's, and not a PurePath.
        case PurePath() | object(as_uri=_, protocol=_):
            return _text(str(value), path)
        case Mapping():
            return {_key(key, path): _plain(item, _member(path, key)) for key, item in value.items()}
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            return [_plain(item, f"{path}[{number}]") for number, item in enumerate(value)]
    kind = type(value).__name__
    raise _rejection(
        path,
        f"is {kind_of(value)}, which JSON cannot represent",
        _FIXES.get(kind, "use text, a number, a list or a dict"),
    )


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _rejection(
            path, f"is not valid Unicode text (at character {error.start})", "fix its decoding"
        ) from None
    return str.__str__(value)  # str() of a str enum member returns its name


def _duration(value: timedelta) -> str:
    # In days and seconds only: years and months vary in length. timedelta's own division is exact; pendulum's
    # has another meaning.
    microseconds = timedelta.__floordiv__(value, _MICROSECOND)
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    clock = f"T{seconds}{f'.{fraction:06}'.rstrip('0') if fraction else ''}S" if seconds or fraction else ""
    return f"{'-' if microseconds < 0 else ''}P{f'{days}D' if days else ''}{clock or ('' if days else 'T0S')}"


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise _rejection(path, f"has a key that is {kind_of(key)} ({key!r})", "JSON keys are text: use a str")
    return _text(key, f"{path} (its key {key!a})")


def _member(path: str, key: object) -> str:
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!a}]"


def _rejection(path: str, what: str, fix: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} {what}: {fix}.")


# Values that a service returned -----------------------------------------------------------------------------


def can_be_stored(document: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether Airflow's task runner can send a JSON value: 64 bits for whole numbers, no NaN, no deep nesting."""
    if isinstance(document, float):
        return math.isfinite(document)
    if isinstance(document, int):
        return -(2**63) <= document < 2**63
    if not isinstance(document, dict | list):
        return True
    parts = document.values() if isinstance(document, dict) else document
    return depth > 0 and all(can_be_stored(part, depth - 1) for part in parts)


def storable(document: Any) -> Any:
    """Return a JSON value without the text that a database rejects (NUL, lone surrogates)."""
    match document:
        case str():
            return document.replace("\0", "\ufffd").encode(errors="replace").decode()
        case dict():
            return {storable(name): storable(item) for name, item in document.items()}
        case list():
            return [storable(item) for item in document]
    return document
