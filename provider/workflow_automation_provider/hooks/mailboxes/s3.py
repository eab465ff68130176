"""Mailboxes in S3, or in a store with the same API."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow.sdk.log import mask_secret

from workflow_automation_provider.client.quiet import quiet
from workflow_automation_provider.client.settings import Settings
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.hooks.mailboxes.store import Written, create_by, is_busy

MAX_LIFETIME = timedelta(days=7)
"""Of a URL with Signature Version 4."""

# After that, a connection is read again: in a triggerer, it may change.
_CLIENT_SECONDS = 600

# Also for the request for a role.
_LIMITS = {"connect_timeout": 10, "read_timeout": 20, "retries": {"max_attempts": 2}}

_CONFIG = {
    "signature_version": "s3v4",
    # Otherwise a checksum of the empty body would be a part of the URL.
    "request_checksum_calculation": "when_required",
}

# By default, a URL is signed for the one host that new regions and new buckets do not answer at.
_REGIONAL = {"addressing_style": "virtual", "us_east_1_regional_endpoint": "regional"}

# It sends a request for any bucket on to the bucket's own.
_FIRST_REGION = "us-east-1"

# With any other code of 404, such as that of a missing bucket, nothing is known of the object.
_MISSING = "NoSuchKey"

# An empty object has no first byte.
_EMPTY = "InvalidRange"


class S3Store:
    """A bucket."""

    rights = (
        "s3:ListBucket, s3:GetObject and s3:PutObject for the folder, and where it is encrypted "
        "with KMS, kms:Decrypt and kms:GenerateDataKey"
    )

    def __init__(self, conn_id: str | None, bucket: str) -> None:
        self._conn_id = conn_id
        self._bucket = bucket

    def sign(self, key: str, lifetime: timedelta) -> str:
        """Return a presigned URL: ``If-None-Match: *`` is one of the signed headers."""
        if lifetime > MAX_LIFETIME:
            raise InvalidRequestError(
                f"a presigned URL can be used for {MAX_LIFETIME.days} days at most, and this one "
                f"would have to be for {lifetime}.",
                next_step="Shorten completion_timeout.",
            )

        with _asking():
            opened = self._opened_for(lifetime)
            if self._bucket not in opened.signers:
                self._exists(opened, key)
                opened.signers[self._bucket] = opened.client_of_last_region()

            url: str = opened.signers[self._bucket].generate_presigned_url(
                "put_object",
                Params={"Bucket": self._bucket, "Key": key, "IfNoneMatch": "*"},
                ExpiresIn=int(lifetime.total_seconds()),
            )

        return url

    def create(self, key: str) -> bool:
        """Write one byte by a presigned URL."""
        url = self.sign(key, timedelta(minutes=5))
        settings = _connection(self._conn_id).opened().settings(url)
        return create_by(url, {"If-None-Match": "*"}, settings, is_there=(412,))

    def exists(self, key: str) -> bool:
        """Return whether an object is there: a HEAD would not say whether it can be decrypted."""
        with _asking():
            return self._exists(_connection(self._conn_id).opened(), key)

    def read(self, key: str, limit: int) -> Written | None:
        """Return an object."""
        with _asking():
            client = _connection(self._conn_id).opened().client
            try:
                found = client.get_object(Bucket=self._bucket, Key=key)
            except Exception as error:
                if _code(error) == _MISSING:
                    return None
                raise

            with contextlib.closing(found["Body"]) as body:
                return Written(body.read(limit + 1), found["LastModified"])

    def _exists(self, opened: _Opened, key: str) -> bool:
        try:
            found = opened.client.get_object(Bucket=self._bucket, Key=key, Range="bytes=0-0")
        except Exception as error:
            code = _code(error)
            if code not in (_MISSING, _EMPTY):
                raise
            return code == _EMPTY

        found["Body"].close()
        return True

    def _opened_for(self, lifetime: timedelta) -> _Opened:
        """
        Return a client with credentials that can be used for some time.

        :raises InvalidRequestError: if they expire before that
        """
        name = f"connection {self._conn_id}" if self._conn_id else "the environment"
        for is_anew in (False, True):
            opened = _connection(self._conn_id).opened(is_anew=is_anew)
            if opened.credentials is None:
                # They may come from a service that does not answer just now.
                raise ConnectionError(f"{name} has no credentials to sign with")

            # This renews credentials that are about to expire.
            token = opened.credentials.get_frozen_credentials().token
            if token is None:
                return opened

            mask_secret(token)
            refresh_needed = getattr(opened.credentials, "refresh_needed", None)
            if refresh_needed and not refresh_needed(refresh_in=int(lifetime.total_seconds())):
                return opened

        why = "expire before that" if refresh_needed else "do not say when they expire"
        raise InvalidRequestError(
            f"its URL must be usable for {lifetime}, but the temporary credentials of {name} "
            f"{why}.",
            next_step=(
                "Name a connection in callback_base_url that signs with an access key of its own, "
                "or shorten completion_timeout."
            ),
        )


# Connections --------------------------------------------------------------------------------------


@dataclass
class _Opened:
    """
    A client of a connection.

    :param make: makes one
    :param verify: what it says of certificates
    :param signers: clients of the regions of buckets that were asked
    """

    make: Callable[..., Any]
    credentials: Any
    verify: bool | str | None
    since: float = field(default_factory=time.monotonic)
    signers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = self.make()
        self.client.meta.events.register("before-send.s3", _note_region)

    def client_of_last_region(self) -> Any:
        """
        Return a client of the region that has answered this thread.

        A client follows a bucket to its region, but signs URLs for its own.
        """
        if _last.region == self.client.meta.region_name:
            return self.client
        return self.make(region_name=_last.region)

    def settings(self, url: str) -> Settings:
        """Return how to reach the store without the client."""
        proxies = self.client.meta.config.proxies or {}
        ca_bundle = self.verify if isinstance(self.verify, str) else None
        return Settings(
            verify=self.verify is not False,
            ca_bundle=ca_bundle or os.environ.get("AWS_CA_BUNDLE"),
            proxy=proxies.get(url.partition(":")[0]),
        )


class _Connection:
    """One client for each connection, which is replaced from time to time."""

    def __init__(self, conn_id: str | None) -> None:
        self._conn_id = conn_id
        self._opened: _Opened | None = None
        self._lock = threading.Lock()

    def opened(self, *, is_anew: bool = False) -> _Opened:
        """Return the client, or a new one."""
        with self._lock:
            last = self._opened
            if last and not is_anew and time.monotonic() - last.since < _CLIENT_SECONDS:
                return last

            self._opened = _open(self._conn_id)
            if last:
                last.client.close()
            return self._opened


_connection = functools.cache(_Connection)


def _open(conn_id: str | None) -> _Opened:
    """
    Make a client for a connection.

    :raises AirflowNotFoundException: if there is no such connection: the amazon provider would take
        the credentials of the environment
    """
    from airflow.providers.amazon.aws.hooks.base_aws import SessionFactory
    from airflow.providers.amazon.aws.utils.connection_wrapper import AwsConnectionWrapper
    from airflow.sdk import BaseHook
    from botocore.config import Config

    connection = BaseHook.get_connection(conn_id) if conn_id else None
    wrapper = AwsConnectionWrapper(connection)
    own = wrapper.botocore_config or Config()
    limited = own.merge(Config(**_LIMITS))
    endpoint = wrapper.get_service_endpoint_url("s3")
    # In a store of another kind, a bucket has no host of its own.
    hosts = {} if endpoint else _REGIONAL
    config = limited.merge(Config(**_CONFIG, s3={**hosts, **(own.s3 or {})}))

    session = SessionFactory(conn=wrapper, config=limited).create_session()
    make = functools.partial(
        session.client,
        "s3",
        region_name=session.region_name or _FIRST_REGION,
        endpoint_url=endpoint,
        config=config,
        verify=wrapper.verify,
    )
    return _Opened(make, session.get_credentials(), wrapper.verify)


_last = threading.local()

# What a request was signed for.
_SCOPE = re.compile(r"/\d{8}/([^/]+)/s3/aws4_request")


def _note_region(request: Any, **_: Any) -> None:
    found = _SCOPE.search(str(request.headers["Authorization"]))
    _last.region = found and found[1]


# Errors -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    """
    Ask the store, without the lines at DEBUG that show signatures, tokens and keys.

    :raises InvalidRequestError: in place of any other error that stays so
    """
    try:
        import boto3  # noqa: F401 - which makes the loggers
    except ImportError:
        raise InvalidRequestError(
            "it needs the extra amazon of this package.",
            next_step="pip install 'airflow-provider-workflow-automation[amazon]'",
        ) from None

    names = [name for name in logging.root.manager.loggerDict if name.startswith("botocore.")]
    with quiet(names):
        try:
            yield
        except Exception as error:
            if isinstance(error, InvalidRequestError) or not _is_final(error):
                raise
            raise InvalidRequestError(f"{type(error).__name__}: {error}") from error


def _code(error: Exception) -> str:
    """Return the store's code of an error, empty if the store has not answered."""
    response: dict[str, Any] = getattr(error, "response", {})
    return str(response.get("Error", {}).get("Code", ""))


def _is_final(error: Exception) -> bool:
    """Return whether an error stays: not one of the network, or of a service that is busy."""
    from botocore import exceptions as of_botocore

    if isinstance(error, of_botocore.ClientError):
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        return not is_busy(status, _code(error))

    may_pass = (
        of_botocore.ConnectionError,
        of_botocore.HTTPClientError,
        of_botocore.CredentialRetrievalError,
        of_botocore.MetadataRetrievalError,
        of_botocore.NoCredentialsError,
    )
    if isinstance(error, may_pass):
        return False

    return isinstance(error, of_botocore.BotoCoreError | ValueError | TypeError)
