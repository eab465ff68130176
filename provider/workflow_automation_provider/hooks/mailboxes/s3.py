"""Mailboxes in S3, or in a store with the same API."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from airflow.sdk.log import mask_secret

from workflow_automation_provider.client.files import read_exactly
from workflow_automation_provider.client.settings import Settings
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.hooks.mailboxes.store import (
    MAX_CLIENTS,
    MAX_CONNECTIONS,
    MAX_LIFETIME,
    SHORTER,
    Written,
    asking,
    check_lifetime,
    client_of,
    create_by,
    is_busy,
)

# Also for the request for a role.
_LIMITS = {"connect_timeout": 10, "read_timeout": 20, "retries": {"max_attempts": 2}}

_CONFIG = {
    "signature_version": "s3v4",
    # Otherwise a checksum of the empty body would be a part of the URL.
    "request_checksum_calculation": "when_required",
    "max_pool_connections": MAX_CONNECTIONS,
}

# By default, a URL is signed for the one host that new regions and new buckets do not answer at.
_REGIONAL = {"addressing_style": "virtual", "us_east_1_regional_endpoint": "regional"}

# It sends a request for any bucket on to the bucket's own.
_FIRST_REGION = "us-east-1"

# With any other code of 404, such as that of a missing bucket, nothing is known of the object.
_MISSING = "NoSuchKey"


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
        check_lifetime(lifetime, MAX_LIFETIME)
        with _asking():
            url: str = self._client_for(lifetime).generate_presigned_url(
                "put_object",
                Params={"Bucket": self._bucket, "Key": key, "IfNoneMatch": "*"},
                ExpiresIn=int(lifetime.total_seconds()),
            )

        return url

    def create(self, key: str) -> bool:
        """Write one byte by a presigned URL."""
        url = self.sign(key, timedelta(minutes=5))
        with _asking():  # a new client may ask for a role
            settings = _settings_of(self._opened(), url)

        return create_by(url, {"If-None-Match": "*"}, settings, is_there=412)

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of a folder's objects, by a request for each thousand."""
        prefix = f"{folder}/"
        with _asking():
            client = self._opened().client
            pages = client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                for found in page.get("Contents", ()):
                    yield found["Key"].removeprefix(prefix)

    def read(self, key: str, limit: int) -> Written | None:
        """Return an object."""
        with _asking():
            client = self._opened().client
            try:
                found = client.get_object(Bucket=self._bucket, Key=key)
            except Exception as error:
                if _code(error) == _MISSING:
                    return None
                raise

            with contextlib.closing(found["Body"]) as body:
                # One read does not notice a connection that breaks off.
                return Written(read_exactly(body, limit + 1), found["LastModified"])

    def _opened(self) -> _Opened:
        return client_of(open_client, self._conn_id, self._bucket)

    def _client_for(self, lifetime: timedelta) -> Any:
        """
        Return a client with credentials that can be used for some time.

        :raises InvalidRequestError: if they expire before that
        """
        seconds = int(lifetime.total_seconds())
        if not _last_for(self._opened().credentials, seconds):
            # A new client takes a role anew.
            open_client.cache_clear()

        opened = self._opened()
        if _last_for(opened.credentials, seconds):
            return opened.client

        raise InvalidRequestError(
            f"its URL must be usable for {lifetime}, but the temporary credentials of connection "
            f"{self._conn_id} expire before that, or do not say when.",
            next_step=SHORTER,
        )


# Connections --------------------------------------------------------------------------------------


class _Opened(NamedTuple):
    """
    A client, in the region of its bucket: it signs URLs for its own.

    :param verify: what its connection says of certificates
    """

    client: Any
    credentials: Any
    verify: bool | str | None


@functools.lru_cache(MAX_CLIENTS)
def open_client(conn_id: str | None, bucket: str, _period: float) -> _Opened:
    """
    Make a client for a bucket, once in a period.

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
        session.client, "s3", endpoint_url=endpoint, config=config, verify=wrapper.verify
    )
    client = make(region_name=session.region_name or _FIRST_REGION)
    region = _region_of(client, bucket)
    if region not in (None, client.meta.region_name):
        client = make(region_name=region)

    return _Opened(client, session.get_credentials(), wrapper.verify)


def _region_of(client: Any, bucket: str) -> Any:
    """Return the region of a bucket, None if its store does not say so."""
    from botocore.exceptions import ClientError

    try:
        response = client.head_bucket(Bucket=bucket)
    except ClientError as error:
        # What S3 refuses has the region as well. The next request has the reason in its body.
        if not _is_final(error):
            raise
        response = error.response

    return response["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")


def _last_for(credentials: Any, seconds: int) -> bool:
    """Return whether credentials can be used for some time; those that expire soon are renewed."""
    token = credentials.get_frozen_credentials().token
    if token is None:
        return True

    mask_secret(token)
    refresh_needed = getattr(credentials, "refresh_needed", None)
    return refresh_needed is not None and not refresh_needed(refresh_in=seconds)


def _settings_of(opened: _Opened, url: str) -> Settings:
    """Return how to reach a store without its client."""
    proxies = opened.client.meta.config.proxies or {}
    ca_bundle = opened.verify if isinstance(opened.verify, str) else None
    return Settings(
        verify=opened.verify is not False,
        ca_bundle=ca_bundle or os.environ.get("AWS_CA_BUNDLE"),
        proxy=proxies.get(url.partition(":")[0]),
    )


# Errors -------------------------------------------------------------------------------------------


def _code(error: Exception) -> str:
    """Return the store's code of an error, empty if the store has not answered."""
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def _is_final(error: Exception) -> bool:
    """Return whether an error stays: not one of the network, or of a service that is busy."""
    from botocore import exceptions as of_botocore

    if isinstance(error, of_botocore.ClientError):
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        return not is_busy(status, _code(error))

    return isinstance(error, of_botocore.ParamValidationError | ValueError | TypeError)


_asking = functools.partial(asking, "boto3", ("botocore.",), _is_final, extra="amazon")
