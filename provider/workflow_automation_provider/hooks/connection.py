"""Make a client of an Airflow connection of type ``workflow_automation``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.exceptions import InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from workflow_automation_provider.client.settings import Settings


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


def client_for(connection: Connection, extra: Settings) -> FlowClient:
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
    return FlowClient(base_url(connection), api_key=connection.password, **vars(extra))
