"""
A mailbox: one object of a store, which a run writes at its end, and which Airflow reads.

The run gets a presigned URL, which can write this object and nothing else, and only if it is not
there: the first end stays.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from workflow_automation_provider.client.redaction import SECRET_PARAMETERS
from workflow_automation_provider.client.setting_kinds import MAILBOX_EXAMPLE
from workflow_automation_provider.client.urls import is_loopback
from workflow_automation_provider.exceptions import InvalidRequestError, NotSentError
from workflow_automation_provider.hooks.mailboxes.azure import AzureStore
from workflow_automation_provider.hooks.mailboxes.folder import FolderStore
from workflow_automation_provider.hooks.mailboxes.gcs import GoogleStore
from workflow_automation_provider.hooks.mailboxes.s3 import S3Store

if TYPE_CHECKING:
    from workflow_automation_provider.hooks.mailboxes.store import Store, Written

_PROBE = ".mailbox"
"""The object of a folder that shows whether a run can write there."""

_INDEXED = re.compile(r"(0|[1-9]\d{0,8})\.json", re.ASCII)


_STORES: dict[str, Callable[[str | None, str], Store]] = {
    "s3": S3Store,
    "abfs": AzureStore,
    "gs": GoogleStore,
}
"""By the scheme of their URLs."""


class Mailbox:
    """
    One object of a store.

    :param url: that of its folder, as :func:`~.client.setting_kinds.mailbox_folder` returns it, and
        the name of the object
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._store, self._key = _place_of(url)

    def check(self, lifetime: timedelta, service_url: str, *, allow_http: bool = False) -> None:
        """
        Check, before a run is started, that it can write its end, and Airflow can read it.

        An object of the folder is written as the run will write its own, and is read.

        :param lifetime: how long the run's URL must be usable
        :param service_url: base URL of the service
        :param allow_http: whether a URL without TLS may be given to the service
        :raises InvalidRequestError: if the store refuses, or the URL could not be used
        :raises NotSentError: if the store does not answer, or is busy
        """
        if self.url.startswith("file:") and not is_loopback(_host_of(service_url)):
            raise InvalidRequestError(
                "The connection's callback_base_url is a folder of this machine, to which the "
                "service cannot write: it is for the local service alone.",
                next_step=f"Set it to a folder of an object store, such as {MAILBOX_EXAMPLE}.",
            )

        folder, separator, _ = self._key.rpartition("/")
        probe = f"{folder}{separator}{_PROBE}"
        with self._checking():
            self._check_address(self._store.sign(self._key, lifetime), allow_http)
            is_new = self._store.create(probe)
            if is_new and self._store.create(probe):
                raise InvalidRequestError(
                    "its store ignores the condition: a run could write over its own end."
                )
            if self._store.read(probe, 0) is None:
                raise FileNotFoundError(f"{probe} was written, and cannot be found")
            # Not there yet: of that, a store says so only to those who may list.
            self._store.read(self._key, 0)

    def sign(self, lifetime: timedelta) -> str:
        """
        Return a URL by which a run can write the object, once.

        :param lifetime: how long it must be usable
        :raises InvalidRequestError: if it could not be used for so long
        :raises NotSentError: if the credentials cannot be had
        """
        with self._checking():
            return self._store.sign(self._key, lifetime)

    def exists(self) -> bool:
        """
        Return whether the object was written.

        :raises NotSentError: if the store cannot be asked
        """
        # As the end will be read: less would not say whether it can be decrypted.
        return self.read(0) is not None

    def read(self, limit: int) -> Written | None:
        """
        Return the object, None if it was not written.

        :param limit: how many bytes it may have
        :raises NotSentError: if the store cannot be asked
        """
        with self._looking():
            return self._store.read(self._key, limit)

    def indexes(self) -> set[int]:
        """
        Return which objects of the form ``{index}.json`` are in it, if it is a folder.

        :raises NotSentError: if the store cannot be asked
        """
        with self._looking():
            matches = map(_INDEXED.fullmatch, self._store.names(self._key))
            return {int(match[1]) for match in matches if match}

    @contextlib.contextmanager
    def _checking(self) -> Iterator[None]:
        folder = self.url.rpartition("/")[0]
        try:
            yield
        except InvalidRequestError as error:
            rights = (
                "Check the folder and the connection in callback_base_url, which must be allowed "
                f"{self._store.rights}."
            )
            raise InvalidRequestError(
                f"No run can write to {folder}: {error.message}",
                next_step=error.next_step or rights,
            ) from error
        except Exception as error:
            raise NotSentError(
                f"No run can write to {folder} now: {_why(error)}",
                consequence="Nothing was sent in this try.",
            ) from error

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise NotSentError(
                f"The mailbox {self.url} cannot be read: {_why(error)}",
                consequence="Nothing was sent in this try.",
            ) from error

    def _check_address(self, url: str, allow_http: bool) -> None:
        """
        Check that a service may be given a URL.

        :raises InvalidRequestError: if it has no TLS
        """
        scheme, host = urlsplit(url).scheme, _host_of(url)
        if scheme == "http" and not is_loopback(host) and not allow_http:
            raise InvalidRequestError(
                f"its endpoint {host} has no TLS: what the run writes could be read in transit.",
                next_step=(
                    "Use https for the store in the connection in callback_base_url, or set "
                    "allow_http of the service's connection."
                ),
            )


def secrets_of(upload_url: str) -> list[str]:
    """Return what must not be shown of a presigned URL, as it is there and decoded."""
    pairs = [pair.partition("=") for pair in urlsplit(upload_url).query.split("&")]
    values = [value for name, _, value in pairs if name in SECRET_PARAMETERS]
    return [*dict.fromkeys([*values, *map(unquote, values)])]


def _place_of(url: str) -> tuple[Store, str]:
    """Return the store of an object, and its key there."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return FolderStore(), unquote(parts.path)

    conn_id, _, bucket = parts.netloc.rpartition("@")
    store = _STORES[parts.scheme](unquote(conn_id) or None, bucket)
    return store, parts.path.removeprefix("/")


def _host_of(url: str) -> str:
    """Return the host of a URL, empty for a file."""
    return urlsplit(url).hostname or ""


def _why(error: Exception) -> str:
    """Return what a store has raised, in a line."""
    if isinstance(error, InvalidRequestError):
        return error.message
    return f"{type(error).__name__}: {error}"
