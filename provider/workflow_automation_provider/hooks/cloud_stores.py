"""
The stores that can be asked for a version of an object: S3, Google Cloud Storage, Azure and HTTP.

Where one says in its response that it is that version, an object costs one request.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from io import UnsupportedOperation
from typing import Any

from workflow_automation_provider.client.files import ChangedError, ReadAhead
from workflow_automation_provider.hooks.stores import (
    MAX_CONCURRENCY,
    READ_TIMEOUT,
    PartsResponse,
    Response,
    Store,
    StoredFile,
    compare,
)

__all__ = ["store_of"]

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
        etag = file.told.get("ETag")
        options = {"Bucket": bucket, "Key": key}
        if version := file.version_id or version:
            options["VersionId"] = version
        if etag:
            options["IfMatch"] = etag
        if start:
            options["Range"] = f"bytes={start}-"
        try:
            found = await self.fs._call_s3("get_object", getattr(self.fs, "req_kw", {}), **options)
        except Exception as error:
            if _status_of(error) in (409, 412):
                raise ChangedError("it was overwritten") from None
            raise
        body = found["Body"]
        try:
            etag = found.get("ETag")
            _check_response(file, start, etag, found.get("ContentLength"), found.get("ContentRange"))
        except BaseException:
            body.close()
            raise
        return _S3Response(body, is_of_version=bool(etag and "ETag" in file.told))


class _S3Response:
    def __init__(self, body: Any, *, is_of_version: bool) -> None:
        self.is_of_version = self.may_resume = is_of_version
        self._body = body
        self.read = body.read

    async def close(self) -> None:
        self._body.close()


def _status_of(error: BaseException | None) -> int | None:
    """Return the status of the response that an error of botocore is about."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, Mapping):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return int(status) if status else None
        error = error.__cause__ or error.__context__
    return None


# HTTP and Google Cloud Storage ------------------------------------------------------------------------


# What tells the version of an object in a response, by its name in a listing.
_VERSION_HEADERS = {
    "ETag": "ETag",
    "Last-Modified": "Last-Modified",
    "Content-MD5": "Content-MD5",
    "Digest": "Digest",
    "generation": "x-goog-generation",
}


class _HttpResponse:
    def __init__(self, response: Any, *, is_of_version: bool, may_resume: bool) -> None:
        self.is_of_version = is_of_version
        self.may_resume = may_resume
        self._response = response
        self.read = response.content.read

    async def close(self) -> None:
        self._response.close()


class _Http(Store):
    """Read by ``If-Match``; what a server tells of the object in its response must be what it told before."""

    overhead = _CONNECTION

    def path_of(self, url: str) -> str:
        """Leave out the query and the fragment."""
        return url.partition("#")[0].partition("?")[0]

    async def respond(self, file: StoredFile, start: int) -> Response:
        """Send a conditional GET."""
        session = await self.fs.set_session()
        options = dict(self.fs.kwargs)
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
        etag = file.told.get("ETag", "")
        if etag and not etag.startswith("W/"):
            headers["If-Match"] = etag
        if start:
            headers["Range"] = f"bytes={start}-"
        options.setdefault("timeout", _timeout())
        return await _answer(
            file, start, await session.get(self.fs.encode_url(file.key), headers=headers, **options)
        )


class _Gcs(Store):
    """Read by the generation."""

    overhead = _CONNECTION
    is_flat = True

    async def respond(self, file: StoredFile, start: int) -> Response:
        """Send a conditional GET."""
        # Buckets in one zone are read by gRPC, which gcsfs has only for parts.
        is_in_one_zone = getattr(self.fs, "_is_zonal_bucket", None)
        if is_in_one_zone is not None and await is_in_one_zone(self.fs.split_path(file.key)[0]):
            return await super().respond(file, start)
        session = await self.fs._set_session()
        headers = {"Range": f"bytes={start}-"} if start else {}
        generation = file.told.get("generation")
        response = await session.get(
            self.fs.url(file.key),
            params=self.fs._get_params({"ifGenerationMatch": generation}),
            headers=self.fs._get_headers({**headers, "Accept-Encoding": "gzip"}),
            timeout=_timeout(),
            auto_decompress=False,
        )
        # An object that is stored compressed is sent as it is stored.
        return await _answer(file, start, response, encodings=("identity", "", "gzip"))


async def _answer(
    file: StoredFile, start: int, response: Any, *, encodings: Sequence[str] = ("identity", "")
) -> Response:
    headers = response.headers
    try:
        if response.status == 412:
            raise ChangedError("it was overwritten")
        if response.status in (404, 410):
            raise FileNotFoundError(file.key)
        if response.status in (401, 403):
            raise PermissionError(f"the store returned {response.status}")
        response.raise_for_status()
        if response.status not in (200, 206) or headers.get("Content-Encoding", "") not in encodings:
            raise UnsupportedOperation(
                errno.ENOTSUP,
                f"the store returned {response.status} {headers.get('Content-Encoding', '')}".rstrip(),
            )
        version = {name: headers.get(header) for name, header in _VERSION_HEADERS.items()}
        compare(file, version)
        length = headers.get("Content-Length")
        _check_response(
            file,
            start,
            headers.get("ETag"),
            None if length is None else int(length),
            headers.get("Content-Range"),
        )
    except BaseException:
        response.close()
        raise
    return _HttpResponse(
        response,
        is_of_version=any(version.get(name) for name in file.told),
        may_resume=_is_strong(file.told, headers),
    )


def _is_strong(told: Mapping[str, str], headers: Mapping[str, str]) -> bool:
    """Tell whether what a server told of a version is that of no other content, as RFC 9110 defines it."""
    if set(told) - {"ETag", "Last-Modified"}:
        return True
    if "ETag" in told:
        return not told["ETag"].startswith("W/")
    try:
        now, modified = (
            parsedate_to_datetime(text).replace(tzinfo=UTC)  # both are in GMT, whether they say so or not
            for text in (headers["Date"], told["Last-Modified"])
        )
    except (KeyError, TypeError, ValueError):
        return False
    # In the second of its last change, it may change again.
    return now - modified >= timedelta(seconds=1)


def _timeout() -> Any:
    import aiohttp

    # Without a limit for the whole: how long it takes is up to the service that the file is sent to.
    return aiohttp.ClientTimeout(total=None, sock_connect=READ_TIMEOUT, sock_read=READ_TIMEOUT)


def _check_response(
    file: StoredFile, start: int, etag: str | None, length: int | None, content_range: str | None
) -> None:
    """
    Check that a response is of the object that was listed, from the byte on that was asked for.

    :raises ChangedError: if it is of another object
    :raises UnsupportedOperation: if it begins with another byte
    """
    expected = file.told.get("ETag")
    if etag and expected and etag != expected:
        raise ChangedError("it was overwritten")
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
        return PartsResponse(self, file, start, is_of_version="etag" in file.told)

    async def part(self, file: StoredFile, start: int, end: int) -> bytes:
        """Send a conditional GET."""
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceModifiedError, ResourceNotFoundError

        container, name, version = self.fs.split_path(file.key)
        options: dict[str, Any] = {}
        etag = file.told.get("etag")
        if etag:
            options = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
        if end > start:
            options |= {"offset": start, "length": end - start}
        async with self.fs.service_client.get_blob_client(container=container, blob=name) as client:
            try:
                stream = await client.download_blob(version_id=version, max_concurrency=1, **options)
                found = stream.properties
                # The SDK is not agreed with itself on the quotes.
                if etag and found.etag and found.etag.strip('"') != etag.strip('"'):
                    raise ChangedError("it was overwritten")
                whole = (found.content_range or "").rpartition("/")[2]
                if whole.isdigit() and int(whole) != file.size:
                    raise ChangedError(f"it has {whole} bytes instead of {file.size}")
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
    "fsspec.implementations.http.HTTPFileSystem": _Http,
}


def store_of(fs: Any, read_ahead: ReadAhead) -> Store:
    """Return how a file system is read."""
    # By name, because importing all of them to compare would take seconds.
    names: Iterator[str] = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(fs).__mro__)
    kind = next((_KINDS[name] for name in names if name in _KINDS), Store)
    return kind(fs, read_ahead)
