"""The kinds of values that the connection's extras may have, and how each is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from configparser import RawConfigParser
from datetime import date
from typing import Any, NamedTuple

from workflow_automation_provider.client.checks import (
    MAX_TIMEOUT,
    FileFormat,
    check_file_format,
    check_seconds,
)
from workflow_automation_provider.exceptions import InvalidRequestError

CALLBACK_EXAMPLE = "https://airflow.example"
"""Where a service could reach Airflow."""

DIRECT = "none"
"""The value of ``proxy`` for a direct connection."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9_-]+")
_HEADER_VALUE = re.compile(r"[ -~]*")

# Set by the client itself: any other value would break the framing, change the meaning or expose
# the key.
_RESERVED_HEADER = re.compile(
    "accept-encoding|connection|content-(length|type)|expect|host|te|trailer|transfer-encoding"
    "|upgrade|x-api-key",
    re.IGNORECASE,
)


class Kind(NamedTuple):
    """
    What an extra may hold.

    :param json_type: the type that the docs name; the form and a URI can only hold an object or an
        array as text
    :param expected: the values that are allowed, as errors name them
    :param read: returns the value of an extra, from the value in the connection and the earlier
        extras. It raises ValueError or OverflowError if the value is of another kind, and
        InvalidRequestError with the reason if it is wrong in another way
    """

    json_type: str
    expected: str
    read: Callable[[Any, Mapping[str, Any]], Any]


def _text(value: Any, _: Mapping[str, Any]) -> str:
    # No float, which may have lost digits.
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError
    return str(value).strip()


def _boolean(value: Any, _: Mapping[str, Any]) -> bool:
    state = RawConfigParser.BOOLEAN_STATES.get(str(value).strip().lower())
    if state is None:
        raise ValueError
    return state


def _seconds(value: Any, _: Mapping[str, Any]) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    seconds = float(value)
    check_seconds("timeout", seconds)
    return seconds


def _date(value: Any, _: Mapping[str, Any]) -> date:
    if not isinstance(value, str):
        raise ValueError
    return date.fromisoformat(value.strip())


def _file_format(value: Any, _: Mapping[str, Any]) -> FileFormat:
    return check_file_format(value)


def _client_certificate(value: Any, earlier: Mapping[str, Any]) -> str | tuple[str, str]:
    if not isinstance(value, list):
        return _text(value, earlier)
    certificate, key = value  # a ValueError unless there are two
    return _text(certificate, earlier), _text(key, earlier)


def _proxy(value: Any, earlier: Mapping[str, Any]) -> str:
    return proxy_url(_text(value, earlier))


def proxy_url(text: str) -> str:
    """
    Return the URL of a proxy.

    :param text: the URL, to which ``http://`` may be missing, or :data:`DIRECT`
    """
    text = text.strip()
    if text.lower() == DIRECT:
        return DIRECT
    if "://" in text:
        return text
    return f"http://{text}"


def _headers(value: Any, earlier: Mapping[str, Any]) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError

    headers = {}
    for written, content in value.items():
        name = written.strip()
        text = _text(content, earlier)
        is_sendable = _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(text)
        if not is_sendable:
            raise ValueError
        if _RESERVED_HEADER.fullmatch(name):
            raise InvalidRequestError(f"{name} is set by the provider: leave it out")
        headers[name] = text
    return headers


def _callback_base_url(value: Any, earlier: Mapping[str, Any]) -> str:
    from workflow_automation_provider.client.protocol import parse_base_url

    return parse_base_url(
        _text(value, earlier),
        allow_http=earlier.get("allow_http", False),
        name="the URL",
        example=CALLBACK_EXAMPLE,
    )


def _statuses(value: Any, _: Mapping[str, Any]) -> frozenset[int]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    elif not isinstance(value, list):
        value = [value]

    texts = [str(status) for status in value]
    if not all(re.fullmatch("[45][0-9]{2}", text) for text in texts):
        raise ValueError
    return frozenset(map(int, texts))


TEXT = Kind("string", "text", _text)
BOOLEAN = Kind("boolean", "true or false", _boolean)
# requests and httpx take a path in "verify".
VERIFY = Kind("boolean", "true or false (a path of certificates goes into 'ca_bundle')", _boolean)
SECONDS = Kind("number", f"seconds, more than 0 and at most {MAX_TIMEOUT} (a week)", _seconds)
DATE = Kind("date", "a date such as 2027-01-31", _date)
FILE_FORMAT = Kind("object or string", "an object or a word", _file_format)
CLIENT_CERT = Kind("string or array", "a path, or an array of two", _client_certificate)
PROXY = Kind("string", "text", _proxy)
HEADERS = Kind("object", "an object of header names and printable ASCII values", _headers)
URL = Kind("string", "text", _callback_base_url)
STATUSES = Kind("string or array", "statuses from 400 to 599", _statuses)
