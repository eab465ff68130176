"""
Reach stores: the file system of a URL, and calls of it that end in time.

The client of a store may have no timeout of its own, and may hang. So each call of it has a thread
that nothing waits for, not even the end of the process.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from airflow.sdk import BaseHook, ObjectStoragePath
from airflow.sdk.io import has_fs

from workflow_automation_provider.client.files import reason
from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.exceptions import InvalidRequestError

# For a connection that does not exist, Airflow's amazon provider takes the worker's credentials.
_S3_SCHEMES = ("s3", "s3a", "s3n")

TIMEOUT = 300.0
"""Seconds that the client of a store may take for a request, with its own retries."""

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


def in_time(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """
    Call a method of a store, and wait for up to five minutes.

    :raises TimeoutError: if it takes longer
    """
    return wait_for(begin(call, *args, **options))


def begin(call: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
    """Call a method of a store in a daemon thread, and return the future of its result."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            result = call(*args, **options)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return future


def wait_for(future: Future[Any], extra_seconds: float = 0.0) -> Any:
    """
    Return the result of a call of a store, for which it has five minutes.

    :param extra_seconds: how much longer it may take
    :raises TimeoutError: if it takes longer
    """
    seconds = TIMEOUT + extra_seconds
    try:
        return future.result(seconds)
    except TimeoutError:
        is_raised_by_call = future.done()
        if is_raised_by_call:
            raise
        raise TimeoutError(f"the store has not answered for {seconds:,.0f} seconds") from None


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
            in_time(_look_up, conn_id)

        if isinstance(source, ObjectStoragePath):
            return in_time(getattr, source, "fs"), source.path

        # Without the key: from a whole URL, an object storage path drops a "?" or "#" at the end,
        # and tabs anywhere.
        path = ObjectStoragePath(f"{scheme}://{host}/")
        fs, root = in_time(getattr, path, "fs"), path.path
    except (ValueError, ImportError, TypeError) as error:
        if isinstance(error, TypeError) and "@" in host:
            raise
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
    """
    Return the error for a URL of which there is no file system.

    :param error: why; a ``TypeError`` lacks an argument that only a connection gives
    """
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    is_installed = has_fs(scheme) and not isinstance(error, ImportError)
    if scheme in _S3_SCHEMES and not is_installed:
        return extra_missing(name, "amazon")

    why = reason(error, url)
    problem = (
        f"is not a URL that Airflow's object storage reads ({why}): check its scheme, which cannot "
        "be http, https or ftp, and that the provider of the store is installed"
    )
    if isinstance(error, TypeError):
        problem = f"names no connection, which its store needs ({why})"

    # Of a URL that names none.
    hint = ""
    if "@" not in host and has_fs(scheme.strip().lower()):
        hint = f"If the store needs one, name a connection: {scheme}://conn_id@/…"
    return InvalidRequestError(f"{name}: {shown(url)} {problem}.", next_step=hint)
