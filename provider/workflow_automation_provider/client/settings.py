"""
One table of the connection's extras, for the form, the checks, their errors and docs/connection.md.

Airflow reads the form in each of its processes, so this imports nothing that is slow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from configparser import RawConfigParser
from datetime import date
from typing import Any
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

_HEADER, _HEADER_VALUE = re.compile(r"[A-Za-z0-9_-]+"), re.compile(r"[ -~]*")

# Set by the client itself: any other value would break the framing, change the meaning or expose the key.
_RESERVED_HEADER = re.compile(
    "accept-encoding|connection|content-(length|type)|expect|host|te|trailer|transfer-encoding|upgrade|x-api-key",
    re.IGNORECASE,
)


# What a field may hold. Each returns the value that is meant, given what is written and the extras that were read before. It
# raises ValueError with what is expected, or InvalidRequestError with the reason.


def _text(value: Any, _: Mapping[str, Any]) -> str:
    # No float, which may have lost digits.
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("text")
    return str(value).strip()


def _boolean(value: Any, _: Mapping[str, Any]) -> bool:
    try:
        return RawConfigParser.BOOLEAN_STATES[str(value).strip().lower()]
    except KeyError:
        raise ValueError("true or false") from None


def _seconds(value: Any, _: Mapping[str, Any]) -> float:
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        seconds = value if isinstance(value, bool) else float(value)
        check_seconds("timeout", seconds)
        return seconds
    raise ValueError(f"seconds, more than 0 and at most {MAX_TIMEOUT} (a week)")


def _date(value: Any, _: Mapping[str, Any]) -> date:
    with contextlib.suppress(AttributeError, ValueError):
        return date.fromisoformat(value.strip())
    raise ValueError("a date such as 2027-01-31")


def _certificate(value: Any, read: Mapping[str, Any]) -> str | tuple[str, str]:
    with contextlib.suppress(ValueError):
        if not isinstance(value, list):
            return _text(value, read)
        certificate, key = value
        return _text(certificate, read), _text(key, read)
    raise ValueError("a path, or an array of two")


def _headers(value: Any, read: Mapping[str, Any]) -> dict[str, str]:
    try:
        headers = {name.strip(): _text(text, read) for name, text in value.items()}
        if not all(
            _HEADER.fullmatch(name) and _HEADER_VALUE.fullmatch(text)
            for name, text in headers.items()
        ):
            raise ValueError
    except (AttributeError, ValueError):
        raise ValueError("an object of header names and values, in printable ASCII,") from None
    if reserved := [name for name in headers if _RESERVED_HEADER.fullmatch(name)]:
        raise InvalidRequestError(f"{reserved[0]} is set by the provider: leave it out")
    return headers


def _callback_base_url(value: Any, read: Mapping[str, Any]) -> str:
    from workflow_automation_provider.client.protocol import parse_base_url

    return parse_base_url(
        _text(value, read),
        allow_http=read.get("allow_http", False),
        name="the URL",
        example=CALLBACK_EXAMPLE,
    )


def _statuses(value: Any, _: Mapping[str, Any]) -> frozenset[int]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    texts = [*map(str, value if isinstance(value, list) else [value])]
    if not all(re.fullmatch("[45][0-9]{2}", text) for text in texts):
        raise ValueError("statuses from 400 to 599")
    return frozenset(map(int, texts))


# The table ----------------------------------------------------------------------------------------------------


def _field(
    label: str,
    kind: str,
    check: Callable[[Any, Mapping[str, Any]], Any],
    description: str,
    *examples: str,
    default: Any = None,
    secret: bool = False,
) -> Any:
    """
    Declare an extra.

    :param kind: its JSON type, as the docs name it; the form and a URI can only hold an object or an array as text
    """
    schema: dict[str, Any] = {"type": [kind if kind in ("number", "boolean") else "string", "null"]}
    if kind == "number":
        schema["exclusiveMinimum"] = 0
    if kind == "boolean":
        schema["default"] = default
    if kind == "date":
        schema["format"] = "date"
    if examples:
        schema["examples"] = [*examples]
    form = {"label": label, "schema": schema, "description": description}
    how = "default_factory" if callable(default) else "default"
    known = {"kind": kind, "check": check, "form": form}
    return dataclasses.field(**{how: default}, repr=not secret, metadata=known)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The extras of a connection."""

    flow_id: str | None = _field(
        "Flow ID",
        "string",
        _text,
        "The workflow that the API key belongs to, so that uploads need not repeat it.",
    )
    timeout: float = _field(
        "Timeout (seconds)",
        "number",
        _seconds,
        "How long connecting, each send, and the whole response may take. Default: 60.",
        default=60.0,
    )
    key_expires_on: date | None = _field(  # noqa: RUF009
        "Key expires on",
        "date",
        _date,
        "The expiry date of the API key: tasks log a warning from 14 days before, and fail after it.",
    )
    file_format: FileFormat = _field(  # noqa: RUF009
        "File format",
        "object or string",
        lambda value, _: check_file_format(value),
        "How an uploaded file is written: a JSON object that maps field names to name, path, base64, data_url, "
        "content_type or size; or one of these values alone.",
        '{"name": "name", "content_type": "content_type", "content": "base64"}',
        "base64",
        "data_url",
        default=lambda: DEFAULT_FILE_FORMAT,
    )
    verify: bool = _field(
        "Verify the certificate",
        "boolean",
        _boolean,
        "Verify the service's TLS certificate.",
        default=True,
    )
    ca_bundle: str | None = _field(
        "CA bundle",
        "string",
        _text,
        "File or directory of PEM certificates to trust instead of the default ones.",
        "/etc/ssl/certs/internal-ca.pem",
    )
    client_cert: str | tuple[str, str] | None = _field(
        "Client certificate",
        "string or array",
        _certificate,
        'PEM file with certificate and key, or a JSON array of two files: ["cert.pem", "key.pem"].',
        '["/etc/ssl/client.pem", "/etc/ssl/client.key"]',
    )
    proxy: str | None = _field(
        "Proxy",
        "string",
        _text,
        "URL of a proxy. Default: the proxies from the environment.",
        "http://proxy.example:3128",
        secret=True,
    )
    headers: dict[str, str] = _field(  # noqa: RUF009
        "Extra headers",
        "object",
        _headers,
        "JSON object of header names and values to send with every request.",
        '{"X-Team": "data"}',
        secret=True,
        default=dict,
    )
    allow_http: bool = _field(
        "Allow plain http",
        "boolean",
        _boolean,
        "Allow base URLs without TLS: the API key or a callback's token can then be read in transit.",
        default=False,
    )
    callback_base_url: str | None = _field(
        "Callback base URL",
        "string",
        _callback_base_url,
        "URL of Airflow's API server as the service reaches it, for tasks that wait for the end of a run. "
        "Default: Airflow's option [api] base_url.",
        CALLBACK_EXAMPLE,
    )
    busy_statuses: frozenset[int] = _field(
        "Busy statuses",
        "string or array",
        _statuses,
        "Statuses, besides 425 and 429, with which this service rejects a request before it has done anything. "
        "If that is not so, a retry starts a second run.",
        "423",
        "423,520",
        default=frozenset(),
    )

    def secrets(self) -> list[str]:
        """Return the values of headers whose name suggests a secret, and the password of the proxy's URL."""
        secrets = [
            value
            for name, value in self.headers.items()
            if any(word in name.lower() for word in _SECRET_HEADER_WORDS)
        ]
        try:
            password = urlsplit(self.proxy or "").password or ""
        except ValueError:
            return secrets
        return [*secrets, *sorted({password, unquote(password)} - {""})]

    @classmethod
    def read(cls, extra: str | None) -> Settings:
        """
        Read the extra of a connection.

        :param extra: JSON text; a field that is null or empty counts as not set
        :raises InvalidRequestError: if a field is invalid or unknown, naming each
        """
        try:
            written = json.loads(extra) if extra else {}
        except ValueError as error:
            raise InvalidRequestError(f"The connection's extra is not JSON ({error}).") from None
        if not isinstance(written, dict):
            raise InvalidRequestError(
                f"The connection's extra is {kind_of(written)}: expected a JSON object."
            )
        values: dict[str, Any] = {}
        problems = []
        # In the order of the table: a check may need what an earlier one returned.
        for name in dict.fromkeys((*FIELDS, *written)):
            value = written.get(name)
            if value is None or (isinstance(value, str) and not value.strip()):
                continue
            try:
                values[name] = _checked(name, value, values)
            except InvalidRequestError as error:
                problems.append(error.message)
        if problems:
            text = "; ".join(problems)
            raise InvalidRequestError(
                f"The connection is not valid: {text}{'' if text[-1] in '.?' else '.'}"
            )
        return cls(**values)


FIELDS: dict[str, Mapping[str, Any]] = {
    field.name: field.metadata for field in dataclasses.fields(Settings)
}
"""The table: the ``kind`` of each extra, its ``check``, and what the ``form`` says."""


def _checked(name: str, value: object, read: Mapping[str, Any]) -> Any:
    if name not in FIELDS:
        # Not at the top: only a typo needs it.
        import difflib

        near = difflib.get_close_matches(name, FIELDS, n=1)
        fix = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(FIELDS)}"
        raise InvalidRequestError(f"extra {name!r} is not supported; {fix}")
    field = FIELDS[name]
    is_document = "object" in field["kind"] or "array" in field["kind"]
    try:
        # The form and a URI can only store it as text.
        if is_document and isinstance(value, str) and value.strip()[:1] in ("{", "["):
            value = json.loads(value)
        return field["check"](value, read)
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"extra {name!r} starts like JSON but is not: {error}") from None
    except InvalidRequestError as error:
        raise InvalidRequestError(f"extra {name!r}: {error.message}") from None
    except ValueError as error:
        # Without the value, which may be a secret in the wrong field.
        examples = field["form"]["schema"].get("examples")
        such = f" such as {examples[0]}" if examples else ""
        raise InvalidRequestError(
            f"extra {name!r} is {kind_of(value)} that cannot be used; expected {error}{such}"
        ) from None


# The form ---------------------------------------------------------------------------------------------------


CONNECTION_FIELDS: dict[str, dict[str, Any]] = {
    name: field["form"] for name, field in FIELDS.items()
}
"""The form's extras. Airflow 3.2+ renders them without importing the hook, and suggests the ``examples`` while the user types."""

FIELD_BEHAVIOUR: dict[str, Any] = {
    "hidden-fields": ["schema", "login", "port", "extra"],
    "relabeling": {"host": "Base URL", "password": "API key"},
    "placeholders": {
        "host": "https://service.example/api",
        "password": "from the trigger section of the workflow's builder page",
    },
}
"""How the form shows the fields that every connection has."""
