"""
Media types by the ending of a name, the same on each machine.

``mimetypes`` reads files of the system, such as ``/etc/mime.types``, which not every image has.
"""

from __future__ import annotations

import functools
import mimetypes

_UNKNOWN = "application/octet-stream"

# Those that Python does not know by itself, or not in the registered form.
_TYPES = {
    "avro": "application/vnd.apache.avro",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "geojson": "application/geo+json",
    "gz": "application/gzip",
    "jsonl": "application/jsonl",
    "log": "text/plain",
    "md": "text/markdown",
    "ndjson": "application/x-ndjson",
    "odt": "application/vnd.oasis.opendocument.text",
    "parquet": "application/vnd.apache.parquet",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "webp": "image/webp",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
}


@functools.cache
def _of_python() -> mimetypes.MimeTypes:
    """Return what Python knows without the files of the system."""
    # Made on first use: the standard library reads the system's files here as well.
    return mimetypes.MimeTypes()


def media_type(name: str) -> str:
    """Return the media type of a file with this name."""
    _, dot, ending = name.lower().rpartition(".")
    if dot and ending in _TYPES:
        return _TYPES[ending]

    known, compressed = _of_python().guess_type(name)
    if compressed:  # the compressed file is sent, not its content
        return _UNKNOWN

    return known or _UNKNOWN
