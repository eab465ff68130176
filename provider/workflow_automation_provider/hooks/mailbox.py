"""
A mailbox: one object of a store, which a run writes at its end, and which Airflow reads.

The run gets a presigned URL, which can write this object and nothing else. ``If-None-Match: *`` is
one of the signed headers, so the first end stays: a further one gets 412. In a folder of the local
file system, for tests and demos, the local service writes the file.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from workflow_automation_provider.exceptions import InvalidRequestError, NotSentError

_log = logging.getLogger(__name__)

MARGIN = timedelta(minutes=15)
"""How much longer than ``completion_timeout`` a URL can be used: sending the start takes time."""

_MAX_LIFETIME = timedelta(days=7)  # of Signature Version 4

# In one process, a client is used for so long: in a triggerer, a connection may change.
_CLIENT_SECONDS = 600

_CONFIG = {
    "signature_version": "s3v4",
    "connect_timeout": 10,
    "read_timeout": 20,
    "retries": {"max_attempts": 2},
    # Otherwise a checksum of the empty body would be a part of the URL.
    "request_checksum_calculation": "when_required",
}

SECRET_PARAMETERS = ("X-Amz-Signature", "X-Amz-Security-Token")
"""The parameters of a presigned URL that must not be shown."""

# The codes of an object that is not there: a HEAD has no body, and its status is all that is known.
# With any other, such as that of a missing bucket or of a key that is not valid, nothing is known.
_MISSING = ("NoSuchKey", "404")
_FORBIDDEN = ("AccessDenied", "403")


class Written(NamedTuple):
    """
    What a run has written.

    :param body: one byte more than was asked for, if there are more
    :param at: when, by the store's clock
    """

    body: bytes
    at: datetime


class Mailbox(Protocol):
    """One object of a store."""

    def upload_url(self, completion_timeout: timedelta) -> str:
        """
        Return a URL by which a run can write the object, once.

        :raises InvalidRequestError: if it could not be used for as long as the task waits
        :raises NotSentError: if the store cannot be asked
        """

    def exists(self) -> bool:
        """
        Return whether the object was written.

        :raises NotSentError: if the store cannot be asked
        """

    def read(self, limit: int) -> Written | None:
        """
        Return the object, None if it was not written.

        :param limit: how many bytes it may have
        :raises NotSentError: if the store cannot be asked
        """


def open_mailbox(url: str) -> Mailbox:
    """
    Return the mailbox with a URL.

    :param url: that of its folder, as :func:`~.client.setting_kinds.mailbox_folder` returns it, and
        the name of the object
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _FileMailbox(Path(unquote(parts.path)))
    conn_id, _, bucket = parts.netloc.rpartition("@")
    return _S3Mailbox(unquote(conn_id) or None, bucket, parts.path.lstrip("/"))


def secrets_of(upload_url: str) -> list[str]:
    """Return what must not be shown of a presigned URL."""
    parameters = parse_qs(urlsplit(upload_url).query)
    return [value for name in SECRET_PARAMETERS for value in parameters.get(name, [])]


# S3 -----------------------------------------------------------------------------------------------


class _S3Mailbox:
    def __init__(self, conn_id: str | None, bucket: str, key: str) -> None:
        self._conn_id = conn_id
        self._object = {"Bucket": bucket, "Key": key}

    def upload_url(self, completion_timeout: timedelta) -> str:
        lifetime = completion_timeout + MARGIN
        if lifetime > _MAX_LIFETIME:
            raise InvalidRequestError(
                f"completion_timeout is {completion_timeout}, and a presigned URL can be used for "
                f"7 days at most: with a mailbox, expected at most {_MAX_LIFETIME - MARGIN}."
            )

        with self._usable():
            session, client = _open(self._conn_id)
            credentials = session.get_credentials()

        self._check_lifetime(credentials, completion_timeout)
        # Before a run is started: a store that cannot be asked has no end for the task. If the
        # bucket is in another region, the client signs for that one from now on.
        self._read(client, 0)
        with self._usable(), _without_debug_lines():
            url: str = client.generate_presigned_url(
                "put_object",
                Params={**self._object, "IfNoneMatch": "*"},
                ExpiresIn=int(lifetime.total_seconds()),
            )

        return url

    def exists(self) -> bool:
        client = self._client()
        with _asked(self._object):
            client.head_object(**self._object)
            return True
        return False

    def read(self, limit: int) -> Written | None:
        return self._read(self._client(), limit)

    def _client(self) -> Any:
        """
        Return a client for the store.

        :raises NotSentError: if the connection, or its role, cannot be used
        """
        try:
            return _shared_client(self._conn_id)
        except Exception as error:
            raise _unavailable(_name_of(self._object), error) from error

    def _read(self, client: Any, limit: int) -> Written | None:
        with _asked(self._object):
            found = client.get_object(**self._object)
            with contextlib.closing(found["Body"]) as body:
                return Written(body.read(limit + 1), found["LastModified"])
        return None

    def _check_lifetime(self, credentials: Any, completion_timeout: timedelta) -> None:
        """
        Check that a URL that is signed now can be used until the task no longer waits.

        :raises InvalidRequestError: if there are no credentials, or they expire before that
        """
        name = "the environment"
        if self._conn_id:
            name = f"connection {self._conn_id}"
        if credentials is None:
            raise InvalidRequestError(
                f"The mailbox needs credentials to sign with: {name} has none."
            )

        # This renews credentials that are about to expire.
        if credentials.get_frozen_credentials().token is None:
            return

        why = "do not say when they expire"
        refresh_needed = getattr(credentials, "refresh_needed", None)
        if refresh_needed:
            seconds = int((completion_timeout + MARGIN).total_seconds())
            if not refresh_needed(refresh_in=seconds):
                return

            why = "expire before that"

        raise InvalidRequestError(
            f"The URL of a mailbox must be usable for completion_timeout ({completion_timeout}) "
            f"and {MARGIN}, but the temporary credentials of {name} {why}.",
            next_step=(
                "Name a connection in callback_base_url that signs with an access key of its own, "
                "or shorten completion_timeout."
            ),
        )

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """
        Have an error of the connection or of its credentials name the mailbox.

        :raises InvalidRequestError: in place of any other error
        """
        try:
            yield
        except InvalidRequestError:
            raise
        except Exception as error:
            raise InvalidRequestError(
                f"The mailbox in bucket {self._object['Bucket']} cannot be used: "
                f"{type(error).__name__}: {error}",
                next_step="Check the connection that callback_base_url names.",
            ) from error


def _open(conn_id: str | None) -> tuple[Any, Any]:
    """Return a session with the credentials of a connection, and a client for S3."""
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook
    from botocore.config import Config

    hook = S3Hook(aws_conn_id=conn_id)
    session = hook.get_session()
    config, own = Config(**_CONFIG), hook.conn_config.botocore_config
    client = session.client(
        "s3",
        endpoint_url=hook.conn_config.get_service_endpoint_url(service_name="s3"),
        config=own.merge(config) if own else config,
        verify=hook.verify,
    )
    return session, client


# botocore logs at DEBUG what it signs, and the signature.
_is_signing = ContextVar("is_signing", default=False)


def _is_of_others(_: logging.LogRecord) -> bool:
    """Return whether a log record is about what is signed for other code."""
    return not _is_signing.get()


@contextlib.contextmanager
def _without_debug_lines() -> Iterator[None]:
    """Sign a URL without a line in the log that shows its signature."""
    logging.getLogger("botocore.auth").addFilter(_is_of_others)  # again has no effect
    signing = _is_signing.set(True)
    try:
        yield
    finally:
        _is_signing.reset(signing)


_lock = threading.Lock()


def _shared_client(conn_id: str | None) -> Any:
    with _lock:
        return _client_of(conn_id, int(time.monotonic() // _CLIENT_SECONDS))


@functools.lru_cache(maxsize=16)
def _client_of(conn_id: str | None, _period: int) -> Any:
    return _open(conn_id)[1]


@contextlib.contextmanager
def _asked(what: dict[str, str]) -> Iterator[None]:
    """
    Ask for an object, and go on after the block if it is not there.

    :raises NotSentError: if the store cannot be asked
    """
    try:
        yield
    except Exception as error:
        code = _error_code(error)
        if code in _FORBIDDEN:
            _log_forbidden(what["Bucket"])
        if code in _FORBIDDEN or code in _MISSING:
            return
        raise _unavailable(_name_of(what), error) from error


def _name_of(what: dict[str, str]) -> str:
    return f"s3://{what['Bucket']}/{what['Key']}"


def _error_code(error: Exception) -> str:
    """Return the store's code of an error, empty if the store has not answered."""
    # A client with a role first asks for credentials, which may be denied as well.
    if getattr(error, "operation_name", "") not in ("HeadObject", "GetObject"):
        return ""
    response: dict[str, Any] = getattr(error, "response", {})
    return str(response.get("Error", {}).get("Code", ""))


@functools.cache
def _log_forbidden(bucket: str) -> None:
    """Log, once in a process, what a missing right looks like."""
    _log.warning(
        "The bucket %s answers 403 for a mailbox: without s3:ListBucket, so it does for one that "
        "was not written yet. If it goes on once the flow has ended, s3:GetObject is missing.",
        bucket,
    )


# A local folder -----------------------------------------------------------------------------------


class _FileMailbox:
    def __init__(self, path: Path) -> None:
        self._path = path

    def upload_url(self, completion_timeout: timedelta) -> str:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequestError(
                f"The folder of the mailbox cannot be made: {error}"
            ) from None
        return self._path.as_uri()

    def exists(self) -> bool:
        return self._path.is_file()

    def read(self, limit: int) -> Written | None:
        try:
            with self._path.open("rb") as file:
                body = file.read(limit + 1)

            written_at = self._path.stat().st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unavailable(self._path.as_uri(), error) from error

        return Written(body, datetime.fromtimestamp(written_at, UTC))


def _unavailable(url: str, error: Exception) -> NotSentError:
    return NotSentError(
        f"The mailbox {url} cannot be read: {type(error).__name__}: {error}",
        consequence="Nothing was sent in this try.",
    )
