"""
One table of the connection's extras, for the form, the checks, their errors and docs/connection.md.

Airflow reads the form in each of its processes, so this imports nothing that is slow.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from configparser import RawConfigParser
from datetime import date
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from workflow_automation_provider.client.checks import (
    DEFAULT_FILE_FORMAT,
    MAX_TIMEOUT,
    FileFormat,
    check_file_format,
    check_seconds,
    kind_of,
)
from workflow_automation_provider.exceptions import InvalidRequestError

CALLBACK_EXAMPLE = "https://airflow.example"
"""Where a service could reach Airflow."""

MAILBOX_EXAMPLE = "s3://aws_default@bucket/folder"
"""Where runs could write their ends: connection, bucket and folder."""

MAILBOX_SCHEMES = ("s3", "file")

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")

DIRECT = "none"
"""What a connection says in place of a proxy's URL, to use none."""

_SECRET_HEADER_WORDS = (
    "auth",
    "cookie",
    "credential",
    "key",
    "pass",
    "pwd",
    "secret",
    "session",
    "token",
)

# How a value begins that is a secret whatever the name of its header.
_CREDENTIALS = re.compile(r"\s*(bearer|basic)\s", re.IGNORECASE)

_HEADER_NAME = re.compile(r"[A-Za-z0-9_-]+")
_HEADER_VALUE = re.compile(r"[ -~]*")

# Set by the client itself: any other value would break the framing, change the meaning or expose
# the key.
_RESERVED_HEADER = re.compile(
    "accept-encoding|connection|content-(length|type)|expect|host|te|trailer|transfer-encoding"
    "|upgrade|x-api-key",
    re.IGNORECASE,
)


# Kinds of values ----------------------------------------------------------------------------------


class Kind(NamedTuple):
    """
    What an extra may hold.

    :param json_type: as the docs name it; the form and a URI can only hold an object or an array as
        text
    :param expected: what errors say that it should be
    :param read: returns the value that is meant, given what is written and the extras that were
        read before. It raises ValueError or OverflowError if the value is of another kind,
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


def _client_certificate(value: Any, read: Mapping[str, Any]) -> str | tuple[str, str]:
    if not isinstance(value, list):
        return _text(value, read)
    certificate, key = value
    return _text(certificate, read), _text(key, read)


def _proxy(value: Any, read: Mapping[str, Any]) -> str:
    return proxy_url(_text(value, read))


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


def _headers(value: Any, read: Mapping[str, Any]) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError

    headers = {}
    for written, content in value.items():
        name = written.strip()
        text = _text(content, read)
        if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(text)):
            raise ValueError
        if _RESERVED_HEADER.fullmatch(name):
            raise InvalidRequestError(f"{name} is set by the provider: leave it out")
        headers[name] = text
    return headers


def _callback_base_url(value: Any, read: Mapping[str, Any]) -> str:
    from workflow_automation_provider.client.protocol import parse_base_url

    text = _text(value, read)
    scheme, separator, _ = text.partition("://")
    if separator and scheme.lower() not in ("http", "https"):
        return mailbox_folder(text)
    return parse_base_url(
        text,
        allow_http=read.get("allow_http", False),
        name="the URL",
        example=CALLBACK_EXAMPLE,
    )


def mailbox_folder(text: str) -> str:
    """
    Return the URL of a folder for mailboxes, without a slash at its end.

    :raises InvalidRequestError: if it is none, without showing it
    """
    parts = urlsplit(text)
    if parts.scheme not in MAILBOX_SCHEMES:
        raise InvalidRequestError(
            "a mailbox is in S3 or in a compatible store: expected an https URL, or a folder such "
            f"as {MAILBOX_EXAMPLE}"
        )
    conn_id, _, bucket = parts.netloc.rpartition("@")
    is_local = parts.scheme == "file"
    has_place = parts.path.startswith("/") if is_local else _BUCKET.fullmatch(bucket)
    is_clean = parts.netloc == "" if is_local else not re.search(r"[:@\s]", conn_id)
    if not (has_place and is_clean) or parts.query or parts.fragment or re.search(r"\s", text):
        raise InvalidRequestError(
            "the folder of the mailboxes has no bucket, or has a password, a query, a fragment or "
            f"a blank: expected one such as {MAILBOX_EXAMPLE}"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


def is_mailbox(url: str) -> bool:
    """Return whether a URL is that of a folder for mailboxes, and not of Airflow."""
    return url.partition("://")[0] in MAILBOX_SCHEMES


def _statuses(value: Any, _: Mapping[str, Any]) -> frozenset[int]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    elif not isinstance(value, list):
        value = [value]

    texts = [str(status) for status in value]
    if not all(re.fullmatch("[45][0-9]{2}", text) for text in texts):
        raise ValueError
    return frozenset(map(int, texts))


_TEXT = Kind("string", "text", _text)
_BOOLEAN = Kind("boolean", "true or false", _boolean)
# requests and httpx take a path in "verify".
_VERIFY = Kind("boolean", "true or false (a path of certificates goes into 'ca_bundle')", _boolean)
_SECONDS = Kind("number", f"seconds, more than 0 and at most {MAX_TIMEOUT} (a week)", _seconds)
_DATE = Kind("date", "a date such as 2027-01-31", _date)
_FILE_FORMAT = Kind("object or string", "an object or a word", _file_format)
_CLIENT_CERT = Kind("string or array", "a path, or an array of two", _client_certificate)
_PROXY = Kind("string", "text", _proxy)
_HEADERS = Kind("object", "an object of header names and printable ASCII values", _headers)
_URL = Kind("string", "text", _callback_base_url)
_STATUSES = Kind("string or array", "statuses from 400 to 599", _statuses)


# The table ----------------------------------------------------------------------------------------


class Extra(NamedTuple):
    """
    An extra of the connection.

    :param kind: what it may hold
    :param form: what the form says of it
    """

    kind: Kind
    form: dict[str, Any]


def _extra(
    label: str,
    kind: Kind,
    description: str,
    *examples: str,
    default: Any = None,
    secret: bool = False,
) -> Any:
    """
    Declare an extra.

    :param default: its value where the connection has none, or what makes one
    :param secret: whether to leave it out of reprs
    """
    is_text = kind.json_type not in ("number", "boolean")
    schema: dict[str, Any] = {"type": ["string" if is_text else kind.json_type, "null"]}
    if kind.json_type == "number":
        schema["exclusiveMinimum"] = 0
    if kind.json_type == "boolean":
        schema["default"] = default
    if kind.json_type == "date":
        schema["format"] = "date"
    if examples:
        schema["examples"] = list(examples)

    form = {"label": label, "schema": schema, "description": description}
    metadata = {"extra": Extra(kind, form)}
    if callable(default):
        return dataclasses.field(default_factory=default, repr=not secret, metadata=metadata)
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The extras of a connection."""

    flow_id: str | None = _extra(
        "Flow ID",
        _TEXT,
        "The workflow that the API key belongs to, so that uploads need not repeat it.",
    )
    timeout: float = _extra(
        "Timeout (seconds)",
        _SECONDS,
        "How long connecting, each send, and the whole response may take. Default: 60.",
        default=60.0,
    )
    key_expires_on: date | None = _extra(  # noqa: RUF009
        "Key expires on",
        _DATE,
        "The expiry date of the API key: tasks log a warning from 14 days before, and fail after "
        "it.",
    )
    file_format: FileFormat = _extra(  # noqa: RUF009
        "File format",
        _FILE_FORMAT,
        "How an uploaded file is written: a JSON object that maps field names to name, path, "
        "base64, data_url, content_type or size; or one of these values alone.",
        '{"name": "name", "content_type": "content_type", "content": "base64"}',
        "base64",
        "data_url",
        default=lambda: DEFAULT_FILE_FORMAT,
    )
    verify: bool = _extra(
        "Verify the certificate",
        _VERIFY,
        "Verify the service's TLS certificate.",
        default=True,
    )
    ca_bundle: str | None = _extra(
        "CA bundle",
        _TEXT,
        "File or directory of PEM certificates to trust. Default: those of the environment, such "
        "as SSL_CERT_FILE and REQUESTS_CA_BUNDLE, else the usual ones.",
        "/etc/ssl/certs/internal-ca.pem",
    )
    client_cert: str | tuple[str, str] | None = _extra(
        "Client certificate",
        _CLIENT_CERT,
        'PEM file with certificate and key, or a JSON array of two files: ["cert.pem", "key.pem"].',
        '["/etc/ssl/client.pem", "/etc/ssl/client.key"]',
    )
    proxy: str | None = _extra(
        "Proxy",
        _PROXY,
        "URL of a proxy, or none for a direct connection. Default: the environment's proxies.",
        "http://proxy.example:3128",
        DIRECT,
        secret=True,
    )
    headers: dict[str, str] = _extra(  # noqa: RUF009
        "Extra headers",
        _HEADERS,
        "JSON object of header names and values to send with every request.",
        '{"X-Team": "data"}',
        secret=True,
        default=dict,
    )
    allow_http: bool = _extra(
        "Allow plain http",
        _BOOLEAN,
        "Allow base URLs without TLS: the API key or a callback's token can then be read in "
        "transit.",
        default=False,
    )
    callback_base_url: str | None = _extra(
        "Callback base URL",
        _URL,
        "For tasks that wait for the end of a run: URL of Airflow's API server as the service "
        "reaches it; or, where it cannot, a folder of an object store. Default: Airflow's option "
        "[api] base_url.",
        CALLBACK_EXAMPLE,
        MAILBOX_EXAMPLE,
    )
    busy_statuses: frozenset[int] = _extra(
        "Busy statuses",
        _STATUSES,
        "Statuses, besides 425 and 429, with which this service rejects a request before it has "
        "done anything. If that is not so, a retry starts a second run.",
        "423",
        "423,520",
        default=frozenset(),
    )

    def secrets(self) -> list[str]:
        """Return the values of headers that suggest a secret, and the proxy's password."""
        secrets = [value for name, value in self.headers.items() if _is_secret(name, value)]
        try:
            password = urlsplit(self.proxy or "").password
        except ValueError:
            return secrets

        if password:
            secrets += sorted({password, unquote(password)})
        return secrets

    @classmethod
    def read(cls, extra: str | None) -> Settings:
        """
        Read the extra of a connection.

        :param extra: JSON text; a field that is null or empty counts as not set
        :raises InvalidRequestError: if a field is invalid or unknown, naming each
        """
        written = _parsed(extra)
        values: dict[str, Any] = {}
        problems = []
        # In the order of the table: a value may depend on one that was read before.
        for name in dict.fromkeys((*FIELDS, *written)):
            value = written.get(name)
            if value is None or (isinstance(value, str) and not value.strip()):
                continue
            try:
                values[name] = _value(name, value, values)
            except InvalidRequestError as error:
                problems.append(error.message)

        if problems:
            text = "; ".join(problems)
            end = "" if text.endswith((".", "?")) else "."
            raise InvalidRequestError(f"The connection is not valid: {text}{end}")
        return cls(**values)


def _is_secret(name: str, value: str) -> bool:
    has_secret_name = any(word in name.lower() for word in _SECRET_HEADER_WORDS)
    return has_secret_name or _CREDENTIALS.match(value) is not None


FIELDS: dict[str, Extra] = {
    field.name: field.metadata["extra"] for field in dataclasses.fields(Settings)
}
"""The table."""


def _parsed(extra: str | None) -> dict[str, Any]:
    if not extra:
        return {}
    try:
        written = json.loads(extra)
    except ValueError as error:
        raise InvalidRequestError(f"The connection's extra is not JSON ({error}).") from None
    if not isinstance(written, dict):
        raise InvalidRequestError(
            f"The connection's extra is {kind_of(written)}: expected a JSON object."
        )
    return written


# What other programs and libraries call a field, without its underscores.
_FOREIGN_NAMES = {
    "flow_id": "flow workflow workflowid",
    "timeout": "timeouts requesttimeout readtimeout connecttimeout timeoutseconds",
    "key_expires_on": "expires expireson expirydate expirationdate",
    "verify": "ssl verifyssl sslverify tlsverify verifycertificate checkcertificate insecure",
    "ca_bundle": "ca cacert cacerts cafile capath sslca sslcacert truststore "
    "sslcertfile sslcertdir requestscabundle curlcabundle",
    "client_cert": "cert certfile certificate clientcertificate clientkey sslcert sslkey keyfile",
    "proxy": "proxies httpproxy httpsproxy proxyurl",
    "headers": "header httpheaders extraheaders customheaders authorization",
    "callback_base_url": "callback callbackurl",
    "busy_statuses": "statuses retrystatuses statusforcelist",
    "the API key field (password)": "apikey xapikey key token apitoken password secret",
    "the base URL field (host)": "baseurl url host endpoint server",
}

_FIELD_OF: dict[str, str] = {
    foreign: field for field, names in _FOREIGN_NAMES.items() for foreign in names.split()
}


def _unknown_extra(name: str) -> InvalidRequestError:
    """Return the error for an extra that does not exist, which names the field that is meant."""
    # Not at the top: only a typo needs it.
    import difflib

    # Airflow 2 stored an extra of the form as extra__TYPE__NAME.
    plain = re.sub("[^a-z0-9]", "", name.lower().rpartition("__")[2])
    plain_fields = {field.replace("_", ""): field for field in FIELDS}
    meant = plain_fields.get(plain) or _FIELD_OF.get(plain)
    if meant is None:
        near = difflib.get_close_matches(plain, plain_fields, n=1)
        meant = plain_fields[near[0]] if near else None

    if meant is None:
        fix = f"expected one of {', '.join(FIELDS)}"
    elif meant in FIELDS:
        fix = f"did you mean {meant!r}?"
    else:
        fix = f"its value belongs in {meant}"
    return InvalidRequestError(f"extra {name!r} is not supported; {fix}")


def _value(name: str, written: object, read: Mapping[str, Any]) -> Any:
    """
    Return the value of an extra.

    :param read: the extras that were read before
    :raises InvalidRequestError: if it cannot be used, without showing it: it may be a secret in the
        wrong field
    """
    if name not in FIELDS:
        raise _unknown_extra(name)

    kind, form = FIELDS[name]
    is_document = "object" in kind.json_type or "array" in kind.json_type
    # The form and a URI can only store it as text.
    if is_document and isinstance(written, str) and written.strip().startswith(("{", "[")):
        try:
            written = json.loads(written)
        except ValueError as error:
            raise InvalidRequestError(
                f"extra {name!r} starts like JSON but is not: {error}"
            ) from None

    try:
        return kind.read(written, read)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"extra {name!r}: {error.message}") from None
    except (ValueError, OverflowError):
        examples = form["schema"].get("examples")
        such = f" such as {examples[0]}" if examples else ""
        raise InvalidRequestError(
            f"extra {name!r} is {kind_of(written)} that cannot be used; "
            f"expected {kind.expected}{such}"
        ) from None


# The form -----------------------------------------------------------------------------------------


CONNECTION_FIELDS: dict[str, dict[str, Any]] = {name: extra.form for name, extra in FIELDS.items()}
"""
The form's extras.

Airflow 3.2+ renders them without importing the hook, and suggests the ``examples`` while the user
types.
"""

FIELD_BEHAVIOUR: dict[str, Any] = {
    "hidden-fields": ["schema", "login", "port", "extra"],
    "relabeling": {"host": "Base URL", "password": "API key"},
    "placeholders": {
        "host": "https://service.example/api",
        "password": "from the trigger section of the workflow's builder page",
    },
}
"""How the form shows the fields that every connection has."""
