"""
One table of the connection's extras, for the form, the checks, their errors and docs/connection.md.

Airflow reads the form in each of its processes, so this imports nothing that is slow.
"""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import date
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from workflow_automation_provider.client import setting_kinds
from workflow_automation_provider.client.file_format import DEFAULT_FILE_FORMAT, FileFormat
from workflow_automation_provider.client.setting_kinds import (
    CALLBACK_EXAMPLE,
    DIRECT,
    MAILBOX_EXAMPLE,
    SettingKind,
)
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.wording import kind_of

# The name of a header whose value is a secret has one of these.
_SECRET_NAME = re.compile("auth|cookie|credential|key|pass|pwd|secret|session|token", re.IGNORECASE)

# How a value begins that is a secret whatever the name of its header.
_CREDENTIALS = re.compile(r"\s*(bearer|basic)\s", re.IGNORECASE)


# The table ----------------------------------------------------------------------------------------


class Extra(NamedTuple):
    """
    An extra of the connection.

    :param kind: what it may hold
    :param form: its label, schema and description in the form
    """

    kind: SettingKind
    form: dict[str, Any]


def _extra(
    label: str,
    kind: SettingKind,
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
        setting_kinds.TEXT,
        "The workflow that the API key belongs to, so that uploads need not repeat it.",
    )
    timeout: float = _extra(
        "Timeout (seconds)",
        setting_kinds.SECONDS,
        "How long connecting, each send, and the whole response may take. Default: 60.",
        default=60.0,
    )
    key_expires_on: date | None = _extra(  # noqa: RUF009
        "Key expires on",
        setting_kinds.DATE,
        "The expiry date of the API key: tasks log a warning from 14 days before, and fail after "
        "it.",
    )
    file_format: FileFormat = _extra(  # noqa: RUF009
        "File format",
        setting_kinds.FILE_FORMAT,
        "How an uploaded file is written: a JSON object that maps field names to name, path, "
        "base64, data_url, content_type or size; or one of these values alone.",
        '{"name": "name", "content_type": "content_type", "content": "base64"}',
        "base64",
        "data_url",
        default=lambda: DEFAULT_FILE_FORMAT,
    )
    verify: bool = _extra(
        "Verify the certificate",
        setting_kinds.BOOLEAN,
        "Verify the service's TLS certificate. A path of certificates goes into CA bundle.",
        default=True,
    )
    ca_bundle: str | None = _extra(
        "CA bundle",
        setting_kinds.TEXT,
        "File or directory of PEM certificates to trust. Default: those of the environment, such "
        "as SSL_CERT_FILE and REQUESTS_CA_BUNDLE, else the usual ones.",
        "/etc/ssl/certs/internal-ca.pem",
    )
    client_cert: str | tuple[str, str] | None = _extra(
        "Client certificate",
        setting_kinds.CLIENT_CERT,
        'PEM file with certificate and key, or a JSON array of two files: ["cert.pem", "key.pem"].',
        '["/etc/ssl/client.pem", "/etc/ssl/client.key"]',
    )
    proxy: str | None = _extra(
        "Proxy",
        setting_kinds.PROXY,
        "URL of a proxy, or none for a direct connection. Default: the environment's proxies.",
        "http://proxy.example:3128",
        DIRECT,
        secret=True,
    )
    headers: dict[str, str] = _extra(  # noqa: RUF009
        "Extra headers",
        setting_kinds.HEADERS,
        "JSON object of header names and values to send with every request.",
        '{"X-Team": "data"}',
        secret=True,
        default=dict,
    )
    allow_http: bool = _extra(
        "Allow plain http",
        setting_kinds.BOOLEAN,
        "Allow base URLs without TLS: the API key or a callback's token can then be read in "
        "transit.",
        default=False,
    )
    callback_base_url: str | None = _extra(
        "Callback base URL",
        setting_kinds.URL,
        "For tasks that wait for the end of a run: URL of Airflow's API server as the service "
        "reaches it; or, where it cannot, a folder of an object store. Default: Airflow's option "
        "[api] base_url.",
        CALLBACK_EXAMPLE,
        MAILBOX_EXAMPLE,
    )
    busy_statuses: frozenset[int] = _extra(
        "Busy statuses",
        setting_kinds.STATUSES,
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
        written = _parse_extra(extra)
        unknown = [name for name in written if name not in FIELDS]
        values: dict[str, Any] = {}
        problems = []

        for name in [*FIELDS, *unknown]:
            value = written.get(name)
            if _is_empty(value):
                continue

            try:
                values[name] = _value(name, value)
            except InvalidRequestError as error:
                problems.append(error.message.removesuffix("."))

        if problems:
            raise InvalidRequestError(f"The connection is not valid: {'; '.join(problems)}.")

        return cls(**values)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _CREDENTIALS.match(value))


FIELDS: dict[str, Extra] = {
    field.name: field.metadata["extra"] for field in dataclasses.fields(Settings)
}
"""The table."""


def _parse_extra(extra: str | None) -> dict[str, Any]:
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


def _value(name: str, written: object) -> Any:
    """
    Return the value of an extra.

    :raises InvalidRequestError: if it cannot be used, without showing it: it may be a secret in the
        wrong field
    """
    if name not in FIELDS:
        raise InvalidRequestError(
            f"extra {name!r} is not supported; expected one of {', '.join(FIELDS)} (the API key "
            "goes into the field password, the base URL into the field host)"
        )

    kind, form = FIELDS[name]
    is_document = "object" in kind.json_type or "array" in kind.json_type
    try:
        # The form and a URI can only store it as text.
        if is_document and isinstance(written, str) and written.strip().startswith(("{", "[")):
            written = json.loads(written)
        return kind.read(written)
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
