"""The file system of a URL, and the key in it."""

from __future__ import annotations

import functools
import re
from typing import Any

from airflow.sdk import BaseHook, ObjectStoragePath
from airflow.sdk.io import has_fs

from workflow_automation_provider.client.files import reason
from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.exceptions import InvalidRequestError

# For a connection that does not exist, Airflow's amazon provider takes the worker's credentials.
_S3_SCHEMES = ("s3", "s3a", "s3n")

# How a URL names a version of an object. The current one would be read or replaced.
_VERSION = re.compile(r"\?versionid=", re.IGNORECASE)


def extra_missing(name: str, extra: str) -> InvalidRequestError:
    """
    Return the error for a URL of a store without the libraries that it needs.

    :param name: what the URL is called in errors
    :param extra: that of this package with the libraries
    """
    return InvalidRequestError(
        f"{name} is a URL that needs the extra {extra}: it is not installed.",
        next_step=f"pip install 'airflow-provider-workflow-automation[{extra}]'",
    )


def stored_at(name: str, source: str | ObjectStoragePath) -> tuple[Any, str]:
    """
    Return the file system of a URL, and the key in it.

    :param name: what the URL is called in errors
    :raises InvalidRequestError: if it is no URL of a store, is that of a version of an object, or
        needs a library that is not installed
    :raises AirflowNotFoundException: if its connection does not exist
    """
    url = as_url(source)
    scheme, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    if _VERSION.search(rest):
        raise InvalidRequestError(
            f"{name} is {shown(url)}, a version of an object: expected the object itself.",
            next_step="Copy the version to an object of its own.",
        )

    try:
        if not host.isprintable():
            raise ValueError("it has a control character before its path")

        conn_id, _, _ = host.rpartition("@")
        if conn_id and scheme.strip().lower() in _S3_SCHEMES:
            _look_up(conn_id)

        if isinstance(source, ObjectStoragePath):
            return source.fs, source.path

        # Without the key: from a whole URL, an object storage path drops a "?" or "#" at the end,
        # and tabs anywhere.
        path = ObjectStoragePath(f"{scheme}://{host}/")
        fs, root = path.fs, path.path
    except (ValueError, ImportError, TypeError) as error:
        raise _rejection(name, url, error) from None

    if not key:
        return fs, root

    return fs, f"{root.rstrip('/')}/{key.rstrip('/')}"


@functools.cache
def _look_up(conn_id: str) -> None:
    """
    Look up a connection, once if it is there.

    :raises AirflowNotFoundException: if it does not exist
    """
    BaseHook.get_connection(conn_id)


def as_url(source: object) -> str:
    """Return a source as text, with the ID of its connection."""
    text = str(source)
    conn_id = getattr(source, "conn_id", None)
    scheme, separator, rest = text.partition("://")
    if not separator or not isinstance(conn_id, str) or rest.startswith(f"{conn_id}@"):
        return text
    return f"{scheme}://{conn_id}@{rest}"


def bucket_of(key: str) -> str:
    """Return the bucket of a key; empty for the path of a file system, local or of a server."""
    return key.partition("/")[0]


def _rejection(name: str, url: str, error: Exception) -> InvalidRequestError:
    """Return the error for a URL of which there is no file system, and why."""
    scheme = url.partition("://")[0].strip()
    is_installed = has_fs(scheme.lower()) and not isinstance(error, ImportError)
    if scheme.lower() in _S3_SCHEMES and not is_installed:
        return extra_missing(name, "amazon")

    return InvalidRequestError(
        f"{name}: {shown(url)} is not a URL that Airflow's object storage reads "
        f"({reason(error, url)}): check its scheme, which cannot be http, https or ftp, and that "
        "the provider of the store is installed.",
        next_step=f"If the store needs one, name a connection: {scheme}://conn_id@/…",
    )
