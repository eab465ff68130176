"""
Encode Python values as JSON, and validate them before anything is sent; and make what a service returned storable.

A value that JSON cannot represent exactly is rejected with its path (``inputs.rows[3].when``), so that a DAG
author finds the one invalid value among thousands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

from workflow_automation_provider.client.checks import kind_of
from workflow_automation_provider.exceptions import InvalidRequestError

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

    ``datetime``, ``date`` and ``time`` (also pendulum's) become ISO 8601 text, ``Decimal`` its exact digits as text,
    ``UUID``, ``Path`` and ``ObjectStoragePath`` text; mappings become objects, and other sequences arrays.

    :param name: what the value is called in errors, such as ``inputs``
    :param value: any JSON value, which may contain the Python types above
    :return: ASCII bytes, without whitespace
    :raises InvalidRequestError: if it contains NaN, an infinity, a key that is not a string, a lone
        surrogate, itself or a value of any other type, naming its path
    """
    try:
        return json.dumps(_plain(value, name), allow_nan=False, separators=(",", ":")).encode(
            "ascii"
        )
    except InvalidRequestError:
        raise
    except (RecursionError, ValueError):
        raise _rejection(
            name, "is nested too deeply, or contains itself", "use a flatter value"
        ) from None


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
                raise _rejection(
                    path, "has more digits than Python converts to text", "use text"
                ) from None
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
        case Decimal() if value.is_finite():
            return str(value)
        case float() | Decimal():
            raise _rejection(
                path, f"is {value}, which JSON cannot represent", "use a number, or None"
            )
        case datetime() | date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case Mapping():
            return {
                _key(key, path): _plain(item, _member(path, key)) for key, item in value.items()
            }
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            return [_plain(item, f"{path}[{number}]") for number, item in enumerate(value)]
        # ObjectStoragePath is no PurePath. Its class is asked, for an undefined template raises an error for any attribute.
        case _ if isinstance(value, PurePath) or {"as_uri", "protocol"} <= {*dir(type(value))}:
            return _text(str(value), path)
    kind = type(value).__name__
    raise _rejection(
        path,
        f"is {kind_of(value)}, which JSON cannot represent",
        _FIXES.get(kind, "use text, a number, a list or a dict"),
    )


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


def _member(path: str, key: object) -> str:
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!a}]"


def _rejection(path: str, what: str, fix: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} {what}: {fix}.")


# Values that a service returned -----------------------------------------------------------------------------


def storable(document: Any, depth: int = _MAX_DEPTH) -> Any:
    """
    Return a JSON value without the text that a database rejects (NUL, lone surrogates).

    :raises ValueError: if Airflow's task runner cannot send it: whole numbers have 64 bits, and NaN and deep nesting are errors
    """
    match document:
        case str():
            return document.replace("\0", "\ufffd").encode(errors="replace").decode()
        case dict() | list() if not depth:
            raise ValueError("it is nested too deeply")
        case dict():
            return {storable(name): storable(item, depth - 1) for name, item in document.items()}
        case list():
            return [storable(item, depth - 1) for item in document]
        case float() if not math.isfinite(document):
            raise ValueError("it has a number that JSON does not know")
        case int() if not -(2**63) <= document < 2**63:
            raise ValueError("it has a number of more than 64 bits")
    return document
