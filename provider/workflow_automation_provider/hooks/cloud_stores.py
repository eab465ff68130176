"""
The stores that can be asked for a version of an object: S3, Google Cloud Storage and Azure.

Where one says in its response that it is that version, an object costs one request.

Private names of s3fs and gcsfs are used where nothing public serves: ``_call_s3`` and ``_set_session`` are the asynchronous
halves of what is public, gcsfs builds headers and parameters only in private, and s3fs's public ``s3`` would connect.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from io import UnsupportedOperation
from typing import Any

from workflow_automation_provider.client.files import ChangedError, ReadAhead
from workflow_automation_provider.hooks.stores import (
    MAX_CONCURRENCY,
    READ_TIMEOUT,
    Response,
    Store,
    StoredFile,
    in_parts,
)

# The buffers of a connection, in bytes.
_CONNECTION = 64 * 1024


# S3 ---------------------------------------------------------------------------------------------------


class _S3(Store):
    """Read by ``If-Match`` and, where there are versions, by the one that was listed."""

    overhead = _CONNECTION
    asks_again = True
    is_flat = True

    def __init__(self, fs: Any, read_ahead: ReadAhead) -> None:
        super().__init__(fs, read_ahead)
        if getattr(fs, "_s3", True) is None:  # not connected yet
            # The SDK's default of 10 connections would be fewer than the requests.
            fs.config_kwargs.setdefault("max_pool_connections", MAX_CONCURRENCY)

    @property
    def connections(self) -> int:
        """Return the size of the SDK's pool."""
        client = getattr(self.fs, "_s3", None)
        return client.meta.config.max_pool_connections if client is not None else 1

    async def respond(self, file: StoredFile, start: int) -> Response:
        """Send a conditional GET."""
        bucket, key, version = self.fs.split_path(file.key)
        etag = file.version.get("ETag")
        options = {"Bucket": bucket, "Key": key}
        if version := file.version_id or version:
            options["VersionId"] = version
        if etag:
            options["IfMatch"] = etag
        if start:
            options["Range"] = f"bytes={start}-"
        try:
            response = await self.fs._call_s3("get_object", self.fs.req_kw, **options)
        except Exception as error:
            if _status_of(error) in (409, 412):
                raise ChangedError("it was overwritten") from None
            raise
        body = response["Body"]
        try:
            if etag and response.get("ETag", etag) != etag:
                raise ChangedError("it was overwritten")
            _check_response(file, start, response.get("ContentLength"), response.get("ContentRange"))
        except BaseException:
            body.close()
            raise
        is_of_version = bool(etag and response.get("ETag"))
        return Response(body.read, body.close, is_of_version=is_of_version, may_resume=is_of_version)


def _status_of(error: BaseException | None) -> int | None:
    """Return the status of the response that an error of botocore is about."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, Mapping):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return int(status) if status else None
        error = error.__cause__ or error.__context__
    return None


# Google Cloud Storage ---------------------------------------------------------------------------------


class _Gcs(Store):
    """Read by the generation."""

    overhead = _CONNECTION
    is_flat = True

    async def respond(self, file: StoredFile, start: int) -> Response:
        """Send a conditional GET."""
        import aiohttp

        session = await self.fs._set_session()
        headers = {"Range": f"bytes={start}-"} if start else {}
        generation = file.version["generation"]
        response = await session.get(
            self.fs.url(file.key),
            params=self.fs._get_params({"ifGenerationMatch": generation}),
            # An object that is stored compressed is sent as it is stored.
            headers=self.fs._get_headers({**headers, "Accept-Encoding": "gzip"}),
            # Without a limit for the whole: how long it takes is up to the service that the file is sent to.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=READ_TIMEOUT, sock_read=READ_TIMEOUT),
            auto_decompress=False,
        )
        try:
            _check_status(response.status, file.key)
            response.raise_for_status()
            version = response.headers.get("x-goog-generation")
            if version not in (None, generation):
                raise ChangedError("it was overwritten")
            length = response.headers.get("Content-Length")
            _check_response(
                file, start, None if length is None else int(length), response.headers.get("Content-Range")
            )
        except BaseException:
            response.close()
            raise
        return Response(
            response.content.read, response.close, is_of_version=version is not None, may_resume=True
        )


def _check_status(status: int, key: str) -> None:
    if status == 412:
        raise ChangedError("it was overwritten")
    if status == 404:
        raise FileNotFoundError(key)
    if status in (401, 403):
        raise PermissionError(f"the store returned {status}")


def _check_response(file: StoredFile, start: int, length: int | None, content_range: str | None) -> None:
    """
    Check that a response has the length that was listed, from the byte on that was asked for.

    :raises ChangedError: if it has another length
    :raises UnsupportedOperation: if it begins with another byte
    """
    if start and not (content_range or "").startswith(f"bytes {start}-"):
        raise UnsupportedOperation(errno.ENOTSUP, f"the store did not continue from byte {start}")
    if length is not None and length != file.size - start:
        raise ChangedError(f"it has {start + length} bytes instead of {file.size}")


# Azure ------------------------------------------------------------------------------------------------


class _Azure(Store):
    """Read by ``If-Match``, in parts: its client has all of a response in memory."""

    is_flat = True

    async def respond(self, file: StoredFile, start: int) -> Response:
        """Read part by part."""
        return in_parts(self, file, start, is_of_version="etag" in file.version)

    async def part(self, file: StoredFile, start: int, end: int) -> bytes:
        """Send a conditional GET."""
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceModifiedError, ResourceNotFoundError

        container, name, version = self.fs.split_path(file.key)
        options: dict[str, Any] = {}
        etag = file.version.get("etag")
        if etag:
            options = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
        if end > start:
            options |= {"offset": start, "length": end - start}
        async with self.fs.service_client.get_blob_client(container=container, blob=name) as client:
            try:
                stream = await client.download_blob(version_id=version, max_concurrency=1, **options)
                content: bytes = await stream.readall()
            except ResourceModifiedError:
                raise ChangedError("it was overwritten") from None
            except ResourceNotFoundError:
                raise FileNotFoundError(file.key) from None
        return content


# Which is which ---------------------------------------------------------------------------------------

_KINDS = {
    "s3fs.core.S3FileSystem": _S3,
    "gcsfs.core.GCSFileSystem": _Gcs,
    "adlfs.spec.AzureBlobFileSystem": _Azure,
}


def store_of(fs: Any, read_ahead: ReadAhead) -> Store:
    """Return how a file system is read."""
    # By name, because importing all of them to compare would take seconds.
    names: Iterator[str] = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(fs).__mro__)
    kind = next((_KINDS[name] for name in names if name in _KINDS), Store)
    return kind(fs, read_ahead)
