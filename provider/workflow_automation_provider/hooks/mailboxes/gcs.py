"""Mailboxes in Google Cloud Storage."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from workflow_automation_provider.client.settings import Settings
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.hooks.mailboxes.store import (
    MAX_CLIENTS,
    MAX_CONNECTIONS,
    MAX_LIFETIME,
    Written,
    asking,
    check_lifetime,
    client_of,
    create_by,
    is_busy,
)

MAX_LIFETIME_BY_IAM = timedelta(hours=12)
"""After which Google may replace the key with which IAM has signed."""

_HOOK = "airflow.providers.google.common.hooks.base_google"

_CONDITION = {"x-goog-if-generation-match": "0"}

# To connect, and to wait for each part of a response.
_TIMEOUT = (10, 20)

# In which a request that fails may be repeated.
_RETRY_SECONDS = 20

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)

_NAMES = "items(name),nextPageToken"

# What Google's services answer if they refuse to give or to use credentials.
_REFUSED = re.compile("invalid_|unauthorized_client|PERMISSION_DENIED|UNAUTHENTICATED|NOT_FOUND")


class GoogleStore:
    """A bucket."""

    rights = (
        "storage.objects.create, storage.objects.get and storage.objects.list for the bucket, and "
        "where it has no key file, iam.serviceAccounts.signBlob for its service account"
    )

    def __init__(self, conn_id: str | None, bucket: str) -> None:
        self._conn_id = conn_id
        self._bucket = bucket

    def sign(self, key: str, lifetime: timedelta) -> str:
        """Return a signed URL: ``x-goog-if-generation-match: 0`` is one of the signed headers."""
        with _asking():
            opened = self._opened()
            check_lifetime(lifetime, opened.max_lifetime)
            url: str = opened.bucket.blob(key).generate_signed_url(
                version="v4",
                method="PUT",
                expiration=lifetime,
                headers=dict(_CONDITION),
                credentials=opened.signing,
            )

        return url

    def create(self, key: str) -> bool:
        """Write one byte by a signed URL."""
        url = self.sign(key, timedelta(minutes=5))
        # As the client of the library reads it.
        settings = Settings(ca_bundle=os.environ.get("REQUESTS_CA_BUNDLE"))
        return create_by(url, _CONDITION, settings, is_there=412)

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of a folder's objects, by a request for each thousand."""
        prefix = f"{folder}/"
        with _asking():
            bucket = self._opened().bucket
            for found in bucket.list_blobs(prefix=prefix, fields=_NAMES, **_limits()):
                yield found.name.removeprefix(prefix)

    def read(self, key: str, limit: int) -> Written | None:
        """Return an object."""
        with _asking():
            found = self._opened().bucket.get_blob(key, **_limits())
            if found is None:
                return None

            # There is no range of bytes in nothing.
            body = found.download_as_bytes(end=limit, **_limits()) if found.size else b""
            return Written(body, found.time_created)

    def _opened(self) -> _Opened:
        return client_of(open_client, self._conn_id, self._bucket)


# Connections --------------------------------------------------------------------------------------


class _Opened(NamedTuple):
    """
    A bucket that is there.

    :param signing: credentials that can sign
    :param max_lifetime: how long what they sign can be used
    """

    bucket: Any
    signing: Any
    max_lifetime: timedelta


@functools.lru_cache(MAX_CLIENTS)
def open_client(conn_id: str | None, name: str, _period: float) -> _Opened:
    """
    Make a client for a bucket, once in a period.

    :raises AirflowNotFoundException: if there is no such connection
    """
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud.storage import Client
    from google.oauth2.service_account import Credentials
    from requests.adapters import HTTPAdapter

    credentials = _credentials_of(conn_id)
    session = AuthorizedSession(credentials)
    session.mount("https://", HTTPAdapter(pool_maxsize=MAX_CONNECTIONS))
    client = Client(project=None, credentials=credentials, _http=session)
    # It would ask for the bucket in a thread of its own, for traces, and again for each object that
    # is missing. What that thread logs cannot be kept out of the log.
    client._bucket_metadata_cache = None
    bucket = client.bucket(name)

    # Later, a bucket that is missing looks like an object that is missing. The email of credentials
    # is known after their first use.
    next(iter(bucket.list_blobs(max_results=1, fields=_NAMES, **_limits())), None)

    has_key = isinstance(credentials, Credentials)
    return _Opened(bucket, _signing(credentials), MAX_LIFETIME if has_key else MAX_LIFETIME_BY_IAM)


def _credentials_of(conn_id: str | None) -> Any:
    """Return the credentials of a connection, or those of the environment."""
    import google.auth

    if conn_id is None:
        return google.auth.default(scopes=_SCOPES)[0]

    from airflow.providers.google.common.hooks.base_google import GoogleBaseHook

    return GoogleBaseHook(conn_id).get_credentials()


def _signing(credentials: Any) -> Any:
    """
    Return credentials that can sign: themselves, or those of their service account by IAM.

    :raises InvalidRequestError: if they have none
    """
    from google.auth.credentials import Signing
    from google.auth.iam import Signer
    from google.auth.transport.requests import Request
    from google.oauth2.service_account import Credentials

    if isinstance(credentials, Signing):
        return credentials

    email = getattr(credentials, "service_account_email", None)
    if not email:
        raise InvalidRequestError(
            f"its connection has credentials that cannot sign ({type(credentials).__name__})."
        )

    request = functools.partial(Request(), timeout=_TIMEOUT[1])
    return Credentials(Signer(request, credentials, email), email, token_uri="")


def _limits() -> dict[str, Any]:
    """Return how long a request may take."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return {"timeout": _TIMEOUT, "retry": DEFAULT_RETRY.with_timeout(_RETRY_SECONDS)}


# Errors -------------------------------------------------------------------------------------------


def _is_final(error: Exception) -> bool:
    """Return whether an error stays: not one of the network, or of a service that is busy."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError

    if isinstance(error, GoogleAPICallError):
        return not is_busy(error.code or 500, "")
    if isinstance(error, GoogleAuthError) and _REFUSED.search(str(error)):
        return True

    return isinstance(error, ValueError | TypeError | KeyError)


_asking = functools.partial(asking, _HOOK, ("google.", "urllib3."), _is_final, extra="google")
