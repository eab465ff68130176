"""The kinds of values that the connection's extras may have, and how each is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from configparser import RawConfigParser
from datetime import date
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from workflow_automation_provider.client.checks import MAX_DAYS, MAX_TIMEOUT, duration
from workflow_automation_provider.client.file_format import check_file_format
from workflow_automation_provider.client.urls import parse_base_url
from workflow_automation_provider.exceptions import InvalidRequestError

CALLBACK_EXAMPLE = "https://airflow.example"
"""Where a service could reach Airflow."""

MAILBOX_EXAMPLE = "s3://aws_default@bucket/folder"
"""Where runs could write their ends: connection, bucket and folder."""

MAILBOX_SCHEMES = ("s3", "abfs", "gs", "file")

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")

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


class SettingKind(NamedTuple):
    """
    What an extra may hold.

    :param json_type: the type that the docs name; the form and a URI can only hold an object or an
        array as text
    :param expected: the values that are allowed, as errors name them
    :param read: returns the value of an extra, from the value in the connection. It raises
        ValueError or OverflowError if the value is of another kind, and InvalidRequestError with
        the reason if it is wrong in another way
    """

    json_type: str
    expected: str
    read: Callable[[Any], Any]


def _text(value: Any) -> str:
    # No float, which may have lost digits.
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError
    return str(value).strip()


def _boolean(value: Any) -> bool:
    state = RawConfigParser.BOOLEAN_STATES.get(str(value).strip().lower())
    if state is None:
        raise ValueError
    return state


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    return duration("timeout", float(value), days=MAX_DAYS).total_seconds()


def _date(value: Any) -> date:
    if not isinstance(value, str):
        raise ValueError
    return date.fromisoformat(value.strip())


def _client_certificate(value: Any) -> str | tuple[str, str]:
    if not isinstance(value, list):
        return _text(value)
    certificate, key = value  # a ValueError unless there are two
    return _text(certificate), _text(key)


def _proxy(value: Any) -> str:
    return proxy_url(_text(value))


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


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError

    headers = {}
    for written, content in value.items():
        name = written.strip()
        text = _text(content)
        is_sendable = _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(text)
        if not is_sendable:
            raise ValueError
        if _RESERVED_HEADER.fullmatch(name):
            raise InvalidRequestError(f"{name} is set by the provider: leave it out")

        headers[name] = text

    return headers


def _callback_base_url(value: Any) -> str:
    text = _text(value)
    scheme, separator, _ = text.partition("://")
    if separator and scheme.lower() not in ("http", "https"):
        return mailbox_folder(text)

    # A task that waits checks whether it may be plain http.
    return parse_base_url(text, allow_http=True, name="the URL", example=CALLBACK_EXAMPLE)


def mailbox_folder(text: str) -> str:
    """
    Return the URL of a folder for mailboxes, without a slash at its end.

    :raises InvalidRequestError: if it is none, without showing it
    """
    parts = urlsplit(text)
    conn_id, _, bucket = parts.netloc.rpartition("@")
    if parts.scheme == "file":
        has_place = text.startswith("file:///") and parts.path.strip("/") != ""
    else:
        has_bucket = _BUCKET.fullmatch(bucket) and not re.search(r"[:@]", conn_id)
        has_place = bool(has_bucket) and parts.scheme in MAILBOX_SCHEMES

    has_more = parts.query or parts.fragment or re.search(r"\s", text)
    is_id_cut = not conn_id and "@" in parts.path
    goes_up = {".", ".."}.intersection(parts.path.split("/"))
    if not has_place or has_more or is_id_cut or goes_up:
        raise InvalidRequestError(
            f"expected an https URL, or a folder in a store of {', '.join(MAILBOX_SCHEMES[:-1])} "
            f"without a password, a query, a fragment, a blank, '.' or '..', such as "
            f"{MAILBOX_EXAMPLE}; a '/' in the id of a connection is written %2F"
        )

    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


def is_mailbox(url: str) -> bool:
    """Return whether a URL is that of a folder for mailboxes, and not of Airflow."""
    return url.partition("://")[0] in MAILBOX_SCHEMES


def _statuses(value: Any) -> frozenset[int]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    elif not isinstance(value, list):
        value = [value]

    texts = [str(status) for status in value]
    if not all(re.fullmatch("[45][0-9]{2}", text) for text in texts):
        raise ValueError
    return frozenset(map(int, texts))


TEXT = SettingKind("string", "text", _text)
BOOLEAN = SettingKind("boolean", "true or false", _boolean)
SECONDS = SettingKind(
    "number", f"seconds, more than 0 and at most {MAX_TIMEOUT} (a week)", _seconds
)
DATE = SettingKind("date", "a date such as 2027-01-31", _date)
FILE_FORMAT = SettingKind("object or string", "an object or a word", check_file_format)
CLIENT_CERT = SettingKind("string or array", "a path, or an array of two", _client_certificate)
PROXY = SettingKind("string", "text", _proxy)
HEADERS = SettingKind("object", "an object of header names and printable ASCII values", _headers)
URL = SettingKind("string", "text", _callback_base_url)
STATUSES = SettingKind("string or array", "statuses from 400 to 599", _statuses)
