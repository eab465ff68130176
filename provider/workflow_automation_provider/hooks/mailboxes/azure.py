"""Mailboxes in Azure Blob Storage."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from workflow_automation_provider.client.settings import Settings
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.hooks.mailboxes.store import (
    MAX_CLIENTS,
    MAX_CONNECTIONS,
    Written,
    asking,
    check_lifetime,
    client_of,
    create_by,
    is_busy,
)

_CLOCK_SKEW = timedelta(minutes=15)

# In which the URLs of a batch are signed with the same user delegation key.
_KEY_STEP = timedelta(minutes=10)

MAX_LIFETIME_BY_DELEGATION = timedelta(days=7) - _CLOCK_SKEW - _KEY_STEP
"""Of a URL that is signed with a user delegation key."""

_HOOK = "airflow.providers.microsoft.azure.hooks.wasb"

_LIMITS = {"connection_timeout": 10, "read_timeout": 20, "retry_total": 1}

_PUT_HEADERS = {"x-ms-blob-type": "BlockBlob"}

_IS_THERE = "UnauthorizedBlobOverwrite"

# With any other code of 404, such as that of a missing container, nothing is known of the blob.
_MISSING = "BlobNotFound"

# There is no range of bytes in nothing.
_IS_EMPTY = "InvalidRange"


class AzureStore:
    """A container."""

    rights = (
        "to read, create and list its blobs (Storage Blob Data Contributor) and, without an "
        "account key, to ask for a user delegation key (Storage Blob Delegator for the account)"
    )

    def __init__(self, conn_id: str | None, container: str) -> None:
        self._conn_id = conn_id
        self._container = container

    def sign(self, key: str, lifetime: timedelta) -> str:
        """Return the URL of a blob with a signature that can create it, and do nothing else."""
        with _asking():
            from azure.storage.blob import BlobSasPermissions, generate_blob_sas

            client = self._client()
            expiry = datetime.now(UTC) + lifetime
            query = generate_blob_sas(
                client.account_name,
                self._container,
                key,
                permission=BlobSasPermissions(create=True),
                expiry=expiry,
                **_signing_key(client, expiry, lifetime),
            )
            return f"{client.get_blob_client(self._container, key).url}?{query}"

    def create(self, key: str) -> bool:
        """Write one byte by a signed URL."""
        try:
            return self._put(key, _IS_THERE)
        except InvalidRequestError:
            # An emulator has one code for an overwrite and for a right that is missing.
            fresh = f"{key}-{secrets.token_hex(8)}"
            if self._put(fresh, _IS_THERE) and not self._put(fresh, 403):
                return False
            raise

    def _put(self, key: str, is_there: int | str) -> bool:
        url = self.sign(key, timedelta(minutes=5))
        # As the client reads it.
        settings = Settings(ca_bundle=os.environ.get("REQUESTS_CA_BUNDLE"))
        return create_by(url, _PUT_HEADERS, settings, is_there=is_there)

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of a folder's blobs, by a request for each five thousand."""
        prefix = f"{folder}/"
        with _asking():
            container = self._client().get_container_client(self._container)
            for name in container.list_blob_names(name_starts_with=prefix, **_LIMITS):
                yield name.removeprefix(prefix)

    def read(self, key: str, limit: int) -> Written | None:
        """Return a blob."""
        with _asking():
            blob = self._client().get_blob_client(self._container, key)
            try:
                found = blob.download_blob(0, limit + 1, **_LIMITS)
            except Exception as error:
                if _code(error) == _MISSING:
                    return None
                if _code(error) != _IS_EMPTY:
                    raise
                found = blob.download_blob(**_LIMITS)

            return Written(found.readall(), found.properties.last_modified)

    def _client(self) -> Any:
        return client_of(open_client, self._conn_id)


# Connections --------------------------------------------------------------------------------------


@functools.lru_cache(MAX_CLIENTS)
def open_client(conn_id: str | None, _period: float) -> Any:
    """
    Make a client for an account, once in a period.

    :raises AirflowNotFoundException: if there is no such connection
    """
    from airflow.providers.microsoft.azure.hooks.wasb import WasbHook
    from requests.adapters import HTTPAdapter

    client: Any = WasbHook(conn_id or WasbHook.default_conn_name).get_conn()
    transport = client._config.transport
    transport.open()
    transport.session.mount("https://", HTTPAdapter(pool_maxsize=MAX_CONNECTIONS))
    return client


def _signing_key(client: Any, expiry: datetime, lifetime: timedelta) -> dict[str, Any]:
    """
    Return what signs a URL: the key of the account, or one that its credential is given.

    :raises InvalidRequestError: if the connection has neither
    """
    credential = client.credential
    if hasattr(credential, "account_key"):
        return {"account_key": credential.account_key}
    if hasattr(credential, "get_token"):
        check_lifetime(lifetime, MAX_LIFETIME_BY_DELEGATION)
        until = math.ceil(expiry.timestamp() / _KEY_STEP.total_seconds()) * _KEY_STEP
        return {"user_delegation_key": _delegation_key(client, until)}

    raise InvalidRequestError(
        "its connection has no account key, client secret or managed identity to sign a URL with."
    )


@functools.lru_cache(MAX_CLIENTS)
def _delegation_key(client: Any, until: timedelta) -> Any:
    """
    Ask for a user delegation key.

    :param until: when it expires, since 1970
    """
    start = datetime.now(UTC) - _CLOCK_SKEW
    return client.get_user_delegation_key(start, datetime.fromtimestamp(0, UTC) + until, **_LIMITS)


# Errors -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    """
    Ask the store, without the lines at DEBUG that show signatures, tokens and keys.

    :raises InvalidRequestError: in place of any other error that stays so
    """
    with asking(_HOOK, ("azure.", "msal.", "urllib3."), _is_unusable, extra="azure"):
        from azure.core.exceptions import HttpResponseError

        try:
            yield
        except HttpResponseError as error:
            if not error.status_code:
                raise

            # The other lines may have the signature of a request.
            line = error.message.partition("\n")[0]
            text = f"{error.status_code} {_code(error)}: {line}"
            if is_busy(error.status_code, _code(error)):
                raise ConnectionError(text) from None
            raise InvalidRequestError(text) from None


def _is_unusable(error: Exception) -> bool:
    """Return whether an error is one of the connection's fields."""
    return isinstance(error, ValueError | TypeError)


def _code(error: Any) -> str:
    """Return the store's code of an error, else its type."""
    code = getattr(error, "error_code", None) or type(error).__name__
    return str(getattr(code, "value", code))
