"""Read an Airflow connection of type ``workflow_automation``, strictly: a typo is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)

from workflow_automation_provider.client.checks import MAX_TIMEOUT
from workflow_automation_provider.client.config import DEFAULT_TIMEOUT, checked_busy_statuses, secrets_in
from workflow_automation_provider.client.files import DEFAULT_FILE_FORMAT, FileFormat, check_file_format
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.client.protocol import BaseUrl, parse_base_url
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.get_provider_info import CONNECTION_FIELDS

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection
    from pydantic_core import ErrorDetails


def _from_json_text(value: object) -> object:
    """Parse a value that the form and a URI can only store as JSON text."""
    if isinstance(value, str) and value.strip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"starts like JSON but is not: {error}") from None
    return value


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _date(value: object) -> date:
    try:
        return date.fromisoformat(value.strip() if isinstance(value, str) else "")
    except ValueError:
        raise ValueError("expected a date such as 2027-01-31") from None


def _statuses(value: object) -> frozenset[int]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    statuses: list[Any] = value if isinstance(value, list) else [value]
    return checked_busy_statuses(
        int(one) if isinstance(one, str) and one.isascii() and one.isdecimal() and len(one) == 3 else one
        for one in statuses
    )


CALLBACK_BASE_URL = BaseUrl(
    "the URL",
    example="https://airflow.example",
    exposed="the token of a callback",
    login="A callback needs only its token.",
)
"""The base URL of Airflow's API server, in the words of errors."""


def _callback_base_url(value: str, info: ValidationInfo) -> str:
    # Missing only if it is invalid, which has an error of its own.
    allow_http = info.data.get("allow_http", True)
    return parse_base_url(value, allow_http=allow_http, kind=CALLBACK_BASE_URL)


# The last of a field's validators, because 'before' validators run in reverse order.
_Json = BeforeValidator(_from_json_text)


class ConnectionExtra(BaseModel):
    """The connection's extra, with one attribute for each field of the form."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        str_strip_whitespace=True,
        coerce_numbers_to_str=True,
        hide_input_in_errors=True,
    )

    flow_id: str | None = None
    timeout: Annotated[
        float, Field(gt=0, le=MAX_TIMEOUT, allow_inf_nan=False), BeforeValidator(_no_boolean)
    ] = DEFAULT_TIMEOUT
    key_expires_on: Annotated[date | None, BeforeValidator(_date)] = None
    file_format: Annotated[FileFormat, BeforeValidator(check_file_format), _Json] = DEFAULT_FILE_FORMAT
    verify: bool = True
    ca_bundle: str | None = None
    client_cert: Annotated[str | tuple[str, str] | None, _Json] = None
    proxy: Annotated[str | None, Field(repr=False)] = None
    headers: Annotated[dict[str, str], _Json] = Field(default_factory=dict, repr=False)
    allow_http: bool = False
    callback_base_url: Annotated[str | None, AfterValidator(_callback_base_url)] = None
    busy_statuses: Annotated[frozenset[int], BeforeValidator(_statuses), _Json] = frozenset()

    def secrets(self) -> list[str]:
        """Return the values that are secret."""
        return secrets_in(self.headers, self.proxy)

    @classmethod
    def read(cls, extra: str | None) -> ConnectionExtra:
        """
        Read the extra of a connection.

        :param extra: JSON text; a field that is null or empty counts as not set
        :raises InvalidRequestError: if a field is invalid or unknown, naming each
        """
        try:
            fields = json.loads(extra) if extra else {}
        except ValueError as error:
            raise InvalidRequestError(f"The connection's extra is not JSON ({error}).") from None
        if not isinstance(fields, dict):
            raise InvalidRequestError(
                f"The connection's extra is {_JSON_KINDS[type(fields).__name__]}: expected a JSON object."
            )
        try:
            return cls.model_validate({name: v for name, v in fields.items() if not _is_unset(v)})
        except ValidationError as error:
            # Without duplicates: a field of a union type fails once for each member.
            problems = dict.fromkeys(
                _problem(e["loc"], e["type"], _message(e), fields) for e in error.errors()
            )
            text = "; ".join(problems)
            raise InvalidRequestError(
                f"The connection is not valid: {text}{'' if text[-1] in '.?' else '.'}"
            ) from None


# Instead of pydantic's messages, which refer to Python types.
_EXPECTED = {
    "flow_id": "text",
    "timeout": f"seconds, more than 0 and at most {MAX_TIMEOUT} (a week)",
    "key_expires_on": "a date such as 2027-01-31",
    "verify": "true or false",
    "ca_bundle": "the path of a file or directory",
    "client_cert": '"both.pem" or ["cert.pem", "key.pem"]',
    "proxy": "a URL such as http://proxy.example:3128",
    "headers": 'an object of header names and values such as {"X-Team": "data"}',
    "allow_http": "true or false",
    "callback_base_url": f"a URL such as {CALLBACK_BASE_URL.example}",
    "busy_statuses": 'statuses from 400 to 599 such as "423,520" or [423, 520]',
}
_JSON_KINDS = {
    "str": "a string",
    "int": "a number",
    "float": "a number",
    "bool": "a boolean",
    "list": "an array",
}


def _is_unset(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _message(error: ErrorDetails) -> str:
    cause = error.get("ctx", {}).get("error")
    # Without the other lines of an error of our own.
    return cause.message if isinstance(cause, InvalidRequestError) else error["msg"]


def _problem(loc: tuple[int | str, ...], kind: str, message: str, fields: Mapping[str, Any]) -> str:
    name = str(loc[0])
    if kind == "extra_forbidden":
        # Not at the top: only a typo needs it.
        import difflib

        near = difflib.get_close_matches(name, CONNECTION_FIELDS, n=1)
        fix = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(CONNECTION_FIELDS)}"
        return f"extra {name!r} is not supported; {fix}"
    if kind == "value_error" and name not in ("timeout", "key_expires_on", "busy_statuses"):
        return f"extra {name!r}: {message.removeprefix('Value error, ')}"
    # Without the value, which may be a secret in the wrong field.
    given = _JSON_KINDS.get(type(fields[name]).__name__, "an object")
    return f"extra {name!r} is {given} that cannot be used; expected {_EXPECTED.get(name, message)}"


def base_url(connection: Connection) -> str:
    """
    Return the service's base URL.

    In JSON and in the form, the host is the whole base URL. A URI splits it into host, port and schema
    (``workflow-automation://:KEY@service.example:8443/api``), which are joined again.

    :raises InvalidRequestError: if they contradict each other
    """
    address = (connection.host or "").strip()
    scheme, separator, rest = address.rpartition("://")
    host, slash, path = rest.partition("/")
    if host.count(":") > 1 and "[" not in host:
        host = f"[{host}]"  # an IPv6 address, without its brackets if it was parsed from a URI
    port = host.rpartition("]")[2].partition(":")[2]
    # Anything but a number is not a port, but may be a password: the client rejects it without quoting it.
    if connection.port and port.isdecimal() and port != str(connection.port):
        raise InvalidRequestError(
            f"The base URL (host) has port {port}, and the connection's port is {connection.port}: leave one out."
        )
    if connection.schema and connection.schema.lower() in ("http", "https"):
        raise InvalidRequestError(
            f"The schema is {connection.schema!r}: begin the base URL (host) with {connection.schema.lower()}:// instead."
        )
    if connection.port and not port:
        host = f"{host}:{connection.port}"
    address = f"{scheme}{separator}{host}{slash}{path}"
    if connection.schema:
        address = f"{address.rstrip('/')}/{connection.schema.lstrip('/')}"
    return address


def client_for(connection: Connection, extra: ConnectionExtra) -> FlowClient:
    """
    Return a client for a connection.

    :raises InvalidRequestError: if a setting is invalid, naming the field
    """
    if connection.login:
        raise InvalidRequestError(
            "The connection's login is set, but not used: put the API key in the password field "
            "(in a URI after a colon: workflow-automation://:KEY@…)."
        )
    if not connection.host:
        raise InvalidRequestError(
            "The connection's base URL (host) is empty: expected the service's URL, such as "
            "https://service.example/api (a URI begins with workflow-automation://, with a hyphen)."
        )
    key = (connection.password or "").strip()
    if len(key) >= 8 and key in (extra.flow_id or ""):
        raise InvalidRequestError(
            "The connection's flow_id contains the API key, and would show it in logs: give the workflow's identifier."
        )
    return FlowClient(
        base_url(connection),
        api_key=connection.password,
        **extra.model_dump(exclude={"callback_base_url", "flow_id", "key_expires_on"}),
    )
