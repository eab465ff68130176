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
    # Text and data
    "avro": "application/vnd.apache.avro",
    "arrow": "application/vnd.apache.arrow.file",
    "geojson": "application/geo+json",
    "ics": "text/calendar",
    "js": "text/javascript",
    "jsonl": "application/jsonl",
    "log": "text/plain",
    "md": "text/markdown",
    "ndjson": "application/x-ndjson",
    "orc": "application/vnd.apache.orc",
    "parquet": "application/vnd.apache.parquet",
    "sql": "application/sql",
    "toml": "application/toml",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    # Documents
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "epub": "application/epub+zip",
    "msg": "application/vnd.ms-outlook",
    "odp": "application/vnd.oasis.opendocument.presentation",
    "ods": "application/vnd.oasis.opendocument.spreadsheet",
    "odt": "application/vnd.oasis.opendocument.text",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "rtf": "application/rtf",
    "xlsm": "application/vnd.ms-excel.sheet.macroEnabled.12",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    # Images, audio and video
    "m4a": "audio/mp4",
    "ogg": "audio/ogg",
    "wav": "audio/wav",
    "webp": "image/webp",
    # Archives, and what is compressed: it is sent as it is
    "7z": "application/x-7z-compressed",
    "bz2": "application/x-bzip2",
    "gz": "application/gzip",
    "rar": "application/vnd.rar",
    "tgz": "application/gzip",
    "xz": "application/x-xz",
    "zst": "application/zstd",
}


@functools.cache
def _types_of_python() -> dict[str, str]:
    """Return the types that Python knows without files of the system."""
    _, registered = mimetypes.MimeTypes().types_map
    return registered


def media_type(name: str) -> str:
    """
    Return the media type of a file with this name.

    Where the ending is unknown here, that of the machine counts.
    """
    _, dot, ending = name.lower().rpartition(".")
    known = _TYPES.get(ending) or _types_of_python().get(f".{ending}")
    if dot and known:
        return known

    guessed, compressed = mimetypes.guess_type(name)
    if compressed:  # the compressed file is sent, not its content
        return _UNKNOWN

    return guessed or _UNKNOWN
